"""Checks of what the attention kernels take."""

from typing import TypeAlias

import numpy as np

from hpcgnn.kernels.arguments import DENSE, require_array
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

__all__ = [
    "EdgeDropout",
    "WeightDropout",
    "check_block",
    "check_floats",
    "check_pitched",
    "native_dropout",
]

# Word, p, names of the block's rows and of its columns.
WeightDropout: TypeAlias = tuple[int, float, GlobalIndices, GlobalIndices]
# Word, p.
EdgeDropout: TypeAlias = tuple[int, float]


def check_block(
    indptr: Offsets, indices: LocalIndices, z: Array, rows: LocalIndices | None
) -> None:
    """Raise unless pattern, values and rows have the right types and layouts."""
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    require_array("z", z, 2, DENSE)
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))


def check_floats(like: Array, *, writable: bool = False, **arrays: FloatArray) -> None:
    """Raise unless `arrays` are matrices, float64 when `like` is, else float32."""
    dtypes = ("float64",) if like.dtype == np.float64 else ("float32",)
    for name, array in arrays.items():
        require_array(name, array, 2, dtypes, writable=writable)


def check_pitched(like: Array, *, writable: bool = False, **arrays: FloatArray) -> None:
    """Raise like `check_floats`, but allow columns of a wider C-contiguous matrix."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim != 2 or array.size == 0:
            check_floats(like, writable=writable, **{name: array})
            continue
        if array.dtype != (np.float64 if like.dtype == np.float64 else np.float32):
            raise TypeError(f"{name} must be of the dtype of sums, not {array.dtype}")
        if array.strides[1] != array.itemsize and array.shape[1] > 1:
            raise TypeError(f"the columns of {name} must lie side by side")
        if writable and not array.flags.writeable:
            raise TypeError(f"{name} is written to but is read-only")


def native_dropout(
    dropout: WeightDropout | None, edge_dropout: EdgeDropout | None
) -> tuple[int, float, GlobalIndices, GlobalIndices, int, float] | None:
    """Return both kinds of dropout as the extension takes them."""
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
