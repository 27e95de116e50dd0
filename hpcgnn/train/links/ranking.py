"""Rank validation and test edges: candidate targets, their scores, MRR, Hits@k and AUC.

Shape suffixes: Q queries of this rank, B nodes of a piece, H width of the embeddings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn import watchdog
from hpcgnn.autograd import arithmetic
from hpcgnn.comm import (
    ProcessGrid,
    RowMap,
    RowRequest,
    allreduce_max,
    allreduce_sum,
    redistribute,
    start_broadcast,
)
from hpcgnn.comm.collect_rows import owners_in_order
from hpcgnn.comm.row_map import found_among, spans
from hpcgnn.nn import Scorer
from hpcgnn.spmd import collective
from hpcgnn.train.links.edges import LinkEdges, Links
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Mask

BLOCK_BYTES = 64 << 20
"""The largest size in bytes of a block of scores, and of a piece of embeddings."""

_PIECE_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Queries:
    """Sources (Q,) int64, as global rows, and relations (Q,) int64 to find targets for."""

    rows: GlobalIndices
    relations: GlobalIndices

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class KnownTargets:
    """The targets that queries have in the graph, in any share.

    `groups` (Q,) int64 number the distinct queries; `keys` are ascending int64
    ``group · num_rows + target``.
    """

    groups: GlobalIndices
    keys: GlobalIndices
    num_rows: int

    @classmethod
    @collective
    def of(
        cls, grid: ProcessGrid, row_map: RowMap, links: Links, queries: Queries
    ) -> "KnownTargets":
        """Fetch the known targets from the ranks that own the sources."""
        all_edges = links.every
        ends = [all_edges.sources, all_edges.targets, all_edges.relations]
        if links.both_ways:
            swapped = all_edges.targets, all_edges.sources, all_edges.relations
            ends = [np.concatenate(both) for both in zip(ends, swapped, strict=True)]
        sources, targets, relations = redistribute(grid.layer, row_map.owner(ends[0]), *ends)
        local = row_map.to_local(sources)
        order = np.argsort(local, kind="stable")
        counts = np.bincount(local, minlength=row_map.num_local)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        requested, inverse = np.unique(queries.rows, return_inverse=True)
        request = RowRequest.make(grid.layer, row_map, requested)
        indptr, (targets, relations) = request.entries(indptr, targets[order], relations[order])
        width = max(len(links.names), 1)
        groups, numbers = np.unique(inverse * width + queries.relations, return_inverse=True)
        entries = np.repeat(np.arange(len(requested)), np.diff(indptr)) * width + relations
        positions, is_queried = found_among(groups, entries)
        # An undirected graph with a stored split may hold both directions of an edge.
        keys = np.unique(positions[is_queried] * row_map.num_rows + targets[is_queried])
        return cls(numbers.astype(np.int64), keys, row_map.num_rows)

    def between(self, chunk: slice, first: int, count: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return the known targets of a chunk of queries among rows ``first .. first + count``.

        They are given as two arrays (m,) int64: the index among these queries, and the row minus
        `first`.
        """
        low = self.groups[chunk] * self.num_rows + first
        start, stop = np.searchsorted(self.keys, low), np.searchsorted(self.keys, low + count)
        lengths = stop - start
        query_of = np.repeat(np.arange(len(low)), lengths)
        return query_of, self.keys[spans(start, lengths)] - low[query_of]


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Scores (q, B) of some queries of this rank for a piece of the nodes, starting at `first`."""

    queries: slice
    first: int
    scores: FloatArray

    @property
    def rows(self) -> slice:
        """The global rows of the piece."""
        return slice(self.first, self.first + self.scores.shape[1])

    def keep(self, mask: Mask) -> None:
        """Set the scores outside a mask (q, B) to minus infinity."""
        self.scores[~mask] = -np.inf

    def set_aside(self, rows: GlobalIndices) -> None:
        """Set the score of one node per query, a global row of `rows` (q,), to minus infinity."""
        columns = rows - self.first
        inside = np.flatnonzero((columns >= 0) & (columns < self.scores.shape[1]))
        self.scores[inside, columns[inside]] = -np.inf


@torch.no_grad()
@collective
def score_all(
    grid: ProcessGrid, row_map: RowMap, embeddings: Tensor, scorer: Scorer, queries: Queries
) -> Iterator[ScoreBlock]:
    """Yield the scores of this rank's queries for all nodes; all ranks must iterate to the end.

    Each rank receives the embeddings of all nodes, one piece at a time. `embeddings` (num_local, H)
    are those of this rank's nodes; the scorer is equal on all ranks.
    """
    requested, inverse = np.unique(queries.rows, return_inverse=True)
    request, local = RowRequest.make(grid.layer, row_map, requested), embeddings.cpu().numpy()
    put = torch.as_tensor
    rows_QH = put(request.rows(local)[inverse], device=embeddings.device)
    relations_Q = put(queries.relations, device=embeddings.device)
    for first, piece in _pieces(grid, row_map, local):
        targets_BH = put(piece, device=embeddings.device)
        step = max(1, BLOCK_BYTES // (len(piece) * local.itemsize))
        for start in range(0, len(queries), step):
            chunk = slice(start, min(start + step, len(queries)))
            scores = scorer.against(rows_QH[chunk], relations_Q[chunk], targets_BH)
            yield ScoreBlock(chunk, first, scores.cpu().numpy())


def _pieces(
    grid: ProcessGrid, row_map: RowMap, embeddings: FloatArray
) -> Iterator[tuple[int, FloatArray]]:
    """Yield pieces of the rows of all ranks, in order, with their first global row; collective."""
    row_bytes = embeddings.itemsize * max(1, embeddings.shape[1])
    step = max(1, min(_PIECE_ROWS, BLOCK_BYTES // row_bytes))
    for owner in range(row_map.num_blocks):
        for start in range(0, row_map.size_of(owner), step):
            count = min(step, row_map.size_of(owner) - start)
            if owner == row_map.block:
                piece = np.ascontiguousarray(embeddings[start : start + count])
            else:
                piece = np.empty((count, embeddings.shape[1]), embeddings.dtype)
            start_broadcast(grid.layer, piece, owner).wait()
            watchdog.beat()
            yield int(row_map.starts[owner]) + start, piece


HITS = (1, 10)
"""The ranks k of Hits@k."""

_CLOSE: Mapping[str, float] = {"float32": 2.0**-15, "float64": 2.0**-29}


@dataclass(frozen=True, eq=False)
class LinkScores:
    """Float64 scores of the edges (E,) of a rank and of their negatives (E, K).

    Scores count as equal if they differ by less than half of `close`, relative to the larger of
    their own size and the usual `size` of scores, which is the same on all ranks. Not relative to
    the largest score: a single node with a huge feature would make all others tie.
    """

    edges: FloatArray
    wrong: FloatArray
    size: float
    close: float

    @classmethod
    @collective
    def of(
        cls, grid: ProcessGrid, edges: FloatArray, wrong: FloatArray, dtype: str
    ) -> "LinkScores":
        """Return the scores, computed in `dtype` (float32 or float64).

        Nodes with equal inputs should tie, but the last bits of their scores depend on the rank
        that computed them. `close` keeps metrics independent of that.
        """
        largest = np.array([max(np.abs(scores).max(initial=0) for scores in (edges, wrong))])
        allreduce_max(grid.layer, largest)
        sizes = np.abs(edges[edges != 0])
        # Next to the geometric mean. Sums of whole numbers do not depend on the order of ranks.
        exponents = np.array([np.frexp(sizes)[1].sum(), len(sizes)], np.float64)
        allreduce_sum(grid.layer, exponents)
        usual = np.exp2(np.floor(exponents[0] / exponents[1])) if exponents[1] else 0.0
        # Sums that cancel leave rounding errors of the largest.
        least = max(2.0**-20 * float(largest[0]), np.finfo(np.float64).tiny)
        return cls(edges, wrong, max(float(usual), least), _CLOSE[dtype])

    @property
    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """The lowest and the highest scores (E,) that count as equal to those of the edges."""
        reach = self.close / 2 * np.maximum(np.abs(self.edges), self.size)
        return self.edges - reach, self.edges + reach

    def numbered(self) -> tuple[GlobalIndices, GlobalIndices]:
        """Return ascending whole numbers for the scores of edges (E,) and of negatives (E * K,).

        Scores that count as equal have the same number, or the next one.
        """
        # Of a run that diverges, which its losses end, scores are not finite.
        with np.errstate(invalid="ignore"):
            # Linear up to the usual size, logarithmic beyond.
            edges, wrong = (
                np.round(np.arcsinh(scores / self.size) / self.close).astype(np.int64)
                for scores in (self.edges, self.wrong.reshape(-1))
            )
        return edges, wrong

    def ranks(self) -> FloatArray:
        """Return the rank (E,) of each edge among its negatives; see `rank_metrics`."""
        low, high = self.bounds
        larger = (self.wrong > high[:, None]).sum(axis=1)
        return _rank(larger, (self.wrong >= low[:, None]).sum(axis=1))


def _rank(larger: Array, not_lower: Array) -> FloatArray:
    """Return ranks from the numbers of larger scores, and of larger or equal scores."""
    return 1 + (larger + not_lower) / 2


@collective
def rank_among_all(
    blocks: Iterator[ScoreBlock],
    edges: LinkEdges,
    scores: LinkScores,
    known_targets: KnownTargets,
    types: Array | None,
) -> tuple[FloatArray, FloatArray]:
    """Return two ranks (E,) float64 of each edge among all nodes of the target's type.

    The first is raw: among all nodes but the two of the edge. The second is filtered: it also
    leaves out the known targets of the source.

    `blocks` are scores of the edges' sources for all nodes, `types` (num_rows,) uint8 the node
    types of all rows; None without types.
    """
    low, high = scores.bounds
    counts = np.zeros((2, 2, len(edges)), np.int64)
    for block in blocks:
        queries, block_scores = block.queries, block.scores
        # Self loops are no candidates.
        block.set_aside(edges.sources[queries])
        block.set_aside(edges.targets[queries])
        if types is not None:
            block.keep(types[edges.targets[queries]][:, None] == types[block.rows])
        known_rows, columns = known_targets.between(queries, block.first, block_scores.shape[1])
        known_scores = block_scores[known_rows, columns]
        for (raw, filtered), bound, exceeds in zip(
            counts, (high[queries], low[queries]), (np.greater, np.greater_equal), strict=True
        ):
            # Compare in the dtype of the scores.
            bound = bound.astype(block_scores.dtype)
            number = np.count_nonzero(exceeds(block_scores, bound[:, None]), axis=1)
            is_above = exceeds(known_scores, bound[known_rows])
            raw[queries] += number
            filtered[queries] += number - np.bincount(known_rows[is_above], minlength=len(number))
    (larger, larger_new), (not_lower, not_lower_new) = counts
    return _rank(larger, not_lower), _rank(larger_new, not_lower_new)


@collective
def rank_metrics(grid: ProcessGrid, ranks: FloatArray) -> dict[str, float]:
    """Return mrr and hitsK from the ranks (E,) of the edges of all ranks; empty without edges.

    The rank of an edge is 1, plus the number of negatives with larger scores, plus half the number
    with equal scores.
    """
    columns = torch.from_numpy(np.stack([1 / ranks, *(ranks <= k for k in HITS)], axis=1))
    *sums, count = arithmetic().sums_and_count(columns, grid.sum_over_blocks)
    if count == 0:
        return {}
    means = np.array(sums) / count
    return dict(zip(("mrr", *(f"hits{k}" for k in HITS)), means.tolist(), strict=True))


@collective
def area_under_curve(grid: ProcessGrid, scores: LinkScores) -> float:
    """Return the probability that an edge's score exceeds that of a negative of any edge.

    Ties count half. The scores are sorted over all ranks, with ties on one rank.
    """
    # The keys of edges become odd.
    keys = np.concatenate(scores.numbered())
    owners = owners_in_order(grid.layer, keys)
    keys *= 2
    keys[: len(scores.edges)] += 1
    (keys,) = redistribute(grid.layer, owners, keys)
    keys.sort()
    first = np.flatnonzero(np.diff(keys >> 1, prepend=(keys[:1] >> 1) - 1)) if len(keys) else keys
    edges = np.add.reduceat(keys & 1, first) if len(first) else keys
    wrong = np.diff(np.append(first, len(keys))) - edges
    counts = np.array(grid.layer.allgather((int(edges.sum()), int(wrong.sum()))))
    below = np.cumsum(wrong) - wrong + counts[: grid.layer.rank, 1].sum()
    wins = np.array([float((edges * (below + wrong / 2)).sum())])
    allreduce_sum(grid.layer, wins)
    num_edges, num_wrong = counts.sum(axis=0)
    return float(wins[0]) / max(float(num_edges) * float(num_wrong), 1.0)
