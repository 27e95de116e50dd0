"""Edges that a graph is read without: what is predicted must not be what is aggregated over."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap, redistribute
from hpcgnn.sparse.assemble import PatternRows
from hpcgnn.spmd import collective
from hpcgnn.typing import GlobalIndices


@dataclass(frozen=True, eq=False)
class HiddenEdges:
    """Pairs of nodes between which this rank's rows have no edge, in either direction.

    Parameters
    ----------
    row_map
        Rows of this rank.
    keys
        Increasing int64 ``local row · num_rows + column`` of the pairs.
    """

    row_map: RowMap
    keys: GlobalIndices

    @classmethod
    @collective
    def between(
        cls, grid: ProcessGrid, row_map: RowMap, rows: GlobalIndices, columns: GlobalIndices
    ) -> "HiddenEdges":
        """Return the pairs of all ranks that concern this rank's rows.

        Parameters
        ----------
        grid, row_map
            The ranks, and the rows of this one.
        rows, columns
            (m,) int64 own rows and their partners of any rank.
        """
        # An edge lies with its row, its reverse with the partner.
        there, here = redistribute(grid.layer, row_map.owner(columns), columns, rows)
        first = np.concatenate([rows, there]) - row_map.start
        second = np.concatenate([columns, here])
        return cls(row_map, np.unique(first * row_map.num_rows + second))

    def drop(self, pattern: PatternRows) -> PatternRows:
        """Return rows of this rank without the edges between the pairs."""
        counts = np.diff(pattern.indptr)
        rows = np.repeat(np.arange(self.row_map.num_local, dtype=np.int64), counts)
        keys = rows * self.row_map.num_rows + pattern.columns
        kept = ~np.isin(keys, self.keys, assume_unique=True)
        counts = np.bincount(rows[kept], minlength=self.row_map.num_local)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        weights = None if pattern.weights is None else pattern.weights[kept]
        return PatternRows(indptr, pattern.columns[kept], weights)
