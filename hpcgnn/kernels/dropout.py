"""Dropout whose mask depends on names, so that it is the same on any number of ranks."""

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import require_array
from hpcgnn.typing import FloatArray, GlobalIndices

__all__ = ["dropout_rows"]


def dropout_rows(
    x: FloatArray,
    row_ids: GlobalIndices,
    key: int,
    p: float,
    out: FloatArray,
    *,
    threads: int = 0,
) -> None:
    """Zero each element with probability p and divide the others by ``1 - p``.

    Whether element (i, c) survives depends only on `key`, ``row_ids[i]`` and c: the same at any
    number of ranks and threads, in float32 and float64, and again for the gradient.

    Parameters
    ----------
    x
        ``(m, w)`` float32 or float64.
    row_ids
        ``(m,)`` int64 global names of the rows.
    key
        In ``[0, 2**64)``; another one for each layer and step.
    p
        In [0, 1]; 0 copies, 1 zeroes everything. Exact to ``2**-32``.
    out
        The shape and dtype of `x`; may be `x` itself.
    threads
        OpenMP threads, 0 = default.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, `p` or `key` out of range.
    """
    require_array("x", x, 2, ("float32", "float64"))
    require_array("row_ids", row_ids, 1, ("int64",))
    require_array("out", out, 2, (x.dtype.name,), writable=True)
    if not 0 <= key < 1 << 64:
        raise ValueError(f"key must be in [0, 2**64), not {key}")
    _kernels.dropout_rows(x, row_ids, key, p, out, threads)
