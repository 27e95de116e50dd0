"""Dense products of many rows with a small matrix.

Where a result has few columns, BLAS libraries reach a third to two thirds of their speed, as they
wait for rows. These kernels fetch the next rows while a tile of sums stays in registers.
"""

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, WireFormat, execution
from hpcgnn.typing import Array, FloatArray


def dense_product(
    rows: Array,
    matrix: FloatArray,
    out: Array,
    *,
    accumulate: bool = False,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Write ``rows matrix``, (m, n), to `out`, or add it where `accumulate` is set.

    `rows` are (m, k) and `matrix` is (k, n) with any strides; all are float32, or all float64. With
    rows and `out` of 16 bits, in the format `half`, the matrix is float32, and so are the sums. The
    bits of a row depend on that row and the matrix only.
    """
    _kernels.dense_product(rows, matrix, out, accumulate, half or "", *execution(**run))


def dense_contraction(
    left: Array,
    right: Array,
    total: FloatArray,
    *,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Add ``leftᵀ right``, (k, n), to `total`, for `left` (m, k) and `right` (m, n).

    All are float32, or all float64; `left` and `right` of 16 bits, in the format `half`, have a
    float32 total. The bits do not depend on the number of threads.
    """
    _kernels.dense_contraction(left, right, total, half or "", *execution(**run))
