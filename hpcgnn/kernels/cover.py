"""Vertex covers of the off-diagonal blocks of a rank's rows, for the joint exchange."""

from dataclasses import dataclass

from hpcgnn.kernels import _kernels
from hpcgnn.typing import LocalIndices, Mask, Offsets

# Random blocks of this many entries took 2 to 10 s of one core; R-MAT blocks take far less.
EXACT_LIMIT = 1 << 24


@dataclass(frozen=True, eq=False)
class VertexCover:
    """Which entries of a rank's remote part are computed by fetching, and which by pushing.

    Attributes
    ----------
    fetched
        (num_columns,) bool: the column is in its block's cover, so its row is fetched.
    pushed
        (nnz,) bool: the entry's row is in the cover and its column is not. The owner of the column
        multiplies such entries, and pushes their sum for each row.
    fetched_rows, pushed_rows
        (num_peers,) int64 number of columns and of rows in the cover of each block: the rows and
        the partial sums that the peer sends.
    lower_bound
        (num_peers,) int64 least number of rows that any scheme must send; it equals fetched_rows +
        pushed_rows where the cover is minimum.
    """

    fetched: Mask
    pushed: Mask
    fetched_rows: Offsets
    pushed_rows: Offsets
    lower_bound: Offsets


def vertex_cover(
    indptr: Offsets,
    columns: LocalIndices,
    column_starts: Offsets,
    *,
    limit: int = EXACT_LIMIT,
    threads: int = 0,
) -> VertexCover:
    """Cover every entry of each block by its column or by its row, with as few of them as possible.

    The block of peer q holds the entries with a column in ``[column_starts[q], column_starts[q +
    1])``. Its minimum cover comes from a maximum matching (Hopcroft and Karp) by König's theorem;
    among minimum covers it is the one with most columns, so every non-empty column is fetched where
    pushing saves nothing. A cover is never larger than the number of non-empty columns or of
    non-empty rows. Each thread covers one block at a time; `threads` does not change the result.

    `indptr` (m + 1,) int64 are the offsets of rows. `columns` (nnz,) int32 are numbered peer by
    peer, and come in any order inside a row. `column_starts` (num_peers + 1,) int64 go from 0 to
    the number of columns. Blocks with more than `limit` entries are covered greedily by degree, and
    a matching that need not be maximum gives the lower bound: about twice as fast, and within 1 %
    of the minimum on random blocks.

    Raises `ValueError` for offsets that decrease or do not fit, columns out of range, or 2^31 or
    more rows and columns.
    """
    return VertexCover(*_kernels.vertex_cover(indptr, columns, column_starts, limit, threads))
