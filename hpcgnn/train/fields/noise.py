"""Noise of a node or an edge, the same at any number of ranks and in any order of the rows."""

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.autograd import DropoutKey
from hpcgnn.kernels.mixing import Words, split_mix
from hpcgnn.train.fields.frames import ByRows, Frame
from hpcgnn.typing import FloatArray, GlobalIndices

PLACES = ByRows(-1 << 33, -1 << 34)
"""The places in the key of the first frame's draws, of others behind: no layer has them."""
_HALF = np.float64(2.0**-32)


@dataclass(frozen=True, eq=False)
class Noise:
    """Noise on the columns that a model reads, of deviation `size` in units of their own.

    `numbers` (n,) and (E,) int64 tell nodes and edges apart: original ids, and pairs of them.
    """

    size: float
    numbers: ByRows[GlobalIndices]

    @classmethod
    def of(
        cls, size: float, node_ids: GlobalIndices, edge_ends: GlobalIndices, num_nodes: int
    ) -> "Noise":
        """Return that of nodes (n,) and of edges (E, 2), by their original ids."""
        # Pairs wrap around above 2^32 nodes, where two edges in 2^64 may draw alike.
        return cls(size, ByRows(node_ids, edge_ends[:, 0] * num_nodes + edge_ends[:, 1]))

    def drawn(self, widths: ByRows[int], key: DropoutKey, frame: int) -> Frame:
        """Return what is added to so many columns of a frame of a sample, in float64."""

        def draw(numbers: GlobalIndices, width: int, place: int) -> torch.Tensor:
            return self.size * torch.from_numpy(normal(numbers, width, key.at(place + frame)))

        return self.numbers.map(draw, widths, PLACES)


def normal(numbers: GlobalIndices, width: int, key: DropoutKey) -> FloatArray:
    """Return (rows, width) float64 numbers of mean 0 and deviation 1.

    They are a function of the key, the row's number (rows,) int64 and the column. Two halves of a
    word become one number, ``sqrt(-2 ln u) cos 2πv`` (Box and Muller, 1958).
    """
    words: Words = split_mix(numbers.astype(np.uint64) ^ np.uint64(key.word()))
    columns = np.arange(width, dtype=np.uint64)
    words = split_mix(words[:, None] + columns)
    # Above 0, so that its logarithm is finite.
    radius = ((words >> np.uint64(32)).astype(np.float64) + 1) * _HALF
    angle = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * _HALF
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
