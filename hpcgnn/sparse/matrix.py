"""A sparse matrix spread over ranks by block rows, split into what is here and what is elsewhere.

A rank's block row is ``D`` (columns of its own rows) and a remote part (columns owned elsewhere,
compressed to the ghosts that occur). Rows without ghost columns are *interior*: their products need
no communication. The remote part stores the boundary rows only, so no renumbering of nodes is
needed.
"""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.typing import FloatArray, GlobalIndices, Offsets

__all__ = ["DistCSR"]


@dataclass(frozen=True, eq=False)
class DistCSR:
    """One rank's block row.

    Parameters
    ----------
    row_map
        Owners of rows and columns (the matrix is square).
    diagonal
        (num_local, num_local) entries in own columns.
    remote
        (num_local, num_ghosts) entries in other ranks' columns; stores boundary rows only.
    ghosts
        (num_ghosts,) int64 increasing global rows that the remote columns stand for.
    """

    row_map: RowMap
    diagonal: LocalCSR
    remote: LocalCSR
    ghosts: GlobalIndices

    @classmethod
    def from_rows(
        cls,
        row_map: RowMap,
        indptr: Offsets,
        columns: GlobalIndices,
        values: FloatArray | None = None,
    ) -> "DistCSR":
        """Split this rank's rows, given with global columns.

        Not collective.

        Parameters
        ----------
        row_map
            Owners of rows and columns.
        indptr
            (num_local + 1,) int64 from 0.
        columns
            (nnz,) int64 global columns in [0, num_rows).
        values
            (nnz,) float32 or float64, or None for ones.

        Raises
        ------
        ValueError
            When the arrays do not fit each other or `row_map`.
        """
        if len(indptr) != row_map.num_local + 1 or indptr[-1] != len(columns):
            raise ValueError(
                f"{row_map.num_local} rows need {row_map.num_local + 1} offsets ending at "
                f"{len(columns)}, not {len(indptr)} ending at {indptr[-1]}"
            )
        if len(columns) and not 0 <= columns.min() <= columns.max() < row_map.num_rows:
            raise ValueError(f"columns must lie in [0, {row_map.num_rows})")
        local = row_map.is_local(columns)
        ghosts, ghost_columns = np.unique(columns[~local], return_inverse=True)
        diagonal = LocalCSR(
            _offsets_of(local, indptr),
            row_map.to_local(columns[local]),
            None if values is None else values[local],
            (row_map.num_local, row_map.num_local),
        )
        remote_offsets = _offsets_of(~local, indptr)
        boundary = np.flatnonzero(np.diff(remote_offsets)).astype(np.int32)
        remote = LocalCSR(
            np.append(remote_offsets[boundary], remote_offsets[-1]),
            ghost_columns.astype(np.int32),
            None if values is None else values[~local],
            (row_map.num_local, len(ghosts)),
            boundary,
        )
        return cls(row_map, diagonal, remote, ghosts)

    def with_values(self, diagonal: FloatArray | None, remote: FloatArray | None) -> "DistCSR":
        """Return the same pattern with other values; index arrays are shared.

        Not collective.
        """
        return DistCSR(
            self.row_map,
            self.diagonal.with_values(diagonal),
            self.remote.with_values(remote),
            self.ghosts,
        )

    @property
    def nnz(self) -> int:
        """Stored entries of this rank's rows."""
        return self.diagonal.nnz + self.remote.nnz

    @property
    def num_boundary(self) -> int:
        """Rows of this rank that read ghosts."""
        rows = self.remote.rows
        return 0 if rows is None else len(rows)


def _offsets_of(mask: np.ndarray[tuple[int], np.dtype[np.bool_]], indptr: Offsets) -> Offsets:
    """Return row offsets of the entries that `mask` keeps."""
    kept = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    offsets: Offsets = kept[indptr]
    return offsets
