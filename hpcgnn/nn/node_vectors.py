"""First values of vectors that belong to nodes, whatever rank owns them."""

import numpy as np

from hpcgnn.autograd import DropoutKey
from hpcgnn.typing import Array, FloatArray, GlobalIndices

__all__ = ["draw_vectors"]

_PLACE = -1 << 32
"""The place of this draw in the key: no layer has it."""


def draw_vectors(node_ids: GlobalIndices, width: int, seed: int) -> FloatArray:
    """Return (n, width) float64 uniform numbers of variance 1 / width.

    Not collective. They are a function of the seed, the node's id and the column.

    Parameters
    ----------
    node_ids
        (n,) int64 original ids.
    width
        Columns.
    seed
        Of the model.
    """
    columns = np.arange(width, dtype=np.uint64)
    words = _mixed(node_ids.astype(np.uint64) + np.uint64(DropoutKey(seed, 0, _PLACE).word()))
    words = _mixed(words[:, None] + columns)
    uniform: FloatArray = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    vectors: FloatArray = (2 * uniform - 1) * np.sqrt(3 / width)
    return vectors


def _mixed(words: Array) -> Array:
    """Return well-mixed bits (the finaliser of MurmurHash3)."""
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    words ^= words >> np.uint64(33)
    return words
