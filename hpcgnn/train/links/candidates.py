"""All nodes as targets: scored in blocks that fit memory.

Shape suffixes: Q queries of this rank, B nodes of a piece, H width of the embeddings.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn import watchdog
from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, redistribute, start_broadcast
from hpcgnn.nn import Scorer
from hpcgnn.spmd import collective
from hpcgnn.train.links.edges import Links
from hpcgnn.typing import FloatArray, GlobalIndices, Mask

BLOCK_BYTES = 64 << 20
"""Bound of a block of scores, and of a piece of embeddings."""

_PIECE_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Queries:
    """Sources and relations that targets are looked for.

    Parameters
    ----------
    rows, relations
        (Q,) int64 global rows, and which of the predicted relations.
    """

    rows: GlobalIndices
    relations: GlobalIndices

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class KnownTargets:
    """The targets that queries have in the graph, in any share.

    Parameters
    ----------
    groups
        (Q,) int64 number of the query among different ones.
    keys
        Increasing int64 ``group · num_rows + target``.
    """

    groups: GlobalIndices
    keys: GlobalIndices
    num_rows: int

    @classmethod
    @collective
    def of(
        cls, grid: ProcessGrid, row_map: RowMap, links: Links, queries: Queries
    ) -> "KnownTargets":
        """Ask the ranks for them."""
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
        positions = np.minimum(np.searchsorted(groups, entries), max(len(groups) - 1, 0))
        is_queried = groups[positions] == entries if len(groups) else np.zeros(0, np.bool_)
        keys = np.sort(positions[is_queried] * row_map.num_rows + targets[is_queried])
        return cls(numbers.astype(np.int64), keys, row_map.num_rows)

    def between(self, some: slice, first: int, count: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return the known targets of some queries among rows ``first .. first + count``.

        Returns
        -------
        places, columns
            (m,) int64 of the query among the chosen ones, and of the row behind `first`.
        """
        low = self.groups[some] * self.num_rows + first
        start, stop = np.searchsorted(self.keys, low), np.searchsorted(self.keys, low + count)
        lengths = stop - start
        query_of = np.repeat(np.arange(len(low)), lengths)
        nth = np.arange(len(query_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return query_of, self.keys[start[query_of] + nth] - low[query_of]


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Scores of some queries and a piece of the nodes.

    Parameters
    ----------
    queries
        Which of this rank's.
    first
        Global row of the piece's first node.
    scores
        (q, B) of the queries and the nodes.
    """

    queries: slice
    first: int
    scores: FloatArray

    @property
    def rows(self) -> slice:
        """The global rows of the piece."""
        return slice(self.first, self.first + self.scores.shape[1])

    def keep(self, mask: Mask) -> None:
        """Give all but the chosen (q, B) the lowest score of all."""
        self.scores[~mask] = -np.inf

    def set_aside(self, rows: GlobalIndices) -> None:
        """Give the node (q,) of each query, a global row, the lowest score of all."""
        columns = rows - self.first
        inside = np.flatnonzero((columns >= 0) & (columns < self.scores.shape[1]))
        self.scores[inside, columns[inside]] = -np.inf


@torch.no_grad()
@collective
def score_all(
    grid: ProcessGrid, row_map: RowMap, embeddings: Tensor, scorer: Scorer, queries: Queries
) -> Iterator[ScoreBlock]:
    """Yield the scores of this rank's queries and all nodes; ranks iterate to the end together.

    Every rank sees the embeddings of all nodes, a piece at a time.

    Parameters
    ----------
    embeddings
        (num_local, H) of this rank's nodes.
    scorer
        Equal on all ranks.
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
            some = slice(start, min(start + step, len(queries)))
            scores = scorer.against(rows_QH[some], relations_Q[some], targets_BH)
            yield ScoreBlock(some, first, scores.cpu().numpy())


def _pieces(
    grid: ProcessGrid, row_map: RowMap, embeddings: FloatArray
) -> Iterator[tuple[int, FloatArray]]:
    """Yield the rows of all ranks in order with the number of their first one; collective."""
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
