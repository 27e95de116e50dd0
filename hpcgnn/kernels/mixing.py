"""Mixers of 64 bits, for draws and hashes that are the same on every rank and machine.

The bits are part of what runs and stores hold: a change would give other splits, negatives and
partitions.
"""

import numpy as np
from numpy.typing import NDArray

from hpcgnn.typing import FloatArray

Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""The step of SplitMix64, 2^64 over the golden ratio."""


def split_mix(words: Words) -> Words:
    """Return the output of SplitMix64 at states of any shape; arithmetic is modulo 2^64."""
    words = words + np.uint64(GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def murmur_mix(words: Words) -> Words:
    """Return words of any shape after the two products of the finaliser of MurmurHash3."""
    words = words * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ (words >> np.uint64(33))


def uniform(words: Words) -> FloatArray:
    """Return float64 numbers in [0, 1) of mixed bits, in the shape of `words`."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def key_of(*fields: int) -> int:
    """Return 64 well-mixed bits of some integers (the finaliser of MurmurHash3 over them)."""
    word = GOLDEN
    for field in fields:
        word = (word ^ (field & _MASK)) * 0xFF51AFD7ED558CCD & _MASK
        word ^= word >> 33
        word = word * 0xC4CEB9FE1A85EC53 & _MASK
        word ^= word >> 33
    return word
