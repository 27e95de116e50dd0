"""Positions and weights of nodes from tables: a row for each node, in any order, by its id."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from hpcgnn.console import report
from hpcgnn.convert.pieces import OneReaderError
from hpcgnn.convert.read.tables import Kind, Table, TableFile
from hpcgnn.convert.source import ConvertOptions, GraphSource, Nodes
from hpcgnn.convert.tables.edges import named_places
from hpcgnn.convert.tables.nodes import NODE_NAMES
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import FloatArray, GlobalIndices


def read_node_rows(
    flag: str, path: Path, most: int, source: GraphSource, options: ConvertOptions
) -> FloatArray:
    """Return the columns of numbers (n, D) float64 of a table, at `most` so many, by nodes.

    Nodes have the ids or names of `source`, or else are as many as there are rows. Raises
    `InputError` unless each has one row.
    """
    if options.ranks.moves_rows:
        raise OneReaderError(f"{flag} is a table")
    file, nodes = TableFile.open(path, frozenset(NODE_NAMES["id"])), source.nodes
    words = [column for column, number in enumerate(file.numeric) if not number]
    usual = (words if nodes.names is not None else []) or [max(file.index, 0)]
    node = named_places(file, {"id": NODE_NAMES["id"]}).get("id", usual[0])
    numeric = enumerate(file.numeric)
    columns = [each for each, number in numeric if number and each not in (node, file.index)]
    told = ", ".join(map(file.describe, columns))
    if not 1 <= len(columns) <= most:
        raise InputError(
            f"{flag} {path}: besides {file.describe(node)}, which are the nodes, it needs "
            f"{most if most == 1 else f'1 to {most}'} columns of numbers, not {len(columns)}"
            + (f" ({told})" if told else "")
        )
    report(f"{path}: {flag} are {told}, of the nodes {file.describe(node)}")
    kinds: dict[int, Kind] = dict.fromkeys(columns, "number")
    kinds[node] = "integer" if nodes.names is None else "text"
    tables, find = list(file.blocks(kinds)), node_finder(nodes)
    count = source.num_nodes or sum(table.num_rows for table in tables)
    rows, seen = np.empty((count, len(columns))), np.zeros(count, np.bool_)
    for table in tables:
        found = find(table, node)
        if (row := first_true((found < 0) | (found >= count))) is not None:
            raise InputError(f"{table.locate(row)}: its node is none of the graph; remove the row")
        again = seen[found]
        again[np.setdiff1d(np.arange(len(found)), np.unique(found, return_index=True)[1])] = True
        if (row := first_true(again)) is not None:
            raise InputError(f"{table.locate(row)}: this node has a row already; remove one")
        block = np.stack([table.numbers(column) for column in columns], axis=1)
        known = np.isfinite(block).sum(axis=1)
        if (row := first_true(known < block.shape[1])) is not None:
            raise InputError(f"{table.locate(row)}: a number is missing; give {told}")
        seen[found], rows[found] = True, block
    if (missing := first_true(~seen)) is not None:
        raise InputError(
            f"{flag} {path}: has no row of {np.count_nonzero(~seen)} nodes, such as "
            f"{_called(nodes, missing)}; add them"
        )
    return rows


def node_finder(nodes: Nodes) -> Callable[[Table, int], GlobalIndices]:
    """Return what finds the nodes in a column of rows, -1 for none."""
    if nodes.names is not None:
        numbers = {name: number for number, name in enumerate(_names(nodes))}
        return lambda table, column: np.array(
            [numbers.get(text, -1) for text in table.texts(column).to_pylist()], np.int64
        )
    ids = nodes.original_id
    if ids is None:
        return lambda table, column: table.integers(column)
    order = np.argsort(ids, kind="stable")

    def find(table: Table, column: int) -> GlobalIndices:
        asked = table.integers(column)
        positions = order[np.minimum(np.searchsorted(ids[order], asked), len(ids) - 1)]
        return np.where(ids[positions] == asked, positions, -1)

    return find


def _names(nodes: Nodes) -> list[bytes]:
    found: list[bytes] = []
    for offsets, data in () if nodes.names is None else nodes.names():
        raw = data.tobytes()
        found += [raw[low:high] for low, high in pairwise(offsets.tolist())]
    return found


def _called(nodes: Nodes, node: int) -> str:
    if nodes.names is not None:
        return repr(_names(nodes)[node].decode())
    return str(node if nodes.original_id is None else nodes.original_id[node])
