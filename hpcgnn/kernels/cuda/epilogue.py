"""Bias, ReLU and dropout at the end of a layer on the GPU in one pass, and their gradient."""

import math

import numpy as np

from hpcgnn.kernels.arguments import DENSE, WireFormat
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer, require_array, storage_of
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name, tile_lanes, vector_width

_ENDINGS = {"f32": (4, 1), "f64": (2, 1), "bf16": (4, 1)}
# Column sums of the gradient: enough partial sums to keep the GPU busy, few enough to add quickly.
_LEAST_SHARES, _SUMMING_THREADS = 1 << 10, 1 << 13
_WARP = 32


def finish_rows(
    x: DeviceArray,
    out: DeviceArray,
    *,
    bias: DeviceArray | None = None,
    rectify: bool = False,
    draw: tuple[DeviceArray, int, float] | None = None,
    half: WireFormat = "bfloat16",
) -> None:
    """Write ``drop(rectify(x + bias))``, rounded once.

    The arguments are those of `hpcgnn.kernels.finish_rows`, with CuPy arrays, and the mask agrees
    bit for bit. Runs on CuPy's current stream.

    Raises `TypeError` for a wrong dtype or an array that is not C-contiguous, and `ValueError` for
    mismatched shapes, and p or key out of range.
    """
    kind = _epilogue_kind(x, half)
    _require_like("out", out, x)
    if bias is not None:
        _require_row("bias", bias, x)
    row_ids, key, p = draw or (None, 0, 0.0)
    if row_ids is not None:
        require_array("row_ids", row_ids, 1, ("int64",))
        if row_ids.size != x.shape[0]:
            raise ValueError(f"{row_ids.size} row_ids for {x.shape[0]} rows")
    if not 0 <= key < 1 << 64:
        raise ValueError(f"key must be in [0, 2**64), not {key}")
    lanes, vector = tile_lanes(-(-x.shape[1] // 2)), vector_width((2, 1), x.shape[1], x, out)
    fields: Fields = {
        "x": pointer(x),
        "bias": pointer(bias),
        "row_ids": pointer(row_ids),
        "out": pointer(out),
        "num_rows": x.shape[0],
        "width": x.shape[1],
        "key": key,
        "threshold": drop_threshold(p),
        "scale": 1.0 / (1.0 - p) if p < 1 else 0.0,
        "rectify": np.int32(rectify),
        "lanes": np.int32(lanes),
    }
    launch("rows", f"finish_{kind}_v{vector}", fields, items=x.shape[0], lanes=lanes)


def finish_rows_gradient(
    gradient: DeviceArray,
    *,
    result: DeviceArray | None = None,
    scale: float = 1.0,
    out: DeviceArray | None = None,
    sums: DeviceArray | None = None,
    half: WireFormat = "bfloat16",
) -> None:
    """Write the gradient of `finish_rows` with `rectify`, and the sums of its columns.

    The arguments are those of `hpcgnn.kernels.finish_rows_gradient`, with CuPy arrays. The order of
    the sums differs from the CPU's, but is always the same. Runs on CuPy's current stream.
    """
    kind = _epilogue_kind(gradient, half)
    for name, array in (("result", result), ("out", out)):
        if array is not None:
            _require_like(name, array, gradient)
    count, width = gradient.shape
    vector = vector_width(_ENDINGS[kind], width, gradient, result, out)
    lanes = tile_lanes(-(-width // vector))
    shares = None
    num_shares = count
    if sums is not None:
        _require_row("sums", sums, gradient)
        num_shares = max(1, min(count, max(_LEAST_SHARES, _SUMMING_THREADS // lanes)))
        shares = load_cupy().empty((num_shares, width), sums.dtype)
    fields: Fields = {
        "gradient": pointer(gradient),
        "result": pointer(result),
        "out": pointer(out),
        "sums": pointer(shares),
        "num_rows": count,
        "width": width,
        "num_shares": num_shares,
        "scale": float(scale),
        "lanes": np.int32(lanes),
    }
    launch("rows", f"finish_gradient_{kind}_v{vector}", fields, items=num_shares, lanes=lanes)
    if sums is not None:
        fields = {
            "shares": pointer(shares),
            "sums": pointer(sums),
            "num_shares": num_shares,
            "width": width,
        }
        kernel = f"join_shares_{short_name(sums.dtype.name)}"
        launch("rows", kernel, fields, items=width, lanes=_WARP)


def dropout_rows(
    x: DeviceArray, row_ids: DeviceArray, key: int, p: float, out: DeviceArray
) -> None:
    """Zero each element with probability p and divide the others by ``1 - p``.

    The arguments are those of `hpcgnn.kernels.dropout_rows`, with CuPy arrays.
    """
    finish_rows(x, out, draw=(row_ids, key, p))


def drop_threshold(p: float) -> int:
    """Return the threshold for p in [0, 1]: 32 random bits below it drop an element."""
    if not 0 <= p <= 1:
        raise ValueError(f"p must be in [0, 1], not {p}")
    return int(math.ldexp(p, 32) + 0.5)


def _epilogue_kind(x: DeviceArray, half: WireFormat) -> str:
    require_array("rows", x, 2, DENSE)
    kind = storage_of(x, half)
    if kind == "float16":
        raise TypeError("finish_rows does not support float16 on the GPU; use bfloat16")
    return short_name(kind)


def _require_like(name: str, array: DeviceArray, x: DeviceArray) -> None:
    require_array(name, array, 2, (x.dtype.name,))
    if array.shape != x.shape:
        raise ValueError(f"{name} must have the shape {x.shape}, not {array.shape}")


def _require_row(name: str, array: DeviceArray, x: DeviceArray) -> None:
    require_array(name, array, 1, ("float64" if x.dtype == np.float64 else "float32",))
    if array.size != x.shape[1]:
        raise ValueError(f"{name} must have {x.shape[1]} elements, not {array.size}")
