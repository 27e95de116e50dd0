"""Pack and unpack rows for exchanges on the GPU."""

import numpy as np

from hpcgnn.kernels.arguments import DENSE, WireFormat
from hpcgnn.kernels.cuda.device import DeviceArray, pointer, require_array, storage_of
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name, tile_lanes, vector_width

_COPIES = {"float32": (4, 1), "float64": (2, 1), "bfloat16": (8, 1)}
_CONVERSIONS = {
    ("float32", "bfloat16"),
    ("bfloat16", "float32"),
    ("float32", "float16"),
    ("float16", "float32"),
}
_SUMS = {
    ("float32", "float32"): (4, 1),
    ("float64", "float64"): (2, 1),
    ("bfloat16", "float32"): (4, 1),
    ("float16", "float32"): (4, 1),
}


def gather_rows(
    x: DeviceArray, rows: DeviceArray | None, out: DeviceArray, *, half: WireFormat | None = None
) -> None:
    """Copy rows: ``out[i] = x[rows[i]]``, converting between float32 and 16-bit floats.

    The arguments are those of `hpcgnn.kernels.gather_rows`, with CuPy arrays; `rows` is not
    checked. Runs on CuPy's current stream.
    """
    require_array("x", x, 2, DENSE)
    require_array("out", out, 2, DENSE)
    if x.dtype == out.dtype == np.uint16:
        half = "bfloat16"  # A copy does not interpret the bits.
    pair = storage_of(x, half), storage_of(out, half)
    if pair[0] != pair[1] and pair not in _CONVERSIONS:
        raise TypeError(f"gather_rows on the GPU does not convert {pair[0]} to {pair[1]}")
    options = _COPIES[pair[0]] if pair[0] == pair[1] else (4, 1)
    _require_rows(rows, x.shape[0] if rows is None else rows.size, out.shape[0])
    fields, vector = _fields(x, rows, out, out.shape[0], options)
    kernel = f"gather_{short_name(pair[0])}_{short_name(pair[1])}_v{vector}"
    launch("rows", kernel, fields, items=out.shape[0], lanes=int(fields["lanes"]))


def scatter_add_rows(
    src: DeviceArray, rows: DeviceArray, out: DeviceArray, *, half: WireFormat | None = None
) -> None:
    """Add rows: ``out[rows[i]] += src[i]``, in any order where rows repeat.

    The arguments are those of `hpcgnn.kernels.scatter_add_rows`, with CuPy arrays, but `out` must
    not have 16 bits, and `rows` is not checked. Runs on CuPy's current stream.
    """
    require_array("src", src, 2, DENSE)
    require_array("out", out, 2, DENSE)
    pair = storage_of(src, half), storage_of(out, half)
    if pair not in _SUMS:
        raise TypeError(f"scatter_add_rows on the GPU does not add {pair[0]} to {pair[1]}")
    require_array("rows", rows, 1, ("int32",))
    _require_rows(rows, rows.size, src.shape[0])
    fields, vector = _fields(src, rows, out, src.shape[0], _SUMS[pair])
    kernel = f"scatter_add_{short_name(pair[0])}_v{vector}"
    launch("rows", kernel, fields, items=src.shape[0], lanes=int(fields["lanes"]))


def _fields(
    x: DeviceArray,
    rows: DeviceArray | None,
    out: DeviceArray,
    num_rows: int,
    options: tuple[int, ...],
) -> tuple[Fields, int]:
    """Return the kernel's argument struct, and the elements moved by one access."""
    if x.shape[1] != out.shape[1]:
        raise ValueError(f"out must have {x.shape[1]} columns, not {out.shape[1]}")
    width = int(x.shape[1])
    vector = vector_width(options, width, x, out)
    fields: Fields = {
        "x": pointer(x),
        "rows": pointer(rows),
        "out": pointer(out),
        "num_rows": num_rows,
        "width": width,
        "lanes": np.int32(tile_lanes(-(-width // vector))),
    }
    return fields, vector


def _require_rows(rows: DeviceArray | None, listed: int, stored: int) -> None:
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))
    if listed != stored:
        raise ValueError(f"{listed} rows are listed, but the array has {stored}")
