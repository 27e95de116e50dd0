"""Attention whose logits see both rows of an edge (GATv2), over the edges of sparse blocks."""

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Half, half_name
from hpcgnn.kernels.attention_arguments import (
    EdgeDropout,
    WeightDropout,
    check_block,
    check_floats,
    native_dropout,
)
from hpcgnn.typing import Array, FloatArray, LocalIndices, Offsets

__all__ = ["attention_v2_backward_columns", "attention_v2_backward_rows", "attention_v2_forward"]


def attention_v2_forward(
    indptr: Offsets,
    indices: LocalIndices,
    z: Array,
    target: FloatArray,
    vector: FloatArray,
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
    """Add the edges of a block to the softmax state of its rows (GATv2).

    As `attention_forward`, with the logits
    ``e = <vector[h, :], leaky_relu(target[r, h, :] + z[j, h, :])>``.

    Parameters
    ----------
    indptr, indices, z, top, total, out, slope, rows, dropout, edge_dropout, threads, half, isa
        As in `attention_forward`.
    target
        ``(R, H * D)`` share of the rows of the state.
    vector
        ``(H, D)`` weights of the columns of each head.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, `rows` out of range.
    """
    check_block(indptr, indices, z, rows)
    check_floats(z, target=target, vector=vector)
    check_floats(z, writable=True, top=top, total=total, out=out)
    _kernels.attention_v2_forward(
        indptr,
        indices,
        z,
        target,
        vector,
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


def attention_v2_backward_rows(
    indptr: Offsets,
    indices: LocalIndices,
    z: Array,
    target: FloatArray,
    vector: FloatArray,
    lse: FloatArray,
    grad: FloatArray,
    delta: FloatArray,
    dtarget: FloatArray,
    dvector: FloatArray,
    *,
    slope: float,
    rows: LocalIndices | None = None,
    dropout: WeightDropout | None = None,
    edge_dropout: EdgeDropout | None = None,
    threads: int = 0,
    half: Half | None = None,
    isa: str = "auto",
) -> None:
    """Add the gradients of target and vector that flow through the edges of a block.

    Parameters
    ----------
    indptr, indices, z, target, vector, slope, rows, dropout, edge_dropout, threads, half, isa
        As in `attention_v2_forward`.
    lse, grad, delta
        As in `attention_backward`.
    dtarget, dvector
        ``(R, H * D)``, ``(H, D)``: added to.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, `rows` out of range.
    """
    check_block(indptr, indices, z, rows)
    check_floats(z, target=target, vector=vector, lse=lse, grad=grad, delta=delta)
    check_floats(z, writable=True, dtarget=dtarget, dvector=dvector)
    _kernels.attention_v2_backward_rows(
        indptr,
        indices,
        z,
        target,
        vector,
        lse,
        grad,
        delta,
        dtarget,
        dvector,
        slope,
        rows,
        native_dropout(dropout, edge_dropout),
        threads,
        half_name(half, z),
        isa,
    )


def attention_v2_backward_columns(
    indptr: Offsets,
    indices: LocalIndices,
    z: Array,
    target: FloatArray,
    vector: FloatArray,
    lse: FloatArray,
    grad: FloatArray,
    delta: FloatArray,
    dz: FloatArray,
    *,
    slope: float,
    rows: LocalIndices | None = None,
    dropout: WeightDropout | None = None,
    edge_dropout: EdgeDropout | None = None,
    threads: int = 0,
    half: Half | None = None,
    isa: str = "auto",
) -> None:
    """Add the gradient of z that flows through the edges of a block.

    Parameters
    ----------
    indptr, indices
        The transpose of the pattern, as in `attention_backward`; `indices` are not checked here.
    z, target, vector, lse, grad, delta, slope, rows, dropout, edge_dropout, threads, half, isa
        As in `attention_v2_backward_rows`.
    dz
        ``(k, H * D)``: added to.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, `rows` out of range.
    """
    check_block(indptr, indices, z, rows)
    check_floats(z, target=target, vector=vector, lse=lse, grad=grad, delta=delta)
    check_floats(z, writable=True, dz=dz)
    _kernels.attention_v2_backward_columns(
        indptr,
        indices,
        z,
        target,
        vector,
        lse,
        grad,
        delta,
        dz,
        slope,
        rows,
        native_dropout(dropout, edge_dropout),
        threads,
        half_name(half, z),
        isa,
    )
