"""The structs of the attention kernels, and the checks of what goes into them."""

import numpy as np

from hpcgnn.kernels.arguments import Half
from hpcgnn.kernels.cuda.device import DeviceArray, pointer, require_array
from hpcgnn.kernels.cuda.elements import storage_of
from hpcgnn.kernels.cuda.groups import DeviceGroups
from hpcgnn.kernels.cuda.launch import Fields, tile_lanes, vector_width
from hpcgnn.kernels.cuda.rows import drop_threshold

__all__ = [
    "DeviceEdgeDropout",
    "DeviceWeightDropout",
    "block_fields",
    "check_heads",
    "check_pattern",
    "check_state",
    "element_of",
    "tile_shape",
]

# Word, p, names of the block's rows and of its columns.
DeviceWeightDropout = tuple[int, float, DeviceArray, DeviceArray]
# Word, p.
DeviceEdgeDropout = tuple[int, float]

_VECTORS = {"float32": (4, 1), "float64": (2, 1), "bfloat16": (8, 1), "float16": (8, 1)}
# Edges whose logits a tile takes at once, however narrow a head is.
_LEAST_LANES = 4
_WARP = 32


def element_of(z: DeviceArray, half: Half | None) -> str:
    """Return the type of the elements of `z`.

    Raises
    ------
    TypeError
        No attention kernel takes it.
    """
    found = storage_of(z, half)
    if found not in _VECTORS:
        raise TypeError(f"attention takes floats of 16, 32 or 64 bits, not {found}")
    return found


def tile_shape(
    element: str, head_width: int, *arrays: DeviceArray | None, widest: int = 8
) -> tuple[int, int, int]:
    """Return elements of a vector, vectors of a thread, and threads of a tile for one head.

    Parameters
    ----------
    element, head_width
        Of the values.
    arrays
        What is read and written by vectors.
    widest
        Elements of a vector, at most: fewer leave registers to kernels that hold many rows.
    """
    options = tuple(min(count, widest) for count in _VECTORS[element])
    vector = vector_width(options, head_width, *arrays)
    vectors = -(-head_width // vector)
    return vector, 1 if vectors <= _WARP else 2, tile_lanes(vectors, _LEAST_LANES)


def check_pattern(
    indptr: DeviceArray, indices: DeviceArray, z: DeviceArray, rows: DeviceArray | None
) -> None:
    """Raise unless pattern, values and rows have the right types and layouts."""
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    require_array("z", z, 2, ("float32", "float64", "uint16"))
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))


def check_heads(z: DeviceArray, shape: tuple[int, int], **arrays: DeviceArray) -> None:
    """Raise unless `arrays` are matrices of `shape`, float64 when `z` is, else float32."""
    dtypes = ("float64",) if z.dtype == np.float64 else ("float32",)
    for name, array in arrays.items():
        require_array(name, array, 2, dtypes)
        if array.shape != shape:
            raise ValueError(f"{name} must have the shape {shape}, not {array.shape}")


def check_state(out: DeviceArray, top: DeviceArray, total: DeviceArray) -> tuple[int, int, int]:
    """Raise unless three arrays are a state; return its rows, heads and width of a head."""
    require_array("out", out, 2, ("float32", "float64"))
    require_array("top", top, 2, ("float32", "float64"))
    num_rows, heads = top.shape
    check_heads(out, (num_rows, heads), top=top, total=total)
    if out.shape[0] != num_rows or (heads == 0 and out.shape[1] != 0):
        raise ValueError(f"out has the shape {out.shape} beside a top of {top.shape}")
    if heads > 0 and out.shape[1] % heads != 0:
        raise ValueError(f"{out.shape[1]} columns of out do not divide into {heads} heads")
    return num_rows, heads, out.shape[1] // heads if heads > 0 else 0


def block_fields(
    indptr: DeviceArray,
    indices: DeviceArray,
    z: DeviceArray,
    source: DeviceArray,
    target: DeviceArray,
    rows: DeviceArray | None,
    dropout: DeviceWeightDropout | None,
    edge_dropout: DeviceEdgeDropout | None,
    slope: float,
    groups: DeviceGroups,
    lanes: int,
    heads: int,
) -> Fields:
    """Return the fields of the kernels' ``AttentionBlock``.

    Raises
    ------
    ValueError
        A probability or a word out of range, or edge dropout without the names of `dropout`.
    """
    if dropout is None and edge_dropout is not None:
        raise ValueError("edge_dropout needs the names that dropout holds")
    word, p, row_ids, column_ids = dropout or (0, 0.0, None, None)
    edge_word, edge_p = edge_dropout or (0, 0.0)
    for each in (word, edge_word):
        if not 0 <= each < 1 << 64:
            raise ValueError(f"the word of a dropout must be in [0, 2**64), not {each}")
    if dropout is not None:
        require_array("row_ids", row_ids, 1, ("int64",))
        require_array("column_ids", column_ids, 1, ("int64",))
    return {
        "groups": groups.arguments(),
        "indptr": pointer(indptr),
        "indices": pointer(indices),
        "rows": pointer(rows),
        "row_ids": pointer(row_ids),
        "column_ids": pointer(column_ids),
        "z": pointer(z),
        "source": pointer(source),
        "target": pointer(target),
        "edges": {"key": edge_word, "threshold": drop_threshold(edge_p)},
        "weights": {"key": word, "threshold": drop_threshold(p)},
        "scale": 1.0 / (1.0 - p) if p < 1 else 0.0,
        "slope": float(slope),
        "num_heads": heads,
        "head_width": z.shape[1] // heads if heads > 0 else 0,
        "lanes": np.int32(lanes),
    }
