"""The end of a layer in one pass: bias, rectifier, and dropout whose mask depends on names."""

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import DENSE, half_name, require_array
from hpcgnn.typing import Array, FloatArray, GlobalIndices


def finish_rows(
    x: Array,
    out: Array,
    *,
    bias: FloatArray | None = None,
    rectify: bool = False,
    draw: tuple[GlobalIndices, int, float] | None = None,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Write ``drop(rectify(x + bias))``, rounded once.

    Parameters
    ----------
    x
        ``(m, w)`` float32, float64, or bfloat16 as uint16.
    out
        The shape and dtype of `x`; may be `x` itself.
    bias
        ``(w,)`` float64 where `x` is, else float32; None: nothing.
    rectify
        Whether negative numbers become 0.
    draw
        ``row_ids``, key and p of `dropout_rows`; None: nothing is dropped.
    """
    require_array("x", x, 2, DENSE)
    require_array("out", out, 2, (x.dtype.name,), writable=True)
    if bias is not None:
        require_array("bias", bias, 1, ("float32", "float64"))
    row_ids, key, p = draw or (None, 0, 0.0)
    if row_ids is not None:
        require_array("row_ids", row_ids, 1, ("int64",))
    if not 0 <= key < 1 << 64:
        raise ValueError(f"key must be in [0, 2**64), not {key}")
    name = half_name("bfloat16", x)
    _kernels.finish_rows(x, bias, row_ids, key, p, rectify, out, threads, name, isa)


def finish_rows_gradient(
    gradient: Array,
    *,
    result: Array | None = None,
    scale: float = 1.0,
    out: Array | None = None,
    sums: FloatArray | None = None,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Write the gradient of `finish_rows` with `rectify`, and the sums of its columns.

    It is ``scale * gradient`` where the result is positive, else 0: dropout leaves nothing positive
    of what it drops. The sums are the same for any number of threads.

    Parameters
    ----------
    gradient
        ``(m, w)`` float32, float64, or bfloat16 as uint16: of the result.
    result
        What `finish_rows` wrote; None: all of it counts as positive.
    scale
        ``1 / (1 - p)`` of the draw.
    out
        The shape and dtype of `gradient`, which it may be; None: only the sums are wanted.
    sums
        ``(w,)`` float64 where `gradient` is, else float32; overwritten. None: not wanted.
    """
    require_array("gradient", gradient, 2, DENSE)
    if result is not None:
        require_array("result", result, 2, (gradient.dtype.name,))
    if out is not None:
        require_array("out", out, 2, (gradient.dtype.name,), writable=True)
    if sums is not None:
        require_array("sums", sums, 1, ("float32", "float64"), writable=True)
    name = half_name("bfloat16", gradient)
    _kernels.finish_rows_gradient(gradient, result, scale, out, sums, threads, name, isa)


def dropout_rows(
    x: Array,
    row_ids: GlobalIndices,
    key: int,
    p: float,
    out: Array,
    *,
    threads: int = 0,
) -> None:
    """Zero each element with probability p and divide the others by ``1 - p``.

    Whether element (i, c) survives depends only on `key`, ``row_ids[i]`` and c: the same at any
    number of ranks and threads, in every format, and again for the gradient.

    Parameters
    ----------
    x
        ``(m, w)`` float32, float64, or bfloat16 as uint16.
    row_ids
        ``(m,)`` int64 global names of the rows.
    key
        In ``[0, 2**64)``; another one for each layer and step.
    p
        In [0, 1]; 0 copies, 1 zeroes everything. Exact to ``2**-32``.
    out
        The shape and dtype of `x`; may be `x` itself.
    """
    finish_rows(x, out, draw=(row_ids, key, p), threads=threads)
