"""64-bit mixing functions, for random draws and hashes that agree on every rank and machine.

Runs and stores depend on these bits: a change would give other splits, negatives and partitions.
"""

import numpy as np
from numpy.typing import NDArray

from hpcgnn.typing import FloatArray

Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""The increment of SplitMix64: 2^64 divided by the golden ratio."""


def split_mix(words: Words) -> Words:
    """Return the output of SplitMix64 for states of any shape; arithmetic is modulo 2^64."""
    words = words + np.uint64(GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def murmur_mix(words: Words) -> Words:
    """Return words of any shape, mixed by the two multiplications of MurmurHash3's finaliser."""
    words = words * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ (words >> np.uint64(33))


def uniform(words: Words) -> FloatArray:
    """Return float64 numbers in [0, 1) made of mixed bits, in the shape of `words`."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def key_of(*fields: int) -> int:
    """Return a 64-bit hash of integers, mixed in turn by the finaliser of MurmurHash3."""
    word = GOLDEN
    for field in fields:
        word = (word ^ (field & _MASK)) * 0xFF51AFD7ED558CCD & _MASK
        word ^= word >> 33
        word = word * 0xC4CEB9FE1A85EC53 & _MASK
        word ^= word >> 33
    return word
