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
    bias: FloatArray | None = None,
    accumulate: bool = False,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Write ``rows matrix``, (m, n), to `out`, plus a `bias` (n,); or add it to `out`.

    It is added where `accumulate` is set, without a bias. `rows` are (m, k) and `matrix` is (k, n)
    with any strides; all are float32, or all float64. `rows`, `out` or both may be of 16 bits, in
    the format `half`, beside a float32 matrix and bias; sums are float32. The bits of a row depend
    on that row, the matrix and the bias only.
    """
    more = bias, accumulate, half or ""
    _kernels.dense_product(rows, matrix, out, *more, *execution(**run))


def dense_contraction(
    left: Array,
    right: Array,
    total: FloatArray,
    *,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Add ``leftᵀ right``, (k, n), to `total`, for `left` (m, k) and `right` (m, n).

    All are float32, or all float64; `left`, `right` or both may be of 16 bits, in the format
    `half`, beside a float32 total. The bits do not depend on the number of threads.
    """
    _kernels.dense_contraction(left, right, total, half or "", *execution(**run))
