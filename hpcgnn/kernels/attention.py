"""Softmax attention over the edges of sparse blocks, on the CPU, and the state of its softmax.

Coefficients are computed on the fly: no tensor of edges exists at any time. Operands are described
in `hpcgnn.kernels.operands`. All functions raise TypeError for a wrong dtype or an array that is
not C-contiguous, and ValueError for shapes that do not match, offsets that decrease, rows or words
out of range. `threads` are OpenMP threads, 0 = default, and change no bit; `isa` is one of
`available_isas`, or "auto".
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
    """Write ``source[j, h] = <values[j, h, :], weights[h, :]>``, the columns' share of logits.

    Values and weights, (k, H * D) and (H, D), are as of `AdditiveScore`; `source` is (k, H).
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
    """Add the gradients that a walk over the columns of a block gives.

    With ``alpha = exp(e - lse)`` computed again for each edge and head, and ``mask`` 0 or
    ``1 / (1 - p)`` by `draw`: values gain ``alpha * mask * grad``, and the logit has the gradient
    ``alpha * (mask * <grad, z> - delta)``, which goes on through the score: of additive scores to
    all their operands, of the others to the values alone (see `attention_backward_rows`).

    `transposed` is the *transpose* of the pattern, k rows as `transpose_csr` gives them (checked
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
    """Add the gradients of target and vector, which a walk over the rows of a block gives."""
    backward = getattr(_kernels, f"{score.kind}_backward_rows")
    backward(block, score, saved, gradients, draw, score.half or "", *execution(**run))


def attention_shared_forward(
    block: Block,
    score: AdditiveScore,
    means: SharedMeans,
    draw: Draw | None = None,
    **run: Unpack[Run],
) -> None:
    """Write the means of the rows of x, `score.values`, that each row attends to, for each head.

    A row of x is read from memory once for all heads, up to eight. The block has all edges of some
    rows: the offsets may begin and end anywhere inside of `indices`, which are checked.
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

    That of x goes through the means alone, not through the source.
    """
    _kernels.shared_backward(block, score, means, gradients, draw, *execution(**run))


def attention_merge(
    rows: LocalIndices | None, other: SoftmaxState, state: SoftmaxState, *, threads: int = 0
) -> None:
    """Merge the state of other edges of the same rows: exact, in any order.

    `rows` (m,) int32 are the row of `state` that each row of `other` joins, without repeats; None:
    row i.
    """
    others, own = ((each.top, each.total, each.out) for each in (other, state))
    _kernels.attention_merge(rows, *others, *own, threads)


def attention_finish(
    state: SoftmaxState,
    *,
    into: FloatArray | None = None,
    bias: FloatArray | None = None,
    threads: int = 0,
) -> None:
    """Turn a state into the result, ``out / total + bias``; `top` becomes ``log(sum(exp(e)))``.

    Rows without edges get the bias (H * D,) alone, and -inf in `top`. `into` (R, H * D) is
    overwritten, perhaps columns of a wider matrix; None: `out` itself.
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

    `grad` and `out` (R, H * D) are the finished `out` and its gradient, perhaps columns of wider
    matrices. `bias` (H * D,) is what `out` has in it, and is subtracted here; `copy` (R, H * D)
    takes a copy of `grad`.
    """
    _kernels.attention_delta(grad, out, bias, delta, copy, threads)
