"""The running state of a softmax on the GPU: merged, finished, and what its gradient needs."""

import numpy as np

from hpcgnn.kernels.cuda.attention_fields import check_heads, check_state
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer, require_array
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name, tile_lanes

__all__ = ["attention_delta", "attention_finish", "attention_merge", "head_dots", "merge_states"]

_NAMES = "top", "total", "out"
_State = tuple[DeviceArray, DeviceArray, DeviceArray]


def attention_merge(
    rows: DeviceArray | None,
    other_top: DeviceArray,
    other_total: DeviceArray,
    other_out: DeviceArray,
    top: DeviceArray,
    total: DeviceArray,
    out: DeviceArray,
) -> None:
    """Merge the state of other edges of the same rows: exact, in any order.

    Arguments and meaning are those of `hpcgnn.kernels.attention_merge`, with CuPy arrays; `rows` is
    not checked. Runs on CuPy's current stream.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    num_rows, heads, width = check_state(out, top, total)
    count = other_top.shape[0]
    check_heads(out, (count, heads), other_top=other_top, other_total=other_total)
    check_heads(out, (count, heads * width), other_out=other_out)
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))
    if count != (num_rows if rows is None else rows.size):
        raise ValueError(f"{count} rows of the other state do not match the rows that they join")
    merge_states((top, total, out), (other_top, other_total, other_out), rows, count, None)


def merge_states(
    state: _State,
    other: _State,
    rows: DeviceArray | None,
    count: int,
    places: tuple[DeviceArray, DeviceArray] | None,
) -> None:
    """Merge `count` items of `other`, each one row or, by `places`, several in order.

    Parameters
    ----------
    places
        ``(count + 1,)`` int64 first row of each item, and ``(count,)`` int32 row of the block.
    """
    starts, block_rows = places or (None, None)
    heads = int(state[0].shape[1])
    width = int(state[2].shape[1]) // heads if heads > 0 else 0
    lanes = tile_lanes(width)
    fields: Fields = {
        "state": dict(zip(_NAMES, map(pointer, state), strict=True)),
        "other": dict(zip(_NAMES, map(pointer, other), strict=True)),
        "starts": pointer(starts),
        "block_rows": pointer(block_rows),
        "rows": pointer(rows),
        "num_items": count,
        "num_heads": heads,
        "head_width": width,
        "lanes": np.int32(lanes),
    }
    kernel = f"attention_merge_{short_name(state[0].dtype.name)}"
    launch("attention_state", kernel, fields, items=count * heads, lanes=lanes)


def attention_finish(
    top: DeviceArray,
    total: DeviceArray,
    out: DeviceArray,
    *,
    into: DeviceArray | None = None,
    bias: DeviceArray | None = None,
) -> None:
    """Turn a state into the result, ``out / total + bias``; `top` becomes ``log(sum(exp(e)))``.

    Arguments and meaning are those of `hpcgnn.kernels.attention_finish`, with CuPy arrays. Runs on
    CuPy's current stream.

    Raises
    ------
    TypeError
        Wrong dtype, or an array whose rows are not contiguous.
    ValueError
        Shapes that do not match.
    """
    num_rows, heads, width = check_state(out, top, total)
    into = out if into is None else into
    if into.dtype != out.dtype or (into.size > 0 and into.strides[1] != into.itemsize):
        raise TypeError(f"into must be {out.dtype} with contiguous rows")
    if into.shape != out.shape:
        raise ValueError(f"into must have the shape {out.shape}, not {into.shape}")
    _check_bias(bias, out)
    lanes = tile_lanes(width)
    fields: Fields = {
        "state": dict(zip(_NAMES, map(pointer, (top, total, out)), strict=True)),
        "into": pointer(into),
        "bias": pointer(bias),
        "num_rows": num_rows,
        "num_heads": heads,
        "head_width": width,
        "pitch": into.strides[0] // into.itemsize,
        "lanes": np.int32(lanes),
    }
    kernel = f"attention_finish_{short_name(out.dtype.name)}"
    launch("attention_state", kernel, fields, items=num_rows * heads, lanes=lanes)


def attention_delta(
    grad: DeviceArray,
    out: DeviceArray,
    delta: DeviceArray,
    *,
    bias: DeviceArray | None = None,
    copy: DeviceArray | None = None,
) -> None:
    """Write ``delta[r, h] = <grad[r, h, :], out[r, h, :]>``, which `attention_backward` takes.

    Arguments and meaning are those of `hpcgnn.kernels.attention_delta`, with CuPy arrays; columns
    of a wider matrix are copied. Runs on CuPy's current stream.

    Raises
    ------
    TypeError
        Wrong dtype, or a `delta` or `copy` that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    grad, out = (load_cupy().ascontiguousarray(each) for each in (grad, out))
    if copy is not None:
        check_heads(out, out.shape, copy=copy)
        copy[...] = grad
    require_array("delta", delta, 2, (out.dtype.name,))
    require_array("out", out, 2, ("float32", "float64"))
    check_heads(out, out.shape, grad=grad)
    _check_bias(bias, out)
    heads = delta.shape[1]
    if delta.shape[0] != out.shape[0] or (heads > 0 and out.shape[1] % heads != 0):
        raise ValueError(f"delta has the shape {delta.shape} beside an out of {out.shape}")
    head_dots(grad, out, bias, delta, out.dtype.name, by_row=True)


def head_dots(
    x: DeviceArray,
    y: DeviceArray,
    bias: DeviceArray | None,
    out: DeviceArray,
    element: str,
    *,
    by_row: bool,
) -> None:
    """Write ``out[i, h] = <x[i, h, :], y[i, h, :] - bias[h, :]>``, of checked arrays.

    Parameters
    ----------
    by_row
        Whether `y` has the shape of `x`; otherwise it is ``(H, D)``, the same for all rows.
    """
    num_rows, heads = out.shape
    width = x.shape[1] // heads if heads > 0 else 0
    lanes = tile_lanes(width)
    fields: Fields = {
        "x": pointer(x),
        "y": pointer(y),
        "bias": pointer(bias),
        "out": pointer(out),
        "num_rows": num_rows,
        "num_heads": heads,
        "head_width": width,
        "y_rows": np.int32(by_row),
        "lanes": np.int32(lanes),
    }
    kernel = f"head_dots_{short_name(element)}"
    launch("attention_state", kernel, fields, items=num_rows * heads, lanes=lanes)


def _check_bias(bias: DeviceArray | None, out: DeviceArray) -> None:
    if bias is None:
        return
    require_array("bias", bias, 1, (out.dtype.name,))
    if bias.size != out.shape[1]:
        raise ValueError(f"bias must have {out.shape[1]} elements, not {bias.size}")
