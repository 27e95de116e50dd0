"""A table of graphs: what is known of each graph, put down at its nodes."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcgnn.convert.source import ConvertOptions, Nodes
from hpcgnn.convert.tables.node_data import read_nodes
from hpcgnn.convert.tables.nodes import NodeTable, open_nodes
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import GlobalIndices


def with_graphs(nodes: Nodes, options: ConvertOptions) -> Nodes:
    """Return the nodes with labels and splits of the table of graphs, where the options name one.

    Raises `InputError` for a table that does not fit the nodes' graphs.
    """
    if options.graphs is None or nodes.graph is None:
        # Without graphs the option counts as one without effect.
        return nodes
    path = Path(options.take("graphs"))
    table = open_nodes(path, {}, ())
    if not isinstance(table, NodeTable) or max(table.graph, table.id) < 0:
        raise InputError(f"--graphs {path}: needs a table with a header, and in it a column graph")
    numbers = table.integers(table.id if table.graph < 0 else table.graph)
    # Its rows as they are: neither ids nor graphs of nodes.
    known = read_nodes([replace(table, id=-1, graph=-1)], None, options)
    rows = _rows_of(nodes.graph, numbers, path)
    labels, splits = known.labels, {name: split[rows] for name, split in known.splits.items()}
    for what, given, mine in (("labels", nodes.labels, labels), ("splits", nodes.splits, splits)):
        if given and mine:
            raise InputError(f"--graphs {path}: {what} are given for nodes too; keep one of them")
    if labels is not None:
        labels = replace(labels, values=labels.values[rows])
    return replace(nodes, labels=labels or nodes.labels, splits=splits or nodes.splits)


def _rows_of(graph: GlobalIndices, numbers: GlobalIndices, path: Path) -> GlobalIndices:
    """Return the row of each node's graph in a table of the graphs `numbers`."""
    order = np.argsort(numbers, kind="stable")
    twice = first_true(np.diff(numbers[order]) == 0)
    if twice is not None:
        raise InputError(f"--graphs {path}: graph {numbers[order[twice]]} occurs twice")
    places = np.minimum(np.searchsorted(numbers[order], graph), max(len(numbers) - 1, 0))
    missing = np.ones(len(graph), np.bool_)
    if len(numbers):
        missing = numbers[order][places] != graph
    if (node := first_true(missing)) is not None:
        raise InputError(f"--graphs {path}: has no row of graph {graph[node]}, which nodes are of")
    return order[places]
