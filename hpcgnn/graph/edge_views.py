"""What layers multiply with, made of the edges that a module of one process was called with."""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hpcgnn.comm import RowMap, agree
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.errors import InputError
from hpcgnn.graph.products import adjacency_products, make_operators
from hpcgnn.nn import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.pyg import Call, Edges, EdgeShare
from hpcgnn.sparse import DistCSR
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import GlobalIndices


class EdgeViews:
    """Makes operators of edges when a layer first asks for them, and keeps them."""

    def __init__(self, exchange: ExchangeConfig) -> None:
        self._exchange = exchange
        self._made: WeakKeyDictionary[EdgeShare, dict[Any, tuple[Any, LayerView]]]
        self._made = WeakKeyDictionary()

    def __deepcopy__(self, _: Any) -> "EdgeViews":
        """Return itself: a copy of a module multiplies with the same edges."""
        return self

    @collective
    def __call__(self, kind: Aggregation, call: Call) -> LayerView:
        """Return the view of a call's edges; raises `InputError` where they are not all of them."""
        edges, types = call.edges, call.types
        if not isinstance(edges, Edges) or not edges.is_whole or None not in edges.share.types:
            raise InputError(
                "on operators of hpcgnn a layer takes edge_index as hpcgnn.divide, or Graph.data, "
                "gives it, of a graph of one type of nodes"
            )
        if (types is None) is kind.by_relation:
            raise InputError(f"aggregation {kind.value}: edge_type is missing, or not read")
        state = None if types is None else (types, types._version)
        key = kind, call.x.dtype, call.num_relations
        views = self._made.setdefault(edges.share, {})
        if key not in views or not _same(views[key][0], state):
            views[key] = state, self._view(kind, call, edges.share)
        return views[key][1]

    @collective
    def _view(self, kind: Aggregation, call: Call, share: EdgeShare) -> LayerView:
        grid, wanted = share.operator.grid, kind
        numbers = None if call.types is None else call.types.numpy()
        matrix = _matrix(share, kind, numbers, call.num_relations)
        if kind is Aggregation.SYMMETRIC:
            # Its values are scaled already.
            wanted = Aggregation.SUM_IN
        make = make_operators(grid, self._exchange, TraceRecorder.off())
        dtype = call.x.detach().numpy().dtype
        view = adjacency_products(make, matrix, (wanted,), dtype, share.node_ids).view.layer(0)
        return replace(view, operators={kind: view.operators[wanted]})


def _same(before: Any, now: Any) -> bool:
    """Return whether types are those of before, alike on all ranks: none looks at its numbers."""
    if before is None or now is None:
        return before is now
    return before[0] is now[0] and bool(before[1] == now[1])


def _fits(types: GlobalIndices, num_edges: int, num_relations: int) -> bool:
    numbers = types.dtype.kind == "i" and types.shape == (num_edges,)
    return numbers and not ((types < 0) | (types >= num_relations)).any()


@collective
def _matrix(
    share: EdgeShare, kind: Aggregation, types: GlobalIndices | None, num_relations: int
) -> DistCSR:
    """Return the block row of a share's edges, an entry for each of them."""
    grid, count = share.operator.grid, share.num_nodes()
    with agree(grid.world):
        if types is not None and not _fits(types, share.numbers.shape[1], num_relations):
            raise InputError(
                f"edge_type: a layer of {num_relations} relations takes a number below that for "
                "each edge of this rank"
            )
    counts = grid.layer.allgather(count)
    row_map = RowMap(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), grid.block)
    own = np.arange(row_map.start, row_map.stop)
    sources, rows = share.numbers.numpy()
    every = share.of_sources(own)
    if kind.self_loops:
        others = every[sources] != rows + row_map.start
        loops = np.arange(count)
        sources = np.concatenate([sources[others], loops])
        rows = np.concatenate([rows[others], loops])
    values = None
    if kind is Aggregation.SYMMETRIC:
        # torch_geometric scales both ends of directed edges by the number of edges that arrive.
        degrees = np.bincount(rows, minlength=count)
        values = (degrees[rows] * share.of_sources(degrees)[sources]) ** -0.5
    if types is not None:
        rows = rows + types * count
    columns = every[sources]
    order = np.lexsort((columns, rows))
    ends = np.cumsum(np.bincount(rows, minlength=count * num_relations))
    indptr = np.concatenate([[0], ends]).astype(np.int64)
    values = None if values is None else values[order]
    return DistCSR.from_rows(row_map, indptr, columns[order], values, num_relations)
