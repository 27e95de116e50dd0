"""Make the operators of layers from the edges that a PyG-style module is called with."""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hpcgnn.comm import RowMap, agree
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.errors import InputError
from hpcgnn.graph.operators import Adjacency, make_operators
from hpcgnn.nn import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.pyg import Call, EdgeList, EdgeShare
from hpcgnn.sparse import DistCSR
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import GlobalIndices


class EdgeViews:
    """Makes operators for edges when a layer first needs them, and caches them."""

    def __init__(self, exchange: ExchangeConfig) -> None:
        self._exchange = exchange
        self._made: WeakKeyDictionary[EdgeShare, dict[Any, tuple[Any, LayerView]]]
        self._made = WeakKeyDictionary()

    def __deepcopy__(self, _: Any) -> "EdgeViews":
        """Return itself: copies of a module share the operators."""
        return self

    @collective
    def __call__(self, kind: Aggregation, call: Call) -> LayerView:
        """Return the view of a call's edges; raises `InputError` if some edges are missing."""
        edges, types = call.edges, call.types
        if not isinstance(edges, EdgeList) or not edges.is_whole or None not in edges.share.types:
            raise InputError(
                "a layer on operators of hpcgnn takes the edge_index of hpcgnn.divide or "
                "Graph.data, of a graph with one type of nodes"
            )
        if (types is None) is kind.by_relation:
            raise InputError(f"aggregation {kind.value}: edge_type is missing, or not used")
        state = None if types is None else (types, types._version)
        key = kind, call.x.dtype, call.num_relations
        views = self._made.setdefault(edges.share, {})
        if key not in views or not _same(views[key][0], state):
            views[key] = state, self._view(kind, call, edges.share)
        return views[key][1]

    @collective
    def _view(self, kind: Aggregation, call: Call, share: EdgeShare) -> LayerView:
        grid, aggregations = share.operator.grid, kind
        numbers = None if call.types is None else call.types.numpy()
        matrix = _matrix(share, kind, numbers, call.num_relations)
        if kind is Aggregation.SYMMETRIC:
            # `_matrix` has already scaled the values.
            aggregations = Aggregation.SUM_IN
        make = make_operators(grid, self._exchange, TraceRecorder.off())
        dtype = call.x.detach().numpy().dtype
        adjacency = Adjacency(make, matrix, (aggregations,), dtype, share.node_ids)
        view = adjacency.products().view.layer(0)
        return replace(view, operators={kind: view.operators[aggregations]})


def _same(before: Any, now: Any) -> bool:
    """Return whether edge types are unchanged, by identity, so that all ranks agree."""
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
    """Return the block row of a share's edges, with an entry for each edge."""
    grid, count = share.operator.grid, share.num_nodes()
    with agree(grid.world):
        if types is not None and not _fits(types, share.numbers.shape[1], num_relations):
            raise InputError(
                f"edge_type: a layer of {num_relations} relations takes a number from 0 to "
                f"{num_relations - 1} for each edge of this rank"
            )
    counts = grid.layer.allgather(count)
    row_map = RowMap(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), grid.block)
    own = np.arange(row_map.start, row_map.stop)
    sources, rows = share.numbers.numpy()
    source_rows = share.of_sources(own)
    if kind.self_loops:
        others = source_rows[sources] != rows + row_map.start
        loops = np.arange(count)
        sources = np.concatenate([sources[others], loops])
        rows = np.concatenate([rows[others], loops])
    values = None
    if kind is Aggregation.SYMMETRIC:
        # Like torch_geometric, scale both ends of directed edges by in-degrees.
        degrees = np.bincount(rows, minlength=count)
        values = (degrees[rows] * share.of_sources(degrees)[sources]) ** -0.5
    if types is not None:
        rows = rows + types * count
    columns = source_rows[sources]
    order = np.lexsort((columns, rows))
    ends = np.cumsum(np.bincount(rows, minlength=count * num_relations))
    indptr = np.concatenate([[0], ends]).astype(np.int64)
    values = None if values is None else values[order]
    return DistCSR.from_rows(row_map, indptr, columns[order], values, num_relations)
