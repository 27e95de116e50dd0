"""Softmax attention over the edges of sparse blocks, on the CPU, and the state of its softmax.

Coefficients are computed on the fly: no tensor of edges exists at any time. Operands are described
in `hpcgnn.kernels.operands`. All functions raise TypeError for a wrong dtype or an array that is
not C-contiguous, and ValueError for shapes that do not match, offsets that decrease, rows or words
out of range. `threads` are OpenMP threads, 0 = default, and change no bit; `isa` is one of
`available_isas`, or "auto".
"""

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import DENSE, WireFormat, half_name, require_array
from hpcgnn.kernels.operands import (
    AdditiveScore,
    Block,
    Draw,
    DynamicScore,
    Gradients,
    ProductScore,
    Score,
    SharedMeans,
    SoftmaxGradient,
    SoftmaxState,
    check_numbers,
)
from hpcgnn.typing import Array, FloatArray, LocalIndices


def attention_scores(
    values: Array,
    weights: FloatArray,
    source: FloatArray,
    *,
    threads: int = 0,
    half: WireFormat | None = None,
) -> None:
    """Write ``source[j, h] = <values[j, h, :], weights[h, :]>``, the columns' share of logits.

    Parameters
    ----------
    values, weights
        (k, H * D) and (H, D), as of `AdditiveScore`.
    source
        (k, H), overwritten.
    half
        What uint16 values hold.
    """
    require_array("z", values, 2, DENSE)
    _check_floats(values, weights=weights)
    _check_floats(values, True, source=source)
    _kernels.attention_scores(values, weights, source, threads, half_name(half, values))


