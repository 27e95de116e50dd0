"""The running state of a softmax: merged, finished, and what its gradient needs of the result."""

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import require_array
from hpcgnn.kernels.attention_arguments import check_floats, check_pitched
from hpcgnn.typing import FloatArray, LocalIndices

__all__ = ["attention_delta", "attention_finish", "attention_merge"]


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
    check_floats(out, other_top=other_top, other_total=other_total, other_out=other_out)
    check_floats(out, writable=True, top=top, total=total, out=out)
    _kernels.attention_merge(rows, other_top, other_total, other_out, top, total, out, threads)


def attention_finish(
    top: FloatArray,
    total: FloatArray,
    out: FloatArray,
    *,
    into: FloatArray | None = None,
    bias: FloatArray | None = None,
    threads: int = 0,
) -> None:
    """Turn a state into the result, ``out / total + bias``; `top` becomes ``log(sum(exp(e)))``.

    Rows without edges get the bias alone, and -inf in `top`. Shapes as in `attention_merge`.

    Parameters
    ----------
    top, total, out
        The state; `top` is overwritten.
    into
        ``(R, H * D)``, overwritten, perhaps columns of a wider matrix; None = `out` itself.
    bias
        ``(H * D,)``; None = nothing.
    threads
        OpenMP threads, 0 = default.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    check_floats(out, total=total)
    check_floats(out, writable=True, top=top, out=out)
    if into is not None:
        check_pitched(out, writable=True, into=into)
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
    """Write ``delta[r, h] = <grad[r, h, :], out[r, h, :]>``, which `attention_backward` takes.

    Parameters
    ----------
    grad, out
        ``(R, H * D)`` float32 or float64: the finished `out` and its gradient, perhaps columns of
        wider matrices.
    delta
        ``(R, H)``, overwritten.
    bias
        ``(H * D,)`` that `out` has in it, and is subtracted here; None = nothing.
    copy
        ``(R, H * D)`` that takes a copy of `grad`; None = no copy.
    threads
        OpenMP threads, 0 = default.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    check_pitched(out, grad=grad, out=out)
    check_floats(out, writable=True, delta=delta)
    if copy is not None:
        check_floats(out, writable=True, copy=copy)
    if bias is not None:
        require_array("bias", bias, 1, (out.dtype.name,))
    _kernels.attention_delta(grad, out, bias, delta, copy, threads)
