"""Matrices of features in .npz files."""

from functools import partial

from hpcgnn.convert.npy import ArrayFile
from hpcgnn.convert.source import ConvertOptions, Features
from hpcgnn.errors import InputError

__all__ = ["FEATURES", "array_features"]

FEATURES = ("x", "features", "feat", "feats", "node_feat", "attr_matrix")
"""The names that are in use for a matrix of features."""

_BLOCK_VALUES = 1 << 20


def array_features(array: ArrayFile, options: ConvertOptions) -> Features:
    """Return the rows of a matrix of numbers [n, f] as features; raises `InputError`."""
    if len(array.shape) != 2 or array.shape[1] == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            f"{array.where} has shape {array.shape} and dtype {array.dtype} where features, "
            "numbers [n, f], are due; convert it before saving"
        )
    rows = max(1, _BLOCK_VALUES // array.shape[1])
    blocks = partial(array.rows, rows, options.memory_bytes)
    return Features(array.shape[1], array.dtype, blocks, partial(_locate_row, array.where))


def _locate_row(where: str, row: int) -> str:
    return f"{where}, row {row}"
