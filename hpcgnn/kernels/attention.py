"""Softmax attention over the edges of sparse blocks, with coefficients computed on the fly.

Blocks add to a running state that `attention_merge` joins and `attention_finish` ends; no tensor of
edges exists at any time.
"""

from typing import TypeAlias

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import DENSE, Half, half_name, require_array
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

__all__ = [
    "WeightDropout",
    "attention_backward",
    "attention_delta",
    "attention_finish",
    "attention_forward",
    "attention_merge",
]

# Word, p, names of the block's rows and of its columns.
WeightDropout: TypeAlias = tuple[int, float, GlobalIndices, GlobalIndices]


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
    edge_dropout: tuple[int, float] | None = None,
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
    _check_block(indptr, indices, z, rows)
    _check_floats(z, source=source, target=target)
    _check_floats(z, writable=True, top=top, total=total, out=out)
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
        _native_dropout(dropout, edge_dropout),
        threads,
        half_name(half, z),
        isa,
    )


def attention_merge(
    rows: LocalIndices | None,
    other_top: FloatArray,
    other_total: FloatArray,
    other_out: FloatArray,
    top: FloatArray,
    total: FloatArray,
    out: FloatArray,
    *,
    threads: int = 0,
) -> None:
    """Merge the state of other edges of the same rows: exact, in any order.

    Parameters
    ----------
    rows
        ``(m,)`` int32, the row of the state that each row of the other one joins, without repeats;
        None = row i.
    other_top, other_total, other_out
        ``(m, H)``, ``(m, H)``, ``(m, H * D)`` float32 or float64, as `attention_forward` left them.
    top, total, out
        ``(R, H)``, ``(R, H)``, ``(R, H * D)``: the state, updated.
    threads
        OpenMP threads, 0 = default.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, or `rows` out of range.
    """
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))
    _check_floats(out, other_top=other_top, other_total=other_total, other_out=other_out)
    _check_floats(out, writable=True, top=top, total=total, out=out)
    _kernels.attention_merge(rows, other_top, other_total, other_out, top, total, out, threads)


def attention_finish(
    top: FloatArray, total: FloatArray, out: FloatArray, *, threads: int = 0
) -> None:
    """Turn a state into the result: ``out /= total``, and `top` becomes ``log(sum(exp(e)))``.

    Rows without edges get zeros in `out` and -inf in `top`. Shapes as in `attention_merge`.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    _check_floats(out, total=total)
    _check_floats(out, writable=True, top=top, out=out)
    _kernels.attention_finish(top, total, out, threads)


def attention_delta(
    grad: FloatArray, out: FloatArray, delta: FloatArray, *, threads: int = 0
) -> None:
    """Write ``delta[r, h] = <grad[r, h, :], out[r, h, :]>``, which `attention_backward` takes.

    Parameters
    ----------
    grad, out
        ``(R, H * D)`` float32 or float64: the finished `out` and its gradient.
    delta
        ``(R, H)``, overwritten.
    threads
        OpenMP threads, 0 = default.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    _check_floats(out, grad=grad, out=out)
    _check_floats(out, writable=True, delta=delta)
    _kernels.attention_delta(grad, out, delta, threads)


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
    dropout: WeightDropout | None = None,
    edge_dropout: tuple[int, float] | None = None,
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
    _check_block(indptr, indices, z, rows)
    _check_floats(z, source=source, target=target, lse=lse, grad=grad, delta=delta)
    _check_floats(z, writable=True, dz=dz, dsource=dsource, dtarget=dtarget)
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
        _native_dropout(dropout, edge_dropout),
        threads,
        half_name(half, z),
        isa,
    )


def _check_block(
    indptr: Offsets, indices: LocalIndices, z: Array, rows: LocalIndices | None
) -> None:
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    require_array("z", z, 2, DENSE)
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))


def _check_floats(like: Array, *, writable: bool = False, **arrays: FloatArray) -> None:
    dtypes = ("float64",) if like.dtype == np.float64 else ("float32",)
    for name, array in arrays.items():
        require_array(name, array, 2, dtypes, writable=writable)


def _native_dropout(
    dropout: WeightDropout | None, edge_dropout: tuple[int, float] | None
) -> tuple[int, float, GlobalIndices, GlobalIndices, int, float] | None:
    if dropout is None:
        if edge_dropout is not None:
            raise ValueError("edge_dropout needs the names that dropout holds")
        return None
    word, p, row_ids, column_ids = dropout
    require_array("row_ids", row_ids, 1, ("int64",))
    require_array("column_ids", column_ids, 1, ("int64",))
    edge_word, edge_p = edge_dropout or (0, 0.0)
    for each in (word, edge_word):
        if not 0 <= each < 1 << 64:
            raise ValueError(f"the word of a dropout must be in [0, 2**64), not {each}")
    return word, p, row_ids, column_ids, edge_word, edge_p
