"""Pack and unpack rows for exchanges: unchanged, in 16-bit floats, or quantised to 8, 4 or 2 bits.

A quantised row is a header, then one level per element, chosen by stochastic rounding. The header
holds the lowest level and the step between levels, both bfloat16. Rows of 2 bits have a header of
two bytes for every 64 elements, and their levels always span 0.
"""

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, WireFormat, execution
from hpcgnn.typing import Array, GlobalIndices, LocalIndices


def gather_rows(
    x: Array,
    rows: LocalIndices | None,
    out: Array,
    *,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Copy rows: ``out[i] = x[rows[i]]``, converting between float32 and 16-bit floats.

    `x` is ``(k, w)`` float32, float64, or 16-bit floats as uint16; `rows` ``(m,)`` int32 in ``[0,
    k)`` may repeat, None = all in order. `out` is ``(m, w)`` of the dtype of `x`, or uint16 if `x`
    is float32 (rounds to nearest even), or float32 if `x` is uint16 (widens). It must not overlap
    `x`. `half` is not needed if both are uint16.
    """
    threads, isa = execution(**run)
    _kernels.gather_rows(x, rows, out, threads, half or "", isa)


def scatter_add_rows(
    src: Array,
    rows: LocalIndices,
    out: Array,
    *,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Add rows: ``out[rows[i]] += src[i]``, in order of ascending i for each row of `out`.

    The result is the same for any number of threads, repeated rows included. `src` is ``(m, w)``
    float32, float64, or 16-bit floats as uint16; `rows` ``(m,)`` int32 in ``[0, k)`` may repeat.
    `out` is ``(k, w)`` of the dtype of `src`, or float32 beside a 16-bit type, and must not overlap
    `src`. A 16-bit `out` is rounded after each addition, so prefer float32 where rows repeat.
    """
    threads, isa = execution(**run)
    _kernels.scatter_add_rows(src, rows, out, threads, half or "", isa)


def integers(
    x: Array,
    out: Array,
    scales: Array,
    *,
    by_column: bool = False,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Round rows to integers of 8 bits for products: ``x[i] ≈ scales[i] * out[i]``.

    The largest size of a row becomes 127; a row with a number that is not finite has scale NaN.
    With `by_column` columns have scales: ``x[:, c] ≈ scales[c] * out[:, c]``. `x` is ``(m, w)``
    float32, or 16-bit floats as uint16 (see `half`), `out` ``(m, w)`` int8, and `scales` float32.
    """
    threads, isa = execution(**run)
    _kernels.integers(x, out, scales, by_column, threads, half or "", isa)


def scale_sums(
    sums: Array,
    row_scales: Array,
    column_scales: Array,
    out: Array,
    *,
    bias: Array | None = None,
    accumulate: bool = False,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Scale products of integers: ``out[i, c] (+)= sums[i, c] row_scales[i] column_scales[c]``.

    Adds `bias` ``(w,)`` if given. `sums` are ``(m, w)`` int32, the scales float32, and `out` is
    ``(m, w)`` float32, or 16-bit floats as uint16 (see `half`).
    """
    scales, (threads, isa) = (row_scales, column_scales), execution(**run)
    _kernels.scale_sums(sums, *scales, bias, out, accumulate, threads, half or "", isa)


def row_dots(queries: Array, x: Array, rows: LocalIndices, out: Array, **run: Unpack[Run]) -> None:
    """Write the dot products ``out[e, k] = queries[e] · x[rows[e, k]]``.

    `queries` is ``(e, w)`` and `x` ``(r, w)``, both float32 or float64; `rows` ``(e, k)`` int32 in
    ``[0, r)`` may repeat, and `out` has its shape and the dtype of `x`. A product does not depend
    on the other rows nor on the number of threads.
    """
    _kernels.row_dots(queries, x, rows, out, *execution(**run))


def transpose_rows(x: Array, out: Array, *, threads: int = 0) -> None:
    """Write the transpose of `x` ``(m, w)`` to `out` ``(w, m)``, which must not overlap it.

    Both are float32, float64 or uint16. It goes by tiles that stay in cache: NumPy and torch, which
    copy whole rows or columns, take up to five times as long.
    """
    _kernels.transpose_rows(x, out, threads)


def quantised_bytes(width: int, bits: int) -> int:
    """Return the bytes of a packed row of `width` elements."""
    heads = -(-width // 64) * 2 if bits == 2 else 4 * (width > 0)
    return heads + (width * bits + 7) // 8


def quantise_rows(
    x: Array,
    row_ids: GlobalIndices,
    key: int,
    bits: int,
    packed: Array,
    **run: Unpack[Run],
) -> None:
    """Quantise rows: each element is rounded at random to one of the two levels next to it.

    The nearer level is likelier, so the expectation of the result of `dequantise_rows` is the
    element, up to 2^-16 of a step. The choice depends only on `key`, ``row_ids[i]``, the column and
    the row: it is the same for any number of ranks and threads. A non-finite row arrives as NaN.

    `x` is ``(m, w)`` float32, or bfloat16 as uint16; `row_ids` ``(m,)`` int64 are global ids of the
    rows; `key` is in ``[0, 2**64)``, a new one for each draw. `bits` is 8, 4 or 2, and `packed` is
    ``(m, quantised_bytes(w, bits))`` uint8. Both may be columns of wider arrays.
    """
    _kernels.quantise_rows(x, row_ids, key, bits, packed, *execution(**run))


def dequantise_rows(
    packed: Array,
    row_ids: GlobalIndices,
    key: int,
    bits: int,
    out: Array,
    **run: Unpack[Run],
) -> None:
    """Write the rows that `quantise_rows` packed with these ids and this key.

    With 2 bits and levels below 0, the random number that chose the level is subtracted again: the
    result lies between levels, within half a step of the element.

    `out` is ``(m, w)`` float32, or bfloat16 as uint16; it and `packed` may be columns of wider
    arrays.
    """
    _kernels.dequantise_rows(packed, row_ids, key, bits, out, *execution(**run))
