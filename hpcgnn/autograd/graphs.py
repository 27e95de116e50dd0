"""Sums, means, maxima and softmax sums over the nodes of graphs, whose nodes may lie on many ranks.

A rank reduces the nodes that it has of a graph to one row, a piece; the owner of the graph fetches
the pieces of all ranks and reduces these. So a graph costs a row for each rank that has nodes of
it, and results are those of one rank to rounding.

Shape suffixes: N local nodes, P pieces of this rank, R pieces that it fetches, G graphs that it
owns, H width.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd.moments import CountedSums
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.autograd.rows import fetch_rows
from hpcgnn.comm import RowRequest
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices, Mask


class GraphRows(ABC):
    """Which rows of a rank are of which of G graphs; it has numbers of some or all graphs."""

    @abstractmethod
    @collective
    def add(self, x: Tensor) -> Tensor:
        """Return (G, H) sums over the nodes (N, H) of each graph, without history."""

    @abstractmethod
    @collective
    def down(self, values: Tensor) -> Tensor:
        """Return (N, H) of values (G, H) those of each node's graph, without history."""


@dataclass(frozen=True, eq=False)
class CopiesOfGraph(GraphRows):
    """Copies of a graph, one behind the other; all ranks have the numbers of all G copies.

    `num_nodes` counts this rank's nodes of a copy, `sums` adds up an array over the ranks.
    """

    num_copies: int
    num_nodes: int
    sums: RankSums

    @collective
    @override
    def add(self, x: Tensor) -> Tensor:
        rows = x.reshape(self.num_copies, self.num_nodes, x.shape[1])
        added = rows.sum(1, dtype=torch.float64).cpu().numpy()
        self.sums(added)
        return torch.from_numpy(added).to(x)

    @override
    def down(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self.num_nodes, dim=0)


class GraphSums(CountedSums):
    """Sums over the rows of several graphs, which graph norm takes one by one."""

    def __init__(self, sums: RankSums, graphs: GraphRows) -> None:
        super().__init__(sums)
        self.graphs = graphs

    @override
    def counted(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class GraphMembers(GraphRows):
    """Which nodes are of which graph.

    `pieces` (N,) int64 are the piece of each node, `graphs` (R,) int64 the graph of each fetched
    piece, `ids` (G,) int64 the numbers of the graphs, rising, as dropout takes them. `request` is
    of pieces; None where this rank has all nodes of its graphs, so that R is P.
    """

    pieces: Tensor
    num_pieces: int
    graphs: Tensor
    ids: GlobalIndices
    request: RowRequest | None
    trace: TraceRecorder

    def of_nodes(self, chosen: Mask) -> "GraphMembers":
        """Return the members among the nodes of a mask (N,); a graph without any has rows of 0."""
        rows = torch.from_numpy(np.flatnonzero(chosen)).to(self.pieces.device)
        return replace(self, pieces=self.pieces[rows])

    @collective
    def at_nodes(self, values: Array) -> Array:
        """Return (N, ...) what the owner of each node's graph has for it, of values (G, ...)."""
        assert self.request is not None
        # Each piece is asked for once.
        pieces = self.request.add_back(values[self.graphs.cpu().numpy()])
        return pieces[self.pieces.cpu().numpy()]

    @property
    def num_graphs(self) -> int:
        """G."""
        return len(self.ids)

    @collective
    def up(self, pieces: Tensor) -> Tensor:
        """Return (R, H) of this rank's pieces (P, H), without history."""
        if self.request is None:
            return pieces
        with torch.no_grad():
            return fetch_rows(pieces, self.request, self.trace)

    @collective
    @override
    def down(self, values: Tensor) -> Tensor:
        pieces = values[self.graphs]
        if self.request is not None:
            sent, rows = self.request.num_from_others, pieces.cpu().numpy()
            size = sent * rows.shape[1] * rows.itemsize
            with self.trace.span("exchange.pairs_backward", rows=sent, bytes=size):
                pieces = torch.from_numpy(self.request.add_back(rows)).to(values.device)
        return pieces[self.pieces]

    @collective
    @override
    def add(self, x: Tensor) -> Tensor:
        pieces = x.new_zeros(self.num_pieces, x.shape[1]).index_add_(0, self.pieces, x)
        rows = self.up(pieces)
        return rows.new_zeros(self.num_graphs, rows.shape[1]).index_add_(0, self.graphs, rows)

    @collective
    def largest(self, x: Tensor) -> Tensor:
        """Return (G, H) the largest of the nodes (N, H) of each graph, 0 without; no history."""
        pieces = self.up(_largest(x, self.pieces, self.num_pieces))
        largest = _largest(pieces, self.graphs, self.num_graphs)
        return largest.masked_fill_(largest == -torch.inf, 0)


class _SumOfGraphs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, members: GraphRows) -> Tensor:
        ctx.members = members
        return arithmetic().added(members.add, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.members.down(gradients[0]), None


@collective
def sum_of_graphs(x: Tensor, members: GraphRows) -> Tensor:
    """Return (G, H) sums over the nodes (N, H) of each graph; its backward pass is collective."""
    return _SumOfGraphs.apply(x, members)  # type: ignore[no-untyped-call]


class _RowsAtNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, members: GraphRows) -> Tensor:
        ctx.members = members
        return members.down(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return arithmetic().added(ctx.members.add, gradients[0]), None


@collective
def rows_at_nodes(values: Tensor, members: GraphRows) -> Tensor:
    """Return (N, H) the row of each node's graph, of values (G, H).

    Its backward pass is collective.
    """
    return _RowsAtNodes.apply(values, members)  # type: ignore[no-untyped-call]


@collective
def mean_of_graphs(x: Tensor, members: GraphRows) -> Tensor:
    """Return (G, H) means over the nodes (N, H) of each graph; its backward pass is collective."""
    sums = sum_of_graphs(torch.cat([x, x.new_ones(len(x), 1)], dim=1), members)
    return sums[:, :-1] / sums[:, -1:].clamp(min=1)


@collective
def max_of_graphs(x: Tensor, members: GraphMembers) -> Tensor:
    """Return (G, H) maxima over the nodes (N, H) of each graph; its backward pass is collective.

    Nodes that share a maximum share its gradient equally, whatever ranks they are on.
    """
    largest = members.largest(x)
    hit = (x == members.down(largest)).to(x.dtype)
    sums, counts = sum_of_graphs(torch.cat([x * hit, hit], dim=1), members).chunk(2, dim=1)
    mean = sums / counts.detach().clamp(min=1)
    # A mean of equal numbers, without its rounding.
    return mean + (largest - mean).detach()


@collective
def softmax_of_graphs(x: Tensor, scores_N1: Tensor, members: GraphMembers) -> Tensor:
    """Return (G, H) sums of nodes (N, H), weighted by the softmax of scores over each graph.

    Its backward pass is collective.
    """
    shares = (scores_N1 - members.down(members.largest(scores_N1))).exp()
    sums = sum_of_graphs(torch.cat([x * shares, shares], dim=1), members)
    # The largest weight of a graph is 1, so that this is for graphs without nodes.
    return sums[:, :-1] / sums[:, -1:].clamp(min=1)


@torch.no_grad()
def _largest(x: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (count, H) the largest of each group's rows, -inf for a group without any."""
    largest = x.new_full((count, x.shape[1]), -torch.inf)
    return largest.scatter_reduce(0, groups[:, None].expand_as(x), x, "amax")
