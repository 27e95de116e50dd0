"""Attention with logits of two terms (GAT), over the edges of sparse blocks.

Coefficients are computed on the fly: no tensor of edges exists at any time.
"""

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import DENSE, Half, half_name, require_array
from hpcgnn.kernels.attention_arguments import (
    EdgeDropout,
    WeightDropout,
    check_block,
    check_floats,
    native_dropout,
)
from hpcgnn.typing import Array, FloatArray, LocalIndices, Offsets

__all__ = ["attention_backward", "attention_forward", "attention_scores"]


def attention_scores(
    z: Array,
    weights: FloatArray,
    source: FloatArray,
    *,
    threads: int = 0,
    half: Half | None = None,
) -> None:
    """Write ``source[j, h] = <z[j, h, :], weights[h, :]>``, the columns' share of the logits.

    Parameters
    ----------
    z
        ``(k, H * D)`` float32, float64, or 16-bit floats as uint16.
    weights
        ``(H, D)`` float64 when `z` is, else float32.
    source
        ``(k, H)`` of the dtype of `weights`, overwritten.
    threads
        OpenMP threads, 0 = default.
    half
        What uint16 `z` holds.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    require_array("z", z, 2, DENSE)
    check_floats(z, weights=weights)
    check_floats(z, writable=True, source=source)
    _kernels.attention_scores(z, weights, source, threads, half_name(half, z))


def attention_forward(
    indptr: Offsets,
    indices: LocalIndices,
    z: Array,
    source: FloatArray,
    target: FloatArray,
    top: FloatArray,
    total: FloatArray,
    out: FloatArray,
    *,
    slope: float,
    rows: LocalIndices | None = None,
    dropout: WeightDropout | None = None,
    edge_dropout: EdgeDropout | None = None,
    threads: int = 0,
    half: Half | None = None,
    isa: str = "auto",
) -> None:
    """Add the edges of a block to the softmax state of its rows (GAT; SAR paper, section 3.3).

    Row i of the block reaches state row ``r = rows[i]``. An edge to column j has, for each head h,
    the logit ``e = leaky_relu(target[r, h] + source[j, h])`` and adds ``exp(e - top)`` to `total`
    and ``exp(e - top) * z[j, h, :]`` to `out`, after both are scaled to the new maximum `top`.

    Parameters
    ----------
    indptr, indices
        ``(m + 1,)`` int64, ``(nnz,)`` int32 rows of `z`; not checked here, see `validate_csr`.
    z
        ``(k, H * D)`` values, a head after the other: float32, float64, or 16-bit floats as uint16.
        The other arrays are float64 when `z` is, else float32.
    source
        ``(k, H)`` share of the logits of each column.
    target
        ``(R, H)`` share of the logits of each row of the state.
    top, total, out
        ``(R, H)``, ``(R, H)``, ``(R, H * D)``: the state, updated. It begins with top = -inf and
        total = 0; `out` is not read where top is -inf.
    slope
        Of the leaky rectifier for negative arguments.
    rows
        ``(m,)`` int32 in ``[0, R)`` without repeats; None = row i, and then R = m.
    dropout
        ``(word, p, row_ids, column_ids)``: drop each weight of each head with probability p and
        divide the others by ``1 - p``. Dropped weights still count in `total`. Which ones is a
        function of word, ``row_ids[i]``, ``column_ids[j]`` and h alone; row_ids ``(m,)`` and
        column_ids ``(k,)`` are int64.
    edge_dropout
        ``(word, p)``: leave out each edge, with all its heads, before the softmax. Takes the names
        of `dropout`, whose p may be 0.
    threads
        OpenMP threads, 0 = default. The result is the same for any number.
    half
        What uint16 `z` holds.
    isa
        Instruction set, one of `available_isas`, or "auto".

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, `rows` out of range.
    """
    check_block(indptr, indices, z, rows)
    check_floats(z, source=source, target=target)
    check_floats(z, writable=True, top=top, total=total, out=out)
    _kernels.attention_forward(
        indptr,
        indices,
        z,
        source,
        target,
        top,
        total,
        out,
        slope,
        rows,
        native_dropout(dropout, edge_dropout),
        threads,
        half_name(half, z),
        isa,
    )


def attention_backward(
    indptr: Offsets,
    indices: LocalIndices,
    z: Array,
    source: FloatArray,
    target: FloatArray,
    lse: FloatArray,
    grad: FloatArray,
    delta: FloatArray,
    dz: FloatArray,
    dsource: FloatArray,
    dtarget: FloatArray,
    *,
    slope: float,
    rows: LocalIndices | None = None,
    weights: FloatArray | None = None,
    dweights: FloatArray | None = None,
    dropout: WeightDropout | None = None,
    edge_dropout: EdgeDropout | None = None,
    threads: int = 0,
    half: Half | None = None,
    isa: str = "auto",
) -> None:
    """Add the gradients of z, source and target that flow through the edges of a block.

    With ``alpha = exp(e - lse)`` computed again for each edge and head, and ``mask`` 0 or
    ``1 / (1 - p)`` by `dropout`: dz gains ``alpha * mask * grad``, and the logit before the
    rectifier has the gradient ``alpha * (mask * <grad, z> - delta) * leaky_relu'``, which dsource
    and dtarget gain.

    Parameters
    ----------
    indptr, indices
        The *transpose* of the pattern of `attention_forward`, as `transpose_csr` gives it:
        ``(k + 1,)`` int64, ``(nnz,)`` int32 rows of the block (checked).
    z, source, target, slope, rows, dropout, edge_dropout
        As in `attention_forward`; row_ids still name rows of the block, column_ids rows of `z`.
    lse
        ``(R, H)`` what `attention_finish` left in `top`.
    grad
        ``(R, H * D)`` gradient of the finished `out`.
    delta
        ``(R, H)`` from `attention_delta`.
    dz, dsource, dtarget
        ``(k, H * D)``, ``(k, H)``, ``(R, H)``: added to.
    weights, dweights
        ``(H, D)`` where source is ``attention_scores(z, weights)``: the gradient of source then
        goes on into dz and into dweights, while z and dz are in cache. None: source is an operand
        of its own.
    threads
        OpenMP threads, 0 = default. The result is the same for any number; at most 32 are used.
    half
        What uint16 `z` holds.
    isa
        Instruction set, one of `available_isas`, or "auto".

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, `indices` or `rows` out of range.
    """
    check_block(indptr, indices, z, rows)
    check_floats(z, source=source, target=target, lse=lse, grad=grad, delta=delta)
    check_floats(z, writable=True, dz=dz, dsource=dsource, dtarget=dtarget)
    if weights is not None:
        check_floats(z, weights=weights)
    if dweights is not None:
        check_floats(z, writable=True, dweights=dweights)
    _kernels.attention_backward(
        indptr,
        indices,
        z,
        source,
        target,
        lse,
        grad,
        delta,
        dz,
        dsource,
        dtarget,
        slope,
        rows,
        weights,
        dweights,
        native_dropout(dropout, edge_dropout),
        threads,
        half_name(half, z),
        isa,
    )
