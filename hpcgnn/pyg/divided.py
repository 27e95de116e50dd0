"""A graph in the memory of all ranks, as a program of one process has it, divided among them.

The nodes of all types are numbered in a row and partitioned together. Each type of edges has an
operator over all of these rows, which fetches those of its sources.
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
from hpcgnn.sparse import DistCSR, EdgeRows, EdgeTable, PatternRows
from hpcgnn.spmd import collective
from hpcgnn.spmm import make_exchange
from hpcgnn.storage.checksums import array_crc
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The nodes of all types in a row: type -> its numbers, and the part of each node."""

    ranges: Mapping[Any, range]
    rows: RowMap
    order: GlobalIndices
    places: GlobalIndices

    @classmethod
    def of(cls, ranges: Mapping[Any, range], partition: Partition, block: int) -> "_Nodes":
        order = partition.permutation()
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return cls(ranges, RowMap(partition.row_starts(), block), order, places)

    def own(self, kind: Any) -> GlobalIndices:
        """Return the numbers of this rank's nodes of a type, rising."""
        mine, numbers = self.order[self.rows.start : self.rows.stop], self.ranges[kind]
        return mine[slice(*np.searchsorted(mine, (numbers.start, numbers.stop)))]

    def slice(self, kind: Any) -> slice:
        """Return where a type's rows are among those of this rank."""
        mine, numbers = self.order[self.rows.start : self.rows.stop], self.ranges[kind]
        return slice(*map(int, np.searchsorted(mine, (numbers.start, numbers.stop))))


@collective
def divide(data: Any, grid: ProcessGrid) -> Any:
    """Return this rank's share of a graph, see `hpcgnn.divide`."""
    with agree(grid.world):
        ends = {"": _ends(data)}
        ranges = {"": range(_num_nodes(data))}
        crc = array_crc(ends[""])
    seen = grid.world.allgather((ranges, crc))
    with agree(grid.world):
        if any(each != seen[0] for each in seen):
            raise InputError("data: its edges differ between ranks; give all ranks the same")
        part = _part(ends[""], len(ranges[""]), grid.num_blocks) if grid.world.rank == 0 else None
    partition = Partition(bcast(grid.world, part), grid.num_blocks)
    nodes = _Nodes.of(ranges, partition, grid.block)
    share, edges = _share(grid, nodes, ends[""], ("", ""))
    out = copy.copy(data)
    with agree(grid.world):
        _cut(out, data, torch.from_numpy(nodes.own("")), edges)
        out.edge_index = share.index
    return out


def _num_nodes(data: Any) -> int:
    if data.num_nodes is None:
        raise InputError("data: has no num_nodes; set it")
    return int(data.num_nodes)


def _ends(data: Any) -> Array:
    index = getattr(data, "edge_index", None)
    if not isinstance(index, torch.Tensor) or index.dim() != 2 or len(index) != 2:
        raise InputError("data: has no edge_index (2, E); set it (sparse adj_t is not read)")
    ends = index.detach().cpu().numpy().astype(np.int64)
    if ends.size and not 0 <= ends.min() <= ends.max() < _num_nodes(data):
        raise InputError(f"data: edge_index has numbers outside of its {_num_nodes(data)} nodes")
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
    """Return the edges of one type that end at own nodes, and which ones of `ends` they are."""
    rows = nodes.rows
    sources, targets = nodes.places[ends]
    chosen = np.flatnonzero(rows.is_local(targets))
    table = EdgeRows(targets[chosen] - rows.start, sources[chosen], chosen[:, None].astype(float))
    entries = np.unique(table.targets * rows.num_rows + table.sources)
    counts = np.bincount(entries // rows.num_rows, minlength=rows.num_local)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    pattern = PatternRows(indptr, entries % rows.num_rows, None)
    found = EdgeTable.of_pattern(rows, pattern, table)
    matrix = DistCSR.from_rows(rows, indptr, pattern.columns, found.numbers)
    trace = TraceRecorder.off()
    made = make_exchange("aware", grid, matrix, trace)
    operator = MessageOperator(grid, matrix, made, trace, found)
    share = EdgeShare.of(operator, nodes.own(kinds[1]))
    return share, share.features[:, 0].long()


def _cut(out: Any, whole: Any, nodes: torch.Tensor, edges: torch.Tensor) -> None:
    """Replace the tensors of nodes and edges by those of some."""
    for key, value in whole.items():
        if key == "edge_index":
            continue
        if key == "num_nodes":
            out[key] = len(nodes)
        elif whole.is_node_attr(key) or whole.is_edge_attr(key):
            if not isinstance(value, torch.Tensor):
                raise InputError(f"data: {key} is a {type(value).__name__}; make it a tensor")
            numbers = nodes if whole.is_node_attr(key) else edges
            out[key] = value.index_select(whole.__cat_dim__(key, value), numbers.to(value.device))
        elif isinstance(value, torch.Tensor) and "batch" not in key and whole.__inc__(key, value):
            raise InputError(
                f"data: {key} has numbers of nodes, which are others on each rank; leave it out"
            )
    out.n_id, out.e_id = nodes, edges