def attention_forward(
    block: Block,
    score: Score,
    state: SoftmaxState,
    draw: Draw | None = None,
    *,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Add the edges of a block to the softmax state of its rows (SAR paper, section 3.3).

    For the logit e of an edge and head, adds ``exp(e - top)`` to `total` and ``exp(e - top) *
    values[j, h, :]`` to `out`, after both are scaled to the new maximum `top`. `out` is not read
    where `top` is -inf.
    """
    _check_edges(block, score, draw)
    _check_floats(score.values, False, **score.terms)
    _check_floats(score.values, True, top=state.top, total=state.total, out=state.out)
    forward = getattr(_kernels, f"{score.kind}_forward")
    forward(block, score, state, draw, half_name(score.half, score.values), threads, isa)


def attention_backward(
    transposed: Block,
    score: Score,
    saved: SoftmaxGradient,
    gradients: Gradients,
    draw: Draw | None = None,
    *,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Add the gradients that a walk over the columns of a block gives.

    With ``alpha = exp(e - lse)`` computed again for each edge and head, and ``mask`` 0 or
    ``1 / (1 - p)`` by `draw`: values gain ``alpha * mask * grad``, and the logit has the gradient
    ``alpha * (mask * <grad, z> - delta)``, which goes on through the score: of additive scores to
    all their operands, of the others to the values alone (see `attention_backward_rows`).

    Parameters
    ----------
    transposed
        The *transpose* of the pattern, k rows as `transpose_csr` gives them (checked for additive
        scores); its `rows` and the ids of `draw` are still those of the block.
    """
    written = {"dz": gradients.values}
    if score.kind == "additive":
        written |= {"dsource": gradients.source, "dtarget": gradients.targets}
        if gradients.edges is not None:
            written["dedges"] = gradients.edges
    _check_backward(transposed, score, saved, draw, written)
    backward = getattr(_kernels, f"{score.kind}_backward")
    kind = half_name(score.half, score.values)
    backward(transposed, score, saved, gradients, draw, kind, threads, isa)


def attention_backward_rows(
    block: Block,
    score: DynamicScore | ProductScore,
    saved: SoftmaxGradient,
    gradients: Gradients,
    draw: Draw | None = None,
    *,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Add the gradients of target and vector, which a walk over the rows of a block gives."""
    written: dict[str, FloatArray | None] = {"dtarget": gradients.targets}
    if score.kind == "dynamic":
        written["dvector"] = gradients.weights
    _check_backward(block, score, saved, draw, written)
    backward = getattr(_kernels, f"{score.kind}_backward_rows")
    kind = half_name(score.half, score.values)
    backward(block, score, saved, gradients, draw, kind, threads, isa)


def attention_shared_forward(
    block: Block,
    score: AdditiveScore,
    means: SharedMeans,
    draw: Draw | None = None,
    *,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Write the means of the rows of x, `score.values`, that each row attends to, for each head.

    A row of x is read from memory once for all heads, up to eight.

    Parameters
    ----------
    block
        All edges of some rows: the offsets may begin and end anywhere inside of `indices`, which
        are checked.
    means
        `mean` and `lse` are overwritten.
    """
    _check_shared(block, score, means, draw, writable=True)
    _kernels.shared_forward(block, score, means, draw, threads, isa)


def attention_shared_backward(
    block: Block,
    score: AdditiveScore,
    means: SharedMeans,
    gradients: Gradients,
    draw: Draw | None = None,
    *,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Add the gradients of x, source and target that flow through the edges of some rows.

    That of x goes through the means alone, not through the source.
    """
    _check_shared(block, score, means, draw)
    dtype = (score.values.dtype.name,)
    require_array("grad", means.grad, 3, dtype)
    require_array("dsource", gradients.source, 3, dtype, writable=True)
    require_array("dtarget", gradients.targets, 2, dtype, writable=True)
    if gradients.values is not None:
        require_array("dx", gradients.values, 2, dtype, writable=True)
    _kernels.shared_backward(block, score, means, gradients, draw, threads, isa)


def attention_merge(
    rows: LocalIndices | None, other: SoftmaxState, state: SoftmaxState, *, threads: int = 0
) -> None:
    """Merge the state of other edges of the same rows: exact, in any order.

    Parameters
    ----------
    rows
        (m,) int32, the row of `state` that each row of `other` joins, without repeats; None: row i.
    """
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))
    out = state.out
    require_array("out", out, 2, DENSE)
    _check_floats(out, other_top=other.top, other_total=other.total, other_out=other.out)
    _check_floats(out, True, top=state.top, total=state.total, out=out)
    theirs = other.top, other.total, other.out
    _kernels.attention_merge(rows, *theirs, state.top, state.total, out, threads)


def attention_finish(
    state: SoftmaxState,
    *,
    into: FloatArray | None = None,
    bias: FloatArray | None = None,
    threads: int = 0,
) -> None:
    """Turn a state into the result, ``out / total + bias``; `top` becomes ``log(sum(exp(e)))``.

    Rows without edges get the bias alone, and -inf in `top`.

    Parameters
    ----------
    into
        (R, H * D), overwritten, perhaps columns of a wider matrix; None: `out` itself.
    bias
        (H * D,); None: nothing.
    """
    top, total, out = state.top, state.total, state.out
    require_array("out", out, 2, DENSE)
    _check_floats(out, total=total)
    _check_floats(out, True, top=top, out=out)
    if into is not None:
        _check_pitched(out, writable=True, into=into)
    if bias is not None:
        require_array("bias", bias, 1, (out.dtype.name,))
    _kernels.attention_finish(top, total, out, into, bias, threads)


def attention_delta(
    grad: FloatArray,
    out: FloatArray,
    delta: FloatArray,
    *,
    bias: FloatArray | None = None,
    copy: FloatArray | None = None,
    threads: int = 0,
) -> None:
    """Write ``delta[r, h] = <grad[r, h, :], out[r, h, :]>`` for a `SoftmaxGradient`.

    Parameters
    ----------
    grad, out
        (R, H * D): the finished `out` and its gradient, perhaps columns of wider matrices.
    delta
        (R, H), overwritten.
    bias
        (H * D,) that `out` has in it, and is subtracted here; None: nothing.
    copy
        (R, H * D) that takes a copy of `grad`; None: no copy.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, not {type(out).__name__}")
    _check_pitched(out, grad=grad, out=out)
    _check_floats(out, True, delta=delta)
    if copy is not None:
        _check_floats(out, True, copy=copy)
    if bias is not None:
        require_array("bias", bias, 1, (out.dtype.name,))
    _kernels.attention_delta(grad, out, bias, delta, copy, threads)


def _check_edges(block: Block, score: Score, draw: Draw | None) -> None:
    check_numbers(score, draw)
    require_array("indptr", block.indptr, 1, ("int64",))
    require_array("indices", block.indices, 1, ("int32",))
    require_array("z", score.values, 2, DENSE)
    if block.rows is not None:
        require_array("rows", block.rows, 1, ("int32",))
    if draw is not None:
        require_array("row_ids", draw.row_ids, 1, ("int64",))
        require_array("column_ids", draw.column_ids, 1, ("int64",))


def _check_backward(
    block: Block,
    score: Score,
    saved: SoftmaxGradient,
    draw: Draw | None,
    written: dict[str, FloatArray | None],
) -> None:
    _check_edges(block, score, draw)
    _check_floats(score.values, False, **score.terms)
    _check_floats(score.values, lse=saved.lse, grad=saved.grad, delta=saved.delta)
    _check_floats(score.values, True, **written)


def _check_shared(
    block: Block,
    score: AdditiveScore,
    means: SharedMeans,
    draw: Draw | None,
    *,
    writable: bool = False,
) -> None:
    _check_edges(block, score, draw)
    require_array("x", score.values, 2, ("float32", "float64"))
    _check_floats(score.values, False, **score.terms)
    _check_floats(score.values, writable, lse=means.lse)
    require_array("mean", means.mean, 3, (score.values.dtype.name,), writable=writable)


def _check_floats(like: Array, writable: bool = False, /, **arrays: FloatArray | None) -> None:
    """Raise unless `arrays` are matrices, float64 when `like` is, else float32."""
    dtypes = ("float64",) if like.dtype == np.float64 else ("float32",)
    for name, array in arrays.items():
        require_array(name, array, 2, dtypes, writable=writable)


def _check_pitched(like: Array, *, writable: bool = False, **arrays: FloatArray) -> None:
    """Raise like `_check_floats`, but allow columns of a wider C-contiguous matrix."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim != 2 or array.size == 0:
            _check_floats(like, writable, **{name: array})
            continue
        if array.dtype != (np.float64 if like.dtype == np.float64 else np.float32):
            raise TypeError(f"{name} must be of the dtype of sums, not {array.dtype}")
        if array.strides[1] != array.itemsize and array.shape[1] > 1:
            raise TypeError(f"the columns of {name} must lie side by side")
        if writable and not array.flags.writeable:
            raise TypeError(f"{name} is written to but is read-only")
