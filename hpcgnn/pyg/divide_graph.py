"""Divide a graph that every rank has in memory, as in a program for one process, among the ranks.

The nodes of all types are numbered consecutively and partitioned together. Each type of edges has
an operator over all of these rows, which fetches the rows of its sources.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, RowMap, agree, bcast
from hpcgnn.errors import InputError
from hpcgnn.messages import MessageOperator
from hpcgnn.partition import CSRGraph, Partition, part_graph
from hpcgnn.pyg.edges import EdgeShare
from hpcgnn.pyg.row_axis import mark
from hpcgnn.sparse import DistCSR, EdgeRows, EdgeTable, PatternRows
from hpcgnn.spmd import collective
from hpcgnn.spmm import make_exchange
from hpcgnn.storage.checksums import array_crc
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Numbers of nodes by type (`ranges`), and their `order` by part with inverse `positions`."""

    ranges: Mapping[Any, range]
    rows: RowMap
    order: GlobalIndices
    positions: GlobalIndices

    @classmethod
    def of(cls, ranges: Mapping[Any, range], partition: Partition, block: int) -> "_Nodes":
        order = partition.permutation()
        positions = np.empty_like(order)
        positions[order] = np.arange(len(order))
        return cls(ranges, RowMap(partition.row_starts(), block), order, positions)

    def own(self, kind: Any) -> GlobalIndices:
        """Return the ascending numbers of this rank's nodes of a type."""
        own_nodes, numbers = self.order[self.rows.start : self.rows.stop], self.ranges[kind]
        return own_nodes[slice(*np.searchsorted(own_nodes, (numbers.start, numbers.stop)))]


@collective
def divide(data: Any, grid: ProcessGrid) -> Any:
    """Return this rank's share of a graph; see `hpcgnn.divide`."""
    with agree(grid.world):
        ranges = _ranges(data)
        ends = {store._key: _ends(store, ranges) for store in data.edge_stores}
        crc = [array_crc(item) for item in ends.values()]
    everywhere = grid.world.allgather((ranges, crc))
    with agree(grid.world):
        if any(item != everywhere[0] for item in everywhere):
            raise InputError("data: its edges differ between ranks; give all ranks the same")
        joined = np.concatenate([np.empty((2, 0), np.int64), *ends.values()], axis=1)
        num_nodes = sum(map(len, ranges.values()))
        part = _part(joined, num_nodes, grid.num_blocks) if grid.world.rank == 0 else None
    partition = Partition(bcast(grid.world, part), grid.num_blocks)
    nodes = _Nodes.of(ranges, partition, grid.block)
    shares = {key: _share(grid, nodes, item, _kinds(key)) for key, item in ends.items()}
    out = copy.copy(data)
    with agree(grid.world):
        for data_store, out_store in zip(data.node_stores, out.node_stores, strict=True):
            numbers = nodes.own(data_store._key) - ranges[data_store._key].start
            _cut(data, data_store, out_store, "n_id", torch.from_numpy(numbers))
        for data_store, out_store in zip(data.edge_stores, out.edge_stores, strict=True):
            share, edge_numbers = shares[data_store._key]
            _cut(data, data_store, out_store, "e_id", edge_numbers)
            out_store.edge_index = share.index
    return out


def _kinds(key: Any) -> tuple[Any, Any]:
    """Return the types of sources and targets; None for a graph of one type, without keys."""
    return (None, None) if key is None else (key[0], key[2])


def _ranges(data: Any) -> dict[Any, range]:
    """Return consecutive ranges of numbers for the nodes of each type."""
    ranges, start = {}, 0
    for store in data.node_stores:
        count = store.num_nodes
        if count is None:
            raise InputError(f"data{_where(store)}: has no num_nodes; set it")
        ranges[store._key] = range(start, start := start + int(count))
    return ranges


def _where(store: Any) -> str:
    return "" if store._key is None else f"[{store._key!r}]"


def _ends(store: Any, ranges: Mapping[Any, range]) -> Array:
    """Return (2, E) int64 the ends of edges, numbered among the nodes of all types."""
    index = getattr(store, "edge_index", None)
    if not isinstance(index, torch.Tensor) or index.dim() != 2 or len(index) != 2:
        raise InputError(
            f"data{_where(store)}: has no edge_index (2, E); set it (sparse adj_t is not read)"
        )
    ends = index.detach().cpu().numpy().astype(np.int64)
    for row, kind in zip(ends, _kinds(store._key), strict=True):
        if kind not in ranges:
            raise InputError(f"data{_where(store)}: no node type {kind!r}; set its num_nodes")
        if row.size and not 0 <= row.min() <= row.max() < len(ranges[kind]):
            raise InputError(
                f"data{_where(store)}: edge_index has numbers outside of its "
                f"{len(ranges[kind])} nodes"
            )
        row += ranges[kind].start
    return ends


def _part(ends: Array, num_nodes: int, num_parts: int) -> LocalIndices:
    """Return the part of each node, int32."""
    sources, targets = ends
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=num_nodes))])
    pattern = CSRGraph(
        indptr.astype(np.int64), sources[np.argsort(targets, kind="stable")], num_nodes
    )
    return part_graph(num_parts, pattern).part


@collective
def _share(
    grid: ProcessGrid, nodes: _Nodes, ends: Array, kinds: tuple[Any, Any]
) -> tuple[EdgeShare, torch.Tensor]:
    """Return the edges of one type that end at own nodes, and their numbers in `ends`."""
    rows = nodes.rows
    sources, targets = nodes.positions[ends]
    chosen = np.flatnonzero(rows.is_local(targets))
    edges = EdgeRows(targets[chosen] - rows.start, sources[chosen], chosen[:, None].astype(float))
    types = {kind: nodes.own(kind) for kind in nodes.ranges}
    share = share_of_rows(grid, rows, edges, types, kinds)
    return share, share.features[:, 0].long()


@collective
def share_of_rows(
    grid: ProcessGrid,
    rows: RowMap,
    edges: EdgeRows,
    types: Mapping[Any, GlobalIndices],
    kinds: tuple[Any, Any],
) -> EdgeShare:
    """Return the edges of one type; rows are the nodes of all `types`, type after type."""
    entries = np.unique(edges.targets * rows.num_rows + edges.sources)
    counts = np.bincount(entries // rows.num_rows, minlength=rows.num_local)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    pattern = PatternRows(indptr, entries % rows.num_rows, None)
    table = EdgeTable.of_pattern(rows, pattern, edges)
    matrix = DistCSR.from_rows(rows, indptr, pattern.columns, table.numbers)
    trace = TraceRecorder.off()
    exchange = make_exchange("aware", grid, matrix, trace)
    return EdgeShare.of_types(MessageOperator(matrix, exchange, table), types, kinds)


def _cut(data: Any, whole: Any, out: Any, name: str, numbers: torch.Tensor) -> None:
    """Select some rows of the tensors of nodes or edges, and store their `numbers` as `name`."""
    is_of = whole.is_node_attr if name == "n_id" else whole.is_edge_attr
    for key, value in whole.items():
        if key == "edge_index":
            continue
        if key == "num_nodes":
            out[key] = len(numbers)
        elif is_of(key):
            if not isinstance(value, torch.Tensor):
                raise InputError(f"data: {key} is a {type(value).__name__}; make it a tensor")
            dim = data.__cat_dim__(key, value, whole)
            out[key] = mark(value.index_select(dim, numbers.to(value.device)), dim, kind=whole._key)
        elif "index" in key or key == "face":
            raise InputError(
                f"data: {key} has numbers of nodes, which differ on each rank; leave it out"
            )
    out[name] = numbers
