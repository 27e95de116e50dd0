"""Bias, ReLU and dropout at the end of a layer, in one pass; masks depend on global row ids."""

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import Array, FloatArray, GlobalIndices


def finish_rows(
    x: Array,
    out: Array,
    *,
    bias: FloatArray | None = None,
    rectify: bool = False,
    draw: tuple[GlobalIndices, int, float] | None = None,
    **run: Unpack[Run],
) -> None:
    """Write ``drop(rectify(x + bias))``, rounded once.

    `x` is ``(m, w)`` float32, float64, or bfloat16 as uint16; `out` has its shape and dtype and may
    be `x` itself; `bias` is ``(w,)``, float64 if `x` is, else float32. With `rectify`, negative
    numbers become 0. `draw` is ``row_ids``, key and p of `dropout_rows`; None drops nothing.
    """
    row_ids, key, p = draw or (None, 0, 0.0)
    threads, isa = execution(**run)
    _kernels.finish_rows(x, bias, row_ids, key, p, rectify, out, threads, "bfloat16", isa)


def finish_rows_gradient(
    gradient: Array,
    *,
    result: Array | None = None,
    scale: float = 1.0,
    out: Array | None = None,
    sums: FloatArray | None = None,
    **run: Unpack[Run],
) -> None:
    """Write the gradient of `finish_rows` with `rectify`, and the sums of its columns.

    It is ``scale * gradient`` where the result is positive, else 0: dropped elements are 0 in the
    result. The sums are the same for any number of threads.

    `gradient` ``(m, w)``, the gradient of the result, is float32, float64, or bfloat16 as uint16.
    `result` is what `finish_rows` wrote; None counts every element as positive. `scale` is
    ``1 / (1 - p)`` of the draw. `out` has the shape and dtype of `gradient`, and may be `gradient`;
    `sums` are ``(w,)``, float64 if `gradient` is, else float32. Both are overwritten, and may be
    None.
    """
    threads, isa = execution(**run)
    _kernels.finish_rows_gradient(gradient, result, scale, out, sums, threads, "bfloat16", isa)


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

    Whether element (i, c) survives depends only on `key`, ``row_ids[i]`` and c: the mask is the
    same for any number of ranks and threads, in every format, and again for the gradient.

    `x` is ``(m, w)`` float32, float64, or bfloat16 as uint16; `row_ids` ``(m,)`` int64 are global
    ids of the rows; `key` is in ``[0, 2**64)``, a new one for each layer and step. p is in [0, 1],
    exact to ``2**-32``; 0 copies, 1 zeroes everything. `out` has the shape and dtype of `x`, and
    may be `x`.
    """
    finish_rows(x, out, draw=(row_ids, key, p), threads=threads)
