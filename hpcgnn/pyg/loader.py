"""Batches of nodes with sampled neighbours, from a graph whose nodes are distributed over ranks.

Each host holds the edges of the whole graph and their data once. Node data stays on the nodes'
ranks; each batch fetches the rows that it needs.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import (
    ProcessGrid,
    RowMap,
    RowRequest,
    agree,
    all_ranks,
    redistribute,
    share_on_hosts,
)
from hpcgnn.comm.row_map import spans
from hpcgnn.errors import InputError
from hpcgnn.pyg.edges import EdgeList, EdgeShare
from hpcgnn.sampling import FanOutSampler, Prefetch, Topology
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

_numbers = itertools.count()


class BatchSize(int):
    """The number of nodes to predict, which are the first in this rank's share of a batch."""

    grid: ProcessGrid

    @classmethod
    def of(cls, count: int, grid: ProcessGrid) -> "BatchSize":
        """Return the size of this rank's share of a batch of all ranks of a grid."""
        size = cls(count)
        size.grid = grid
        return size


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A rank's sample for a batch, before any row of a node is fetched.

    `inputs` (B,) are numbers of the nodes to predict, `nodes` (N,) ids with these nodes first,
    `ends` (2, E) positions among `nodes`, and `of_edges` the tensors with a row for each edge.
    """

    inputs: GlobalIndices
    nodes: LocalIndices
    ends: Tensor
    of_edges: dict[str, Tensor]


class NeighborLoader:
    """Batches of nodes with sampled neighbours, like ``torch_geometric.loader.NeighborLoader``.

    The `batch_size` nodes of a batch are divided among all ranks. A rank's share is a
    ``torch_geometric.data.Data`` whose first ``batch_size`` nodes are to be predicted, followed by
    the neighbours sampled in each hop. ``edge_index`` is an ordinary tensor, so any module for one
    process accepts the batch; `hpcgnn.backward` and `hpcgnn.mean` accept ``batch.batch_size`` as
    their rows. ``n_id``, ``e_id`` and ``input_id`` are numbers of nodes, of edges and of the
    predicted nodes in the whole graph.

    The sampled neighbours of a node do not depend on the rank. So with equal fan-outs losses are
    equal on any number of ranks, for modules that treat nodes independently: batch normalisation
    and dropout are local to a rank. Iterating is collective, and every iteration is the next epoch.
    A thread samples the next batch while one is in use; its rows are fetched when it is due.

    Parameters
    ----------
    data
        The result of `hpcgnn.divide` for a ``Data``, or a ``Data`` of the tensors of
        `hpcgnn.Graph.data`. Rows of its tensors of nodes and of edges are selected for each batch.
    num_neighbors
        For each hop the most neighbours sampled for a node, without replacement; -1: all. Parallel
        edges are sampled together.
    input_nodes
        The nodes of this rank to predict: a mask, or their numbers. Default: all.
    batch_size
        Nodes in a batch, over all ranks; the last batch of an epoch may have fewer.
    shuffle
        Whether every epoch has a new order of nodes; otherwise they are in the order of their ids.
    seed
        Seed of the orders and of the neighbours.

    Raises
    ------
    InputError
        If the edges of `data` are not those of a distributed graph with one type of nodes, or a
        number is out of range.

    Examples
    --------
    >>> from torch_geometric.data import Data
    >>> ends = torch.arange(18).view(2, 9) % 9
    >>> data = hpcgnn.divide(Data(x=torch.eye(9), edge_index=ends, y=torch.arange(9)))
    >>> loader = hpcgnn.NeighborLoader(data, num_neighbors=[2, 2], batch_size=4)
    >>> [int(batch.batch_size) for batch in loader]
    [4, 4, 1]
    """

    @collective
    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        input_nodes: Tensor | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        edges = getattr(data, "edge_index", None)
        if not isinstance(edges, EdgeList) or None not in edges.share.types:
            raise InputError(
                "data: NeighborLoader needs a graph of one type of nodes; give the result of "
                "hpcgnn.divide"
            )
        share = edges.share
        self._grid = share.operator.grid
        with agree(self._grid.world):
            fan_outs = tuple(num_neighbors)
            if batch_size < 1 or not fan_outs or any(count < -1 or not count for count in fan_outs):
                raise InputError(
                    f"batch_size={batch_size}, num_neighbors={list(fan_outs)}: give at least 1 of "
                    "each, or -1 neighbours for all, and a number for each hop"
                )
            chosen = _chosen(input_nodes, share)
        self._data, self._fan_outs = data, fan_outs
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._epoch = -1
        self._index_nodes(share, chosen)
        self._index_edges(share)

    @collective
    def _index_nodes(self, share: EdgeShare, chosen: GlobalIndices) -> None:
        """Share the positions of all nodes' rows, and the ids of the nodes to predict."""
        layer, ids = self._grid.layer, share.node_ids
        counts = layer.allgather(len(ids))
        self._rows = RowMap(np.concatenate([[0], np.cumsum(counts)]), self._grid.block)
        num_nodes = self._rows.num_rows
        self._bounds = np.arange(self._grid.num_blocks + 1) * num_nodes // self._grid.num_blocks
        received, positions = redistribute(
            layer, self._block_of(ids), ids, self._rows.start + np.arange(len(ids))
        )
        self._positions = self._shared(positions[np.argsort(received)])
        (inputs,) = redistribute(layer, self._block_of(ids[chosen]), ids[chosen])
        self._inputs = self._shared(np.sort(inputs))

    @collective
    def _index_edges(self, share: EdgeShare) -> None:
        """Share the neighbours of all nodes, in the order of their ids, and the data of edges."""
        with agree(self._grid.world):
            if self._rows.num_rows > np.iinfo(np.int32).max:
                raise InputError(f"{self._rows.num_rows} nodes: sampling numbers them with 31 bits")
        self._of_nodes, of_edges = self._tensors(share.num_nodes(), share.numbers.shape[1])
        sources, targets = share.numbers.numpy()
        sources, targets = share.ids[sources], share.node_ids[targets]
        names = of_edges.get("e_id", np.arange(len(targets)))
        targets, sources, names, *values = redistribute(
            self._grid.layer, self._block_of(targets), targets, sources, names, *of_edges.values()
        )
        order = np.lexsort((names, sources, targets))
        targets, sources = targets[order], sources[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (np.diff(targets) != 0) | (np.diff(sources) != 0)
        start, stop = self._bounds[self._grid.block : self._grid.block + 2]
        degrees = np.bincount(targets[first] - start, minlength=stop - start)
        columns = self._shared(sources[first].astype(np.int32))
        self._topology = Topology(_ends(self._shared(degrees)), columns)
        parallel = np.diff(np.append(np.flatnonzero(first), len(order)))
        self._edge_ends = _ends(self._shared(parallel))
        self._of_edges = {
            key: self._shared(value[order]) for key, value in zip(of_edges, values, strict=True)
        }

    @collective
    def _tensors(self, num_nodes: int, num_edges: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the arrays with a row for each node, and for each edge, on all ranks."""
        of_nodes, of_edges, layer = {}, {}, self._grid.layer
        for key, value in self._data.items():
            if isinstance(value, EdgeList) or not isinstance(value, Tensor) or not value.dim():
                continue
            # If every rank has as many edges as nodes, decide by the name.
            is_node = all_ranks(layer, len(value) == num_nodes)
            is_edge = all_ranks(layer, len(value) == num_edges)
            if is_node and not (is_edge and (key == "e_id" or "edge" in key)):
                of_nodes[key] = value.detach().numpy()
            elif is_edge:
                of_edges[key] = value.detach().numpy()
        return of_nodes, of_edges

    def _block_of(self, ids: GlobalIndices) -> LocalIndices:
        return (np.searchsorted(self._bounds, ids, side="right") - 1).astype(np.int32)

    @collective
    def _shared(self, share: Array) -> Array:
        """Return the concatenation over ranks, stored once on every host."""
        shape = share.shape[1:]
        flat = share if not shape else share.reshape(len(share), math.prod(shape))
        return share_on_hosts(self._grid, f"loader.{next(_numbers)}", flat).reshape(-1, *shape)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return math.ceil(len(self._inputs) / self._batch_size)

    @collective
    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        order = np.arange(len(self._inputs))
        if self._shuffle:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(len(order))
        size, first = self._batch_size, self._epoch * len(self)
        parts = (
            (order[number * size : (number + 1) * size], first + number)
            for number in range(len(self))
        )
        # A thread samples the next batch while one is in use; only this thread communicates.
        with Prefetch(self._drawn, parts, threads=1, depth=1) as samples:
            for drawn in samples:
                yield self._batch(drawn)

    def _drawn(self, part: tuple[GlobalIndices, int]) -> _Drawn:
        """Sample this rank's share of a batch, given its nodes to predict and its number."""
        inputs, number = part
        # Give a rank nodes that are stored together, so that it fetches fewer rows.
        inputs = inputs[np.argsort(self._positions[self._inputs[inputs]])]
        inputs = np.sort(np.array_split(inputs, self._grid.num_blocks)[self._grid.block])
        seeds = self._inputs[inputs].astype(np.int32)
        nodes, sources, targets, entries = self._sample(seeds, number)
        # Expand entries to their parallel edges.
        starts = self._edge_ends[entries]
        counts = self._edge_ends[entries + 1] - starts
        chosen = spans(starts, counts)
        ends = np.stack([np.repeat(sources, counts), np.repeat(targets, counts)])
        of_edges = {key: torch.from_numpy(array[chosen]) for key, array in self._of_edges.items()}
        return _Drawn(inputs, nodes, torch.from_numpy(ends), of_edges)

    @collective
    def _batch(self, drawn: _Drawn) -> Any:
        """Fetch the rows of the nodes of a share of a batch."""
        rows = self._positions[drawn.nodes]
        order = np.argsort(rows)
        request = RowRequest.make(self._grid.layer, self._rows, rows[order])
        fetched = dict(self._data.items()) | drawn.of_edges
        for key, value in self._of_nodes.items():
            arrived = request.rows(value)
            in_order = np.empty_like(arrived)
            in_order[order] = arrived
            fetched[key] = torch.from_numpy(in_order)
        fetched |= {
            "edge_index": drawn.ends,
            "n_id": torch.from_numpy(drawn.nodes.astype(np.int64)),
            "input_id": torch.from_numpy(drawn.inputs),
            "batch_size": BatchSize.of(len(drawn.inputs), self._grid),
            "num_nodes": len(drawn.nodes),
        }
        return type(self._data).from_dict(fetched)

    def _sample(
        self, seeds: LocalIndices, number: int
    ) -> tuple[LocalIndices, GlobalIndices, GlobalIndices, GlobalIndices]:
        """Return nodes, seeds first, and the sources, targets and numbers of sampled entries."""
        parts, entries, sources, targets = [seeds], [], [], []
        reached = frontier = seeds
        for fan_out in self._fan_outs:
            most = self._topology.num_nodes if fan_out == -1 else fan_out
            # One call for each hop, so that a node's sample does not depend on the hop.
            sampler = FanOutSampler(self._topology, self._seed, (most,))
            (layer,) = sampler.sample(number, frontier).layers
            pattern = layer.pattern
            sources.append(layer.inputs[pattern.indices])
            targets.append(frontier[pattern.entry_rows()])
            entries.append(pattern.entries)
            frontier = np.setdiff1d(layer.inputs, reached, assume_unique=True)
            reached = np.union1d(reached, frontier)
            parts.append(frontier)
        nodes = np.concatenate(parts)
        order = np.argsort(nodes)
        ends = [
            order[np.searchsorted(nodes, np.concatenate(ends), sorter=order)]
            for ends in (sources, targets)
        ]
        return nodes, ends[0], ends[1], np.concatenate(entries)


def _ends(counts: Offsets) -> Offsets:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _chosen(rows: Tensor | None, share: EdgeShare) -> GlobalIndices:
    """Return the numbers of the rows chosen by a mask, by numbers, or by None, all of them."""
    count = share.num_nodes()
    if rows is None:
        return np.arange(count)
    array = rows.detach().numpy()
    if array.dtype == np.bool_:
        if array.shape != (count,):
            raise InputError(f"input_nodes: a mask {array.shape}; this rank has {count} nodes")
        return np.flatnonzero(array)
    if array.size and not 0 <= array.min() <= array.max() < count:
        raise InputError(f"input_nodes: numbers outside of this rank's {count} nodes")
    return np.unique(array).astype(np.int64)
