"""Graphs that come in numbered chunks: each can be made alone, in any order, on any rank."""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hpcgnn.typing import FloatArray, GlobalIndices

CHUNK_EDGES = 1 << 18
"""Edges of one chunk; part of the definition of a graph, as each chunk has its own stream."""

NODE_CHUNK = 1 << 14
"""Nodes of one block; part of the definition of a graph, as each block has its own stream."""

_MIXING_ROUNDS = 4

NodeRows = tuple[FloatArray, NDArray[np.int32], NDArray[np.uint8]]
"""Features (float32), labels and split of consecutive nodes."""


class EdgeChunks(Protocol):
    """The edges of a graph, loops and duplicates included, chunk by chunk."""

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""

    @property
    def num_edges(self) -> int:
        """Return the number of edges of all chunks."""

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""

    def chunk(self, number: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst) of chunk `number`, int64."""


class NodeBlocks(Protocol):
    """What nodes have, `NODE_CHUNK` nodes at a time; 0 columns or classes for none."""

    @property
    def num_features(self) -> int:
        """Return the number of columns."""

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""

    def block(self, start: int) -> NodeRows:
        """Return what the nodes of the block whose first one is `start` have."""


class DrawnEdges(ABC):
    """Edges that are drawn, `CHUNK_EDGES` at a time."""

    @property
    @abstractmethod
    def num_edges(self) -> int:
        """Return the number of edges, loops and duplicates included."""

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.num_edges // CHUNK_EDGES)

    def count(self, number: int) -> int:
        """Return how many edges are in chunk `number`."""
        return min(CHUNK_EDGES, self.num_edges - number * CHUNK_EDGES)


def stream(seed: int, number: int, use: int = 0) -> np.random.Generator:
    """Return the random numbers of a chunk or block; those of each `use` are independent."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, number, use]))


def shuffled(
    numbers: GlobalIndices, size: int, seed: int, limits: int | GlobalIndices
) -> GlobalIndices:
    """Return numbers below `limits` in a shuffled order, one-to-one below each limit.

    Multiplying by an odd number and folding the high half onto the low half are both one-to-one
    below a power of two, so no table of the permutation is needed; what lands at or above its limit
    goes on until it lands below.

    Parameters
    ----------
    numbers
        int64 numbers, each below its limit.
    size
        At least the limits; decides the order together with `seed`.
    limits
        One for all, or one for each.
    """
    bits = max(0, size - 1).bit_length()
    mask, fold = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    draws = stream(seed, 0, 1)
    rounds = [draws.integers(0, 1 << 63, 2, dtype=np.uint64) for _ in range(_MIXING_ROUNDS)]
    mixed = numbers.astype(np.uint64)
    limit = np.broadcast_to(np.asarray(limits, np.uint64), mixed.shape)
    left = np.arange(len(mixed))
    while len(left):
        some = mixed[left]
        for factor, shift in rounds:
            some = ((some + shift) * (factor | np.uint64(1))) & mask
            some ^= some >> fold
        mixed[left] = some
        left = left[some >= limit[left]]
    return mixed.astype(np.int64)
