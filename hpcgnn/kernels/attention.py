"""Softmax attention over the edges of sparse blocks, on the CPU, and the state of its softmax.

Coefficients are computed on the fly: no per-edge tensor is ever stored. Operands are described
in `hpcgnn.kernels.operands`. All functions raise TypeError for a wrong dtype or an array that is
not C-contiguous, and ValueError for mismatched shapes, decreasing offsets, and rows or key words
out of range. `threads` is the number of OpenMP threads (0 = default) and does not change a bit of
the results; `isa` is one of `available_isas`, or "auto".
"""

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, WireFormat, execution
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
    """Write ``source[j, h] = <values[j, h, :], weights[h, :]>``, the source term of the logits.

    `values` (k, H * D) and `weights` (H, D) are those of `AdditiveScore`; `source` is (k, H).
    """
    _kernels.attention_scores(values, weights, source, threads, half or "")


def attention_forward(
    block: Block,
    score: Score,
    state: SoftmaxState,
    draw: Draw | None = None,
    **run: Unpack[Run],
) -> None:
    """Add the edges of a block to the softmax state of its rows (SAR paper, section 3.3).

    For the logit e of an edge and head, adds ``exp(e - top)`` to `total` and ``exp(e - top) *
    values[j, h, :]`` to `out`, after both are scaled to the new maximum `top`. `out` is not read
    where `top` is -inf.
    """
    forward = getattr(_kernels, f"{score.kind}_forward")
    forward(block, score, state, draw, score.half or "", *execution(**run))


def attention_backward(
    transposed: Block,
    score: Score,
    saved: SoftmaxGradient,
    gradients: Gradients,
    draw: Draw | None = None,
    **run: Unpack[Run],
) -> None:
    """Add the gradients that are accumulated by a walk over the columns of a block.

    Recomputes ``alpha = exp(e - lse)`` for each edge and head, and takes ``mask`` (0 or
    ``1 / (1 - p)``) from `draw`. The values gain ``alpha * mask * grad``. The gradient of the
    logit, ``alpha * (mask * <grad, z> - delta)``, flows on to all operands of an additive score,
    and for other scores to the values only (see `attention_backward_rows` for the rest).

    `transposed` is the *transpose* of the pattern, k rows as returned by `transpose_csr` (checked
    for additive scores); its `rows` and the ids of `draw` are still those of the block.
    """
    backward = getattr(_kernels, f"{score.kind}_backward")
    backward(transposed, score, saved, gradients, draw, score.half or "", *execution(**run))


def attention_backward_rows(
    block: Block,
    score: DynamicScore | ProductScore,
    saved: SoftmaxGradient,
    gradients: Gradients,
    draw: Draw | None = None,
    **run: Unpack[Run],
) -> None:
    """Add the gradients of target and vector, accumulated by a walk over the rows of a block."""
    backward = getattr(_kernels, f"{score.kind}_backward_rows")
    backward(block, score, saved, gradients, draw, score.half or "", *execution(**run))


def attention_shared_forward(
    block: Block,
    score: AdditiveScore,
    means: SharedMeans,
    draw: Draw | None = None,
    **run: Unpack[Run],
) -> None:
    """Write each row's attention-weighted means of the rows of x (`score.values`), one per head.

    A row of x is read from memory once for up to eight heads. The block holds all edges of its
    rows. Its offsets may start and end anywhere inside `indices`, which are checked.
    """
    _kernels.shared_forward(block, score, means, draw, *execution(**run))


def attention_shared_backward(
    block: Block,
    score: AdditiveScore,
    means: SharedMeans,
    gradients: Gradients,
    draw: Draw | None = None,
    **run: Unpack[Run],
) -> None:
    """Add the gradients of x, source and target that flow through the edges of some rows.

    The gradient of x is the part through the means only, without the part through the source.
    """
    _kernels.shared_backward(block, score, means, gradients, draw, *execution(**run))


def attention_merge(
    rows: LocalIndices | None, other: SoftmaxState, state: SoftmaxState, *, threads: int = 0
) -> None:
    """Merge the state of other edges of the same rows: exact, in any order.

    `rows` (m,) int32 gives the row of `state` that each row of `other` is merged into, without
    repeats; None means row i.
    """
    others, own = ((softmax.top, softmax.total, softmax.out) for softmax in (other, state))
    _kernels.attention_merge(rows, *others, *own, threads)


def attention_finish(
    state: SoftmaxState,
    *,
    into: FloatArray | None = None,
    bias: FloatArray | None = None,
    threads: int = 0,
) -> None:
    """Turn a state into the result, ``out / total + bias``; `top` becomes ``log(sum(exp(e)))``.

    Rows without edges get only the bias (H * D,), and -inf in `top`. The result overwrites `into`
    (R, H * D), which may be columns of a wider matrix; with None it overwrites `out`.
    """
    _kernels.attention_finish(state.top, state.total, state.out, into, bias, threads)


def attention_delta(
    grad: FloatArray,
    out: FloatArray,
    delta: FloatArray,
    *,
    bias: FloatArray | None = None,
    copy: FloatArray | None = None,
    threads: int = 0,
) -> None:
    """Write ``delta[r, h] = <grad[r, h, :], out[r, h, :]>``, (R, H), for a `SoftmaxGradient`.

    `out` (R, H * D) is the finished `out` and `grad` its gradient; both may be columns of wider
    matrices. `bias` (H * D,) is subtracted from `out`, which includes it; `copy` (R, H * D)
    receives a copy of `grad`.
    """
    _kernels.attention_delta(grad, out, bias, delta, copy, threads)
