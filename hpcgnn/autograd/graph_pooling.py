"""Sums, means, maxima and softmax sums over the nodes of graphs, which may lie on many ranks.

A rank reduces its nodes of a graph to one row, a piece; the owner of the graph fetches the pieces
of all ranks and reduces them. A graph thus costs one row per rank that has nodes of it, and results
equal those of one rank up to rounding.

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
    """The assignment of a rank's rows to graphs; the rank holds values of G graphs, some or all."""

    @abstractmethod
    @collective
    def add(self, x: Tensor) -> Tensor:
        """Return the sums (G, H) over the nodes (N, H) of each graph, without autograd history."""

    @abstractmethod
    @collective
    def down(self, values: Tensor) -> Tensor:
        """Return, for each node, its graph's row (N, H) of values (G, H), without history."""


@dataclass(frozen=True, eq=False)
class CopiesOfGraph(GraphRows):
    """Copies of one graph, one after the other; all ranks hold the values of all G copies.

    `num_nodes` counts this rank's nodes of a copy, `sums` adds an array up over the ranks.
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
    """Sums over the rows of several graphs, which graph norm normalises separately."""

    def __init__(self, sums: RankSums, graphs: GraphRows) -> None:
        super().__init__(sums)
        self.graphs = graphs

    @override
    def counted(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class GraphMembers(GraphRows):
    """The assignment of nodes to graphs, whose nodes may be on several ranks.

    `pieces` (N,) int64 is the piece of each node, `graphs` (R,) int64 the graph of each fetched
    piece, `ids` (G,) int64 the ascending ids of the graphs, as used by dropout. `request` fetches
    pieces; None if this rank has all nodes of its graphs, so that R is P.
    """

    pieces: Tensor
    num_pieces: int
    graphs: Tensor
    ids: GlobalIndices
    request: RowRequest | None
    trace: TraceRecorder

    def of_nodes(self, chosen: Mask) -> "GraphMembers":
        """Return the members among the nodes of a mask (N,); a graph without any gets zero rows."""
        rows = torch.from_numpy(np.flatnonzero(chosen)).to(self.pieces.device)
        return replace(self, pieces=self.pieces[rows])

    @collective
    def at_nodes(self, values: Array) -> Array:
        """Return, for each node, its graph's value (N, ...) of the owners' values (G, ...)."""
        assert self.request is not None
        # Each piece is fetched once, so that adding back is sending back.
        pieces = self.request.add_back(values[self.graphs.cpu().numpy()])
        return pieces[self.pieces.cpu().numpy()]

    @property
    def num_graphs(self) -> int:
        """The number G of graphs."""
        return len(self.ids)

    @collective
    def up(self, pieces: Tensor) -> Tensor:
        """Return the fetched pieces (R, H) from the ranks' own pieces (P, H), without history."""
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
        """Return the maxima (G, H) of the nodes (N, H) of each graph, 0 without; no history."""
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
    """Return the sums (G, H) of the nodes (N, H) of each graph; its backward is collective."""
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
    """Return, for each node, its graph's row (N, H) of values (G, H).

    Its backward pass is collective.
    """
    return _RowsAtNodes.apply(values, members)  # type: ignore[no-untyped-call]


@collective
def mean_of_graphs(x: Tensor, members: GraphRows) -> Tensor:
    """Return the means (G, H) of the nodes (N, H) of each graph; its backward is collective."""
    sums = sum_of_graphs(torch.cat([x, x.new_ones(len(x), 1)], dim=1), members)
    return sums[:, :-1] / sums[:, -1:].clamp(min=1)


@collective
def max_of_graphs(x: Tensor, members: GraphMembers) -> Tensor:
    """Return the maxima (G, H) of the nodes (N, H) of each graph; its backward is collective.

    Nodes that share a maximum share its gradient equally, on whatever ranks they are.
    """
    largest = members.largest(x)
    hit = (x == members.down(largest)).to(x.dtype)
    sums, counts = sum_of_graphs(torch.cat([x * hit, hit], dim=1), members).chunk(2, dim=1)
    mean = sums / counts.detach().clamp(min=1)
    # The mean of equal numbers has the right gradient; correct the rounding of its value.
    return mean + (largest - mean).detach()


@collective
def softmax_of_graphs(x: Tensor, scores_N1: Tensor, members: GraphMembers) -> Tensor:
    """Return the sums (G, H) of nodes (N, H), weighted by the softmax of scores over each graph.

    Its backward pass is collective.
    """
    shares = (scores_N1 - members.down(members.largest(scores_N1))).exp()
    sums = sum_of_graphs(torch.cat([x * shares, shares], dim=1), members)
    # The largest weight of a graph is 1, so the clamp only affects graphs without nodes.
    return sums[:, :-1] / sums[:, -1:].clamp(min=1)


@torch.no_grad()
def _largest(x: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the maxima (count, H) of the rows of each group, -inf for an empty group."""
    largest = x.new_full((count, x.shape[1]), -torch.inf)
    return largest.scatter_reduce(0, groups[:, None].expand_as(x), x, "amax")
