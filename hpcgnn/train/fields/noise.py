"""Training noise of nodes and edges, the same for any number of ranks and any order of rows."""

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.autograd import DropoutKey
from hpcgnn.kernels.mixing import Words, split_mix
from hpcgnn.train.fields.frames import ByRows, Frame
from hpcgnn.typing import FloatArray, GlobalIndices

PLACES = ByRows(-1 << 33, -1 << 34)
"""Key offsets of the first frame's draws, followed by those of later frames: no layer uses them."""
_HALF = np.float64(2.0**-32)


@dataclass(frozen=True, eq=False)
class Noise:
    """Noise on the columns that a model reads, of deviation `size` in units of their deviations.

    `numbers` (n,) and (E,) int64 identify nodes and edges: original ids, and pairs of them.
    """

    size: float
    numbers: ByRows[GlobalIndices]

    @classmethod
    def of(
        cls, size: float, node_ids: GlobalIndices, edge_ends: GlobalIndices, num_nodes: int
    ) -> "Noise":
        """Return the noise of nodes (n,) and of edges (E, 2), given by their original ids."""
        # Above 2^32 nodes the products wrap around: two of 2^64 edges may draw the same noise.
        return cls(size, ByRows(node_ids, edge_ends[:, 0] * num_nodes + edge_ends[:, 1]))

    def draw(self, widths: ByRows[int], key: DropoutKey, frame: int) -> Frame:
        """Return the float64 noise that is added to the first `widths` columns read of a frame."""

        def draw_rows(numbers: GlobalIndices, width: int, offset: int) -> torch.Tensor:
            return self.size * torch.from_numpy(normal(numbers, width, key.at(offset + frame)))

        return self.numbers.map(draw_rows, widths, PLACES)


def normal(numbers: GlobalIndices, width: int, key: DropoutKey) -> FloatArray:
    """Return normal random numbers (rows, width) float64 of mean 0 and deviation 1.

    They depend on the key, the row's number (rows,) int64 and the column. The two halves u and v of
    a word become one number, ``sqrt(-2 ln u) cos 2πv`` (Box and Muller, 1958).
    """
    words: Words = split_mix(numbers.astype(np.uint64) ^ np.uint64(key.word()))
    columns = np.arange(width, dtype=np.uint64)
    words = split_mix(words[:, None] + columns)
    # Add 1 so that the logarithm is finite.
    radius = ((words >> np.uint64(32)).astype(np.float64) + 1) * _HALF
    angle = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * _HALF
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
