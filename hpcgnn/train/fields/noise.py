"""Noise of a node, the same at any number of ranks and in any order of the nodes."""

import numpy as np

from hpcgnn.autograd import DropoutKey
from hpcgnn.kernels.mixing import Words, split_mix
from hpcgnn.typing import FloatArray, GlobalIndices

_PLACE = -1 << 33
"""The place of this draw in the key: no layer has it."""
_HALF = np.float64(2.0**-32)


def normal(node_ids: GlobalIndices, width: int, key: DropoutKey) -> FloatArray:
    """Return (n, width) float64 numbers of mean 0 and deviation 1.

    They are a function of the key, the node's original id (n,) int64 and the column. Two halves of
    a word become one number, ``sqrt(-2 ln u) cos 2πv`` (Box and Muller, 1958).
    """
    words: Words = split_mix(node_ids.astype(np.uint64) ^ np.uint64(key.at(_PLACE).word()))
    columns = np.arange(width, dtype=np.uint64)
    words = split_mix(words[:, None] + columns)
    # Above 0, so that its logarithm is finite.
    radius = ((words >> np.uint64(32)).astype(np.float64) + 1) * _HALF
    angle = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * _HALF
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
