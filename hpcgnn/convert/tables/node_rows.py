"""Read node positions and weights from tables with one row for each node id, in any order."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from hpcgnn.console import report
from hpcgnn.convert.divide_input import OneReaderError
from hpcgnn.convert.read.tables import Kind, Table, TableFile
from hpcgnn.convert.source import ConvertOptions, GraphSource, NodeArrays
from hpcgnn.convert.tables.edges import columns_by_role
from hpcgnn.convert.tables.ids import Numbers
from hpcgnn.convert.tables.nodes import NODE_NAMES
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import FloatArray, GlobalIndices


def read_node_rows(
    flag: str, path: Path, most: int, source: GraphSource, options: ConvertOptions
) -> FloatArray:
    """Return the numbers (n, D) float64 of a table in node order; D is at most `most`.

    Ids are those of `source`, or if it has no number of nodes, numbers below the count of rows.
    Raises `InputError` unless each node has one row.
    """
    if options.ranks.moves_rows:
        raise OneReaderError(f"{flag} is a table")
    file, nodes = TableFile.open(path, frozenset(NODE_NAMES["id"])), source.nodes
    words = [column for column, number in enumerate(file.numeric) if not number]
    usual = (words if nodes.names is not None else []) or [max(file.index, 0)]
    node = columns_by_role(file, {"id": NODE_NAMES["id"]}).get("id", usual[0])
    columns = [i for i, number in enumerate(file.numeric) if number and i not in (node, file.index)]
    names = ", ".join(map(file.describe, columns))
    if not 1 <= len(columns) <= most:
        raise InputError(
            f"{flag} {path}: besides {file.describe(node)}, which holds the nodes, it needs "
            f"{most if most == 1 else f'1 to {most}'} columns of numbers, not {len(columns)}"
            + (f" ({names})" if names else "")
        )
    report(f"{path}: {flag} are {names}, of the nodes {file.describe(node)}")
    kinds: dict[int, Kind] = dict.fromkeys(columns, "number")
    kinds[node] = "integer" if nodes.names is None else "text"
    tables, find = list(file.blocks(kinds)), node_finder(nodes)
    count = source.num_nodes or sum(table.num_rows for table in tables)
    rows, seen = np.empty((count, len(columns))), np.zeros(count, np.bool_)
    for table in tables:
        ids = find(table, node)
        if (row := first_true((ids < 0) | (ids >= count))) is not None:
            raise InputError(f"{table.locate(row)}: its node is not in the graph; remove the row")
        repeated = seen[ids]
        repeated[np.setdiff1d(np.arange(len(ids)), np.unique(ids, return_index=True)[1])] = True
        if (row := first_true(repeated)) is not None:
            raise InputError(f"{table.locate(row)}: this node already has a row; remove one")
        block = np.stack([table.numbers(column) for column in columns], axis=1)
        if (row := first_true(np.isfinite(block).sum(axis=1) < block.shape[1])) is not None:
            raise InputError(f"{table.locate(row)}: a number is missing; give {names}")
        seen[ids], rows[ids] = True, block
    if (missing := first_true(~seen)) is not None:
        raise InputError(
            f"{flag} {path}: has no row for {np.count_nonzero(~seen)} nodes, such as "
            f"{_id_of(nodes, missing)}; add them"
        )
    return rows


def node_finder(nodes: NodeArrays) -> Callable[[Table, int], GlobalIndices]:
    """Return a function that maps a column of ids to node numbers, unknown ids to -1."""
    if nodes.names is not None:
        numbers = {name: number for number, name in enumerate(_names(nodes))}
        return lambda table, column: np.array(
            [numbers.get(text, -1) for text in table.texts(column).to_pylist()], np.int64
        )
    if nodes.original_id is None:
        return lambda table, column: table.integers(column)
    ids = Numbers(nodes.original_id)
    return lambda table, column: ids.positions(table.integers(column))


def _names(nodes: NodeArrays) -> list[bytes]:
    names: list[bytes] = []
    for offsets, data in () if nodes.names is None else nodes.names():
        raw = data.tobytes()
        names += [raw[low:high] for low, high in pairwise(offsets.tolist())]
    return names


def _id_of(nodes: NodeArrays, node: int) -> str:
    if nodes.names is not None:
        return repr(_names(nodes)[node].decode())
    return str(node if nodes.original_id is None else nodes.original_id[node])
