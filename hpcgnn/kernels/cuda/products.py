"""Sparse-dense matrix products on the GPU, parallel over neighbour groups."""

import numpy as np

from hpcgnn.kernels.arguments import DENSE, WireFormat
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer, require_array, storage_of
from hpcgnn.kernels.cuda.groups import DeviceGroups
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name, tile_lanes, vector_width
from hpcgnn.kernels.operands import SparseMatrix

_PAIRS = {
    ("float32", "float32"): (4, 1),
    ("float64", "float64"): (2, 1),
    ("float32", "bfloat16"): (4, 1),
    ("float32", "float16"): (4, 1),
    ("bfloat16", "bfloat16"): (8, 4, 1),
    ("bfloat16", "float32"): (8, 4, 1),
    ("float16", "float32"): (8, 4, 1),
}


def spmm(
    matrix: SparseMatrix,
    x: DeviceArray,
    out: DeviceArray,
    *,
    accumulate: bool = False,
    half: WireFormat | None = None,
) -> None:
    """Multiply a CSR matrix with a dense one: ``out[rows[i]] (+)= sum values[e] * x[indices[e]]``.

    The arguments are those of `hpcgnn.kernels.spmm`, with CuPy arrays; with float16 on one side the
    other must be float32. The product runs on CuPy's current stream. Indices and `rows` are not
    checked. Rows of more than one group are summed in any order, so their last bits may differ
    from run to run unless `out` has 16 bits; all other rows are reproducible.

    Raises `GpuUnavailableError` without CuPy, `TypeError` for a wrong dtype or pair of dtypes, or
    an array that is not C-contiguous, and `ValueError` for mismatched shapes.
    """
    pair = storage_of(x, half), storage_of(out, half)
    _check(matrix, x, out, pair)
    groups: DeviceGroups = matrix.groups or DeviceGroups.of(matrix.indptr)
    cupy, width = load_cupy(), int(x.shape[1])
    # Pieces of split rows are added in `out` itself unless its precision is lower than theirs.
    apart = pair[1] in ("bfloat16", "float16")
    pieces = cupy.empty((groups.host.num_pieces if apart else 0, width), np.float32)
    unstored = groups.empty_rows if apart else groups.unstored
    clear = unstored if not accumulate else unstored[:0]
    vector = vector_width(_PAIRS[pair], width, x, out, pieces)
    lanes = tile_lanes(-(-width // vector))
    fields: Fields = {
        "groups": groups.arguments,
        "indptr": pointer(matrix.indptr),
        "indices": pointer(matrix.indices),
        "values": pointer(matrix.values),
        "x": pointer(x),
        "out": pointer(out),
        "pieces": pointer(pieces),
        "rows": pointer(matrix.rows),
        "clear": pointer(clear),
        "num_clear": clear.size,
        "width": width,
        "lanes": np.int32(lanes),
        "accumulate": np.int32(accumulate),
        "mean": np.int32(matrix.mean),
    }
    into = short_name(pair[1])
    kernel = f"spmm_{short_name(pair[0])}_{into}_v{vector}"
    launch("spmm", f"spmm_clear_{into}", fields, items=clear.size, lanes=lanes)
    launch("spmm", kernel, fields, items=groups.host.row.size, lanes=lanes)
    if apart:
        split = groups.host.split_rows.size
        launch("spmm", f"spmm_join_{into}", fields, items=split, lanes=lanes)


def _check(matrix: SparseMatrix, x: DeviceArray, out: DeviceArray, pair: tuple[str, str]) -> None:
    num_rows, values = matrix.indptr.size - 1, matrix.values
    require_array("indptr", matrix.indptr, 1, ("int64",))
    require_array("indices", matrix.indices, 1, ("int32",))
    assert matrix.indices is not None
    require_array("x", x, 2, DENSE)
    require_array("out", out, 2, DENSE)
    if pair not in _PAIRS:
        raise TypeError(f"spmm on the GPU does not support x {pair[0]} with out {pair[1]}")
    if values is not None:
        require_array("values", values, 1, ("float64",) if pair[0] == "float64" else ("float32",))
        if values.size != matrix.indices.size:
            raise ValueError("values and indices must have the same length")
    if matrix.rows is not None:
        require_array("rows", matrix.rows, 1, ("int32",))
        if matrix.rows.size != num_rows:
            raise ValueError("rows must name a row of out for each row of the matrix")
    elif out.shape[0] != num_rows:
        raise ValueError(f"out must have {num_rows} rows, not {out.shape[0]}")
    if x.shape[1] != out.shape[1]:
        raise ValueError(f"x has {x.shape[1]} columns and out {out.shape[1]}")
