"""Attention with logits of two terms (GAT) whose heads read the same rows, before projection.

Coefficients are computed on the fly: no tensor of edges exists at any time.
"""

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import require_array
from hpcgnn.kernels.attention_arguments import EdgeDropout, WeightDropout, native_dropout
from hpcgnn.typing import Array, FloatArray, LocalIndices, Offsets

__all__ = ["attention_shared_backward", "attention_shared_forward"]


def attention_shared_forward(
    indptr: Offsets,
    indices: LocalIndices,
    x: FloatArray,
    source: FloatArray,
    target: FloatArray,
    mean: FloatArray,
    lse: FloatArray,
    *,
    slope: float,
    dropout: WeightDropout | None = None,
    edge_dropout: EdgeDropout | None = None,
    heads_per_word: int = 1,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Write the means of the rows of `x` that each row attends to, one for each head.

    An edge of row i to column j has, for each head h, the logit
    ``e = leaky_relu(target[i, h] + source[j, h])``; `mean` is the softmax-weighted mean of
    ``x[j]``. A row of `x` is read from memory once for all heads, up to eight.

    Parameters
    ----------
    indptr, indices
        All edges of some rows: ``(m + 1,)`` int64 offsets, which may begin and end anywhere inside
        of `indices`, int32 rows of `x` (checked).
    x
        ``(k, F)`` float32 or float64; the other arrays have its dtype.
    source
        ``(k, H)`` share of the logits of each column.
    target
        ``(m, H)`` share of the logits of each row.
    mean
        ``(m, H, P)`` with P at least F: overwritten up to column F; zeros for rows without edges.
    lse
        ``(m, H)``, overwritten: log of the sum of the exponentiated logits, or -inf.
    slope
        Of the leaky rectifier for negative arguments.
    dropout, edge_dropout
        As for `attention_forward`, with the names of these m rows.
    heads_per_word
        So many heads draw from one word, the next from a word larger by so many golden ratios, as
        `EdgeDraw.of_heads` has it.
    threads
        OpenMP threads, 0 = default. The result is the same for any number.
    isa
        Instruction set, one of `available_isas`, or "auto".

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, `indices` out of range.
    """
    _check(indptr, indices, x, source=(source, 2), target=(target, 2))
    _check(indptr, indices, x, writable=True, mean=(mean, 3), lse=(lse, 2))
    names = native_dropout(dropout, edge_dropout)
    _kernels.attention_shared_forward(
        indptr, indices, x, source, target, mean, lse, slope, names, heads_per_word, threads, isa
    )


def attention_shared_backward(
    indptr: Offsets,
    indices: LocalIndices,
    x: FloatArray,
    source: FloatArray,
    target: FloatArray,
    mean: FloatArray,
    lse: FloatArray,
    grad: FloatArray,
    dx: FloatArray | None,
    dsource: FloatArray,
    dtarget: FloatArray,
    *,
    slope: float,
    dropout: WeightDropout | None = None,
    edge_dropout: EdgeDropout | None = None,
    heads_per_word: int = 1,
    threads: int = 0,
    isa: str = "auto",
) -> None:
    """Add the gradients of x, source and target that flow through the edges of some rows.

    Parameters
    ----------
    indptr, indices, x, source, target, slope, dropout, edge_dropout, heads_per_word
        As in `attention_shared_forward`.
    mean, lse
        What it returned.
    grad
        Gradient of `mean`, of its shape; its first F columns count.
    dx
        ``(k, F)``, added to: through the means, not through `source`. None: not wanted.
    dsource
        ``(S, k, H)``, added to: slices, whose sum is the gradient of `source`. At most S threads
        work on it.
    dtarget
        ``(m, H)``, added to.
    threads
        OpenMP threads, 0 = default. The result is the same for any number.
    isa
        Instruction set, one of `available_isas`, or "auto".

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, `indices` out of range.
    """
    _check(indptr, indices, x, source=(source, 2), target=(target, 2), lse=(lse, 2))
    _check(indptr, indices, x, mean=(mean, 3), grad=(grad, 3))
    _check(indptr, indices, x, writable=True, dsource=(dsource, 3), dtarget=(dtarget, 2))
    if dx is not None:
        _check(indptr, indices, x, writable=True, dx=(dx, 2))
    names = native_dropout(dropout, edge_dropout)
    _kernels.attention_shared_backward(
        indptr,
        indices,
        x,
        source,
        target,
        mean,
        lse,
        grad,
        dx,
        dsource,
        dtarget,
        slope,
        names,
        heads_per_word,
        threads,
        isa,
    )


def _check(
    indptr: Offsets,
    indices: LocalIndices,
    x: FloatArray,
    *,
    writable: bool = False,
    **arrays: tuple[Array, int],
) -> None:
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    require_array("x", x, 2, ("float32", "float64"))
    for name, (array, dimensions) in arrays.items():
        require_array(name, array, dimensions, (x.dtype.name,), writable=writable)
