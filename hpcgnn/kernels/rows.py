"""Packing and unpacking of rows for exchanges."""

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, WireFormat, execution
from hpcgnn.typing import Array, LocalIndices


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
    k)`` may repeat, None = all in order. `out` is ``(m, w)`` of the dtype of `x`, or uint16 beside
    float32 (rounds to nearest even) or the reverse (widens), and must not overlap `x`. `half` is
    not needed when both are uint16.
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
    """Add rows: ``out[rows[i]] += src[i]``, in ascending i for each row of `out`.

    The result is the same for any number of threads, repeated rows included. `src` is ``(m, w)``
    float32, float64, or 16-bit floats as uint16; `rows` ``(m,)`` int32 in ``[0, k)`` may repeat.
    `out` is ``(k, w)`` of the dtype of `src`, or float32 beside a 16-bit type, and must not overlap
    `src`. A 16-bit `out` is rounded after each addition, so prefer float32 where rows repeat.
    """
    threads, isa = execution(**run)
    _kernels.scatter_add_rows(src, rows, out, threads, half or "", isa)
