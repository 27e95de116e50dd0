"""Vertex covers of the off-diagonal blocks of a rank's rows, for the joint exchange."""

from dataclasses import dataclass

from hpcgnn.kernels import _kernels
from hpcgnn.typing import LocalIndices, Mask, Offsets

# Random blocks of this many entries took 2 to 10 s of one core; R-MAT blocks take far less.
EXACT_LIMIT = 1 << 24


@dataclass(frozen=True, eq=False)
class VertexCover:
    """For every entry of a rank's remote part, whether it is computed by fetching or by pushing.

    Attributes
    ----------
    fetched
        (num_columns,) bool: the column is in its block's cover, so its row is fetched.
    pushed
        (nnz,) bool: the entry's column is not in the cover, so its row is: the owner of the column
        multiplies the entry, and pushes the sum of such entries of the row.
    fetched_rows, pushed_rows
        (num_peers,) int64 columns and rows in the cover of each block: the rows and the partial
        sums that the peer sends.
    lower_bound
        (num_peers,) int64 rows that no scheme can go below; equals fetched_rows + pushed_rows where
        the cover is minimum.
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
    among minimum covers it is the one with most columns, so where pushing saves nothing every
    non-empty column is fetched. A cover is never larger than the number of non-empty columns or of
    non-empty rows. The result does not depend on `threads`, which have one block each at a time.

    Rows have offsets `indptr` (m + 1,) int64 and columns (nnz,) int32, grouped by peer in their
    numbering, in any order inside a row; `column_starts` (num_peers + 1,) int64 go from 0 to the
    number of columns. Blocks with more entries than `limit` get a cover by degrees, and a matching
    that need not be maximum as lower bound: about twice as fast, and within 1 % of the minimum on
    random blocks.

    Raises `ValueError` for offsets that decrease or do not fit, columns out of range, or 2^31 rows
    and columns.
    """
    return VertexCover(*_kernels.vertex_cover(indptr, columns, column_starts, limit, threads))
