"""Hide edges when a graph is read: edges to predict must not be used in aggregation."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, redistribute
from hpcgnn.sparse.assemble import PatternRows
from hpcgnn.spmd import collective
from hpcgnn.typing import GlobalIndices, Mask


@dataclass(frozen=True, eq=False)
class HiddenEdges:
    """Pairs of nodes whose edges, in both directions, are removed from this rank's rows.

    `keys` are their increasing int64 ``local row · num_rows + column``.
    """

    row_map: RowMap
    keys: GlobalIndices

    @classmethod
    @collective
    def between(
        cls, grid: ProcessGrid, row_map: RowMap, rows: GlobalIndices, columns: GlobalIndices
    ) -> "HiddenEdges":
        """Return the pairs of all ranks that concern this rank's rows.

        Each rank passes own `rows` (m,) int64 and their partners `columns`, owned by any rank.
        """
        # This rank has the edges in its rows, the partner's owner those in the reverse direction.
        targets, sources = redistribute(grid.layer, row_map.owner(columns), columns, rows)
        first = np.concatenate([rows, targets]) - row_map.start
        second = np.concatenate([columns, sources])
        return cls(row_map, np.unique(first * row_map.num_rows + second))

    def drop(self, pattern: PatternRows) -> PatternRows:
        """Return rows of this rank without the hidden edges."""
        return keep_edges(pattern, local_rows(pattern), self.keeps(pattern))

    def keeps(self, pattern: PatternRows) -> Mask:
        """Return a mask (nnz,) of the edges of this rank's rows to keep."""
        keys = local_rows(pattern) * self.row_map.num_rows + pattern.columns
        return ~np.isin(keys, self.keys, assume_unique=True)


@dataclass(frozen=True, eq=False)
class EdgesOutside:
    """All edges except self loops and those between two nodes of the set with mask `inside`."""

    grid: ProcessGrid
    row_map: RowMap
    inside: Mask

    @collective
    def drop(self, pattern: PatternRows) -> PatternRows:
        """Return rows of this rank without these edges."""
        return keep_edges(pattern, local_rows(pattern), self.keeps(pattern))

    @collective
    def keeps(self, pattern: PatternRows) -> Mask:
        """Return a mask (nnz,) of the edges of this rank's rows to keep."""
        requested, inverse = np.unique(pattern.columns, return_inverse=True)
        request = RowRequest.make(self.grid.layer, self.row_map, requested)
        sources = request.rows(self.inside.astype(np.uint8))[inverse] > 0
        rows = local_rows(pattern)
        loops = rows + self.row_map.start == pattern.columns
        return (self.inside[rows] & sources) | loops


def local_rows(pattern: PatternRows) -> GlobalIndices:
    """Return the local row of each entry."""
    counts = np.diff(pattern.indptr)
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def keep_edges(pattern: PatternRows, rows: GlobalIndices, kept: Mask) -> PatternRows:
    """Return the entries `kept` by a mask; `rows` are those of `local_rows`."""
    counts = np.bincount(rows[kept], minlength=len(pattern.indptr) - 1)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    weights = None if pattern.weights is None else pattern.weights[kept]
    return PatternRows(indptr, pattern.columns[kept], weights)
