"""Sums, means, maxima and softmax sums over the nodes of graphs, whose nodes may lie on many ranks.

A rank reduces the nodes that it has of a graph to one row, a piece; the owner of the graph fetches
the pieces of all ranks and reduces these. So a graph costs a row for each rank that has nodes of
it, and results are those of one rank to rounding.

Shape suffixes: N local nodes, P pieces of this rank, R pieces that it fetches, G graphs that it
owns, H width.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd.rows import fetch_rows
from hpcgnn.comm import RowRequest
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices, Mask


@dataclass(frozen=True, eq=False)
class GraphMembers:
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
    def gathered(self, rows: Tensor) -> Tensor:
        """Return (R, H) of this rank's pieces (P, H)."""
        return rows if self.request is None else fetch_rows(rows, self.request, self.trace)

    def per_piece(self, x: Tensor) -> Tensor:
        """Return (P, H) sums over the nodes (N, H) of each piece."""
        return x.new_zeros(self.num_pieces, x.shape[1]).index_add(0, self.pieces, x)

    def per_graph(self, rows: Tensor) -> Tensor:
        """Return (G, H) sums over the fetched pieces (R, H) of each graph."""
        return rows.new_zeros(self.num_graphs, rows.shape[1]).index_add(0, self.graphs, rows)


@collective
def sum_of_graphs(x: Tensor, members: GraphMembers) -> Tensor:
    """Return (G, H) sums over the nodes (N, H) of each graph; its backward pass is collective."""
    return members.per_graph(members.gathered(members.per_piece(x)))


@collective
def mean_of_graphs(x: Tensor, members: GraphMembers) -> Tensor:
    """Return (G, H) means over the nodes (N, H) of each graph; its backward pass is collective."""
    sums = sum_of_graphs(torch.cat([x, x.new_ones(len(x), 1)], dim=1), members)
    return sums[:, :-1] / sums[:, -1:].clamp(min=1)


@collective
def max_of_graphs(x: Tensor, members: GraphMembers) -> Tensor:
    """Return (G, H) maxima over the nodes (N, H) of each graph; its backward pass is collective.

    Nodes that share a maximum share its gradient equally, whatever ranks they are on.
    """
    largest = _largest(x, members.pieces, members.num_pieces)
    hit = (x == largest[members.pieces]).to(x.dtype)
    # How many nodes have it travels beside it, and their sum for the gradient.
    pieces = torch.cat([members.per_piece(x * hit), members.per_piece(hit), largest], dim=1)
    sums, counts, maxima = members.gathered(pieces).chunk(3, dim=1)
    found = _largest(maxima, members.graphs, members.num_graphs)
    hit = (maxima == found[members.graphs]).to(x.dtype)
    mean = members.per_graph(sums * hit) / members.per_graph(counts * hit).detach().clamp(min=1)
    # A mean of equal numbers, without its rounding.
    return mean + (found - mean).detach()


@collective
def softmax_of_graphs(x: Tensor, scores_N1: Tensor, members: GraphMembers) -> Tensor:
    """Return (G, H) sums of nodes (N, H), weighted by the softmax of scores over each graph.

    Its backward pass is collective.
    """
    # Each piece has its own largest score, for which owners make up: none overflows.
    largest = _largest(scores_N1, members.pieces, members.num_pieces)
    shares = (scores_N1 - largest[members.pieces]).exp()
    pieces = torch.cat([members.per_piece(x * shares), members.per_piece(shares), largest], dim=1)
    rows = members.gathered(pieces)
    maxima = rows[:, -1:].detach()
    factor = (maxima - _largest(maxima, members.graphs, members.num_graphs)[members.graphs]).exp()
    sums = members.per_graph(rows[:, :-1] * factor)
    # The largest weight of a graph is 1, so that this is for graphs without nodes.
    return sums[:, :-1] / sums[:, -1:].clamp(min=1)


@torch.no_grad()
def _largest(x: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (count, H) the largest of each group's rows, 0 for a group without any."""
    found = x.new_zeros(count, x.shape[1])
    return found.scatter_reduce(0, groups[:, None].expand_as(x), x, "amax", include_self=False)
