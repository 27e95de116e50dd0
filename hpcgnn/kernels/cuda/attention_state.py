"""The running state of a softmax on the GPU: merged, finished, and what its gradient needs."""

import numpy as np

from hpcgnn.kernels.cuda.attention_fields import check_heads, check_state
from hpcgnn.kernels.cuda.device import DeviceArray, pointer, require_array
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name, tile_lanes

__all__ = ["attention_delta", "attention_finish", "attention_merge", "head_dots", "merge_states"]

# top, total, out.
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
    fields = _state_fields(state, other, count)
    starts, block_rows = places or (None, None)
    fields |= {
        "starts": pointer(starts),
        "block_rows": pointer(block_rows),
        "rows": pointer(rows),
    }
    _launch_on_heads("attention_merge", state[0], fields)


def attention_finish(top: DeviceArray, total: DeviceArray, out: DeviceArray) -> None:
    """Turn a state into the result: ``out /= total``, and `top` becomes ``log(sum(exp(e)))``.

    Arguments and meaning are those of `hpcgnn.kernels.attention_finish`, with CuPy arrays. Runs on
    CuPy's current stream.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    num_rows, _, _ = check_state(out, top, total)
    state = top, total, out
    _launch_on_heads("attention_finish", top, _state_fields(state, state, num_rows))


def attention_delta(
    grad: DeviceArray,
    out: DeviceArray,
    delta: DeviceArray,
    *,
    bias: DeviceArray | None = None,
) -> None:
    """Write ``delta[r, h] = <grad[r, h, :], out[r, h, :]>``, which `attention_backward` takes.

    Arguments and meaning are those of `hpcgnn.kernels.attention_delta`, with CuPy arrays. Runs on
    CuPy's current stream.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    require_array("delta", delta, 2, (out.dtype.name,))
    require_array("out", out, 2, ("float32", "float64"))
    check_heads(out, out.shape, grad=grad)
    if bias is not None:
        require_array("bias", bias, 1, (out.dtype.name,))
        if bias.size != out.shape[1]:
            raise ValueError(f"bias must have {out.shape[1]} elements, not {bias.size}")
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


def _state_fields(state: _State, other: _State, count: int) -> Fields:
    names = "top", "total", "out"
    heads = int(state[0].shape[1])
    width = int(state[2].shape[1]) // heads if heads > 0 else 0
    return {
        "state": dict(zip(names, map(pointer, state), strict=True)),
        "other": dict(zip(names, map(pointer, other), strict=True)),
        "starts": 0,
        "block_rows": 0,
        "rows": 0,
        "num_items": count,
        "num_heads": heads,
        "head_width": width,
        "lanes": np.int32(tile_lanes(width)),
    }


def _launch_on_heads(name: str, top: DeviceArray, fields: Fields) -> None:
    kernel = f"{name}_{short_name(top.dtype.name)}"
    items = fields["num_items"] * fields["num_heads"]
    launch("attention_state", kernel, fields, items=items, lanes=int(fields["lanes"]))
