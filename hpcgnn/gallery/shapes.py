"""Grids of any number of axes."""

import math
from dataclasses import dataclass

import numpy as np

from hpcgnn.gallery.graph import GalleryGraph
from hpcgnn.typing import GlobalIndices

GRID_CHUNK = 1 << 20
"""Number of nodes whose edges make one chunk."""


def grid_graph(shape: tuple[int, ...]) -> GalleryGraph:
    """Return the undirected graph that joins neighbours on each axis, nodes in C order."""
    return GalleryGraph.of_chunks(f"grid{len(shape)}d", GridEdges(shape), undirected=True)


@dataclass(frozen=True)
class GridEdges:
    """The edges of a grid in C order, from each node to those at `steps` of 0 or 1 on each axis.

    Without `steps`, edges go to the next node on each axis.
    """

    shape: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...] = ()

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return math.prod(self.shape)

    @property
    def num_edges(self) -> int:
        """Return the number of edges, each counted once."""
        return sum(math.prod(np.subtract(self.shape, step).tolist()) for step in self._all_steps)

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.num_nodes // GRID_CHUNK)

    def chunk(self, number: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst) of chunk `number`, int64."""
        start = number * GRID_CHUNK
        nodes = np.arange(start, min(start + GRID_CHUNK, self.num_nodes))
        points = np.unravel_index(nodes, self.shape)
        strides = np.cumprod((1, *self.shape[:0:-1]))[::-1]
        src, dst = [], []
        for step in self._all_steps:
            inner = np.ones(nodes.size, bool)
            for index, length, ahead in zip(points, self.shape, step, strict=True):
                inner &= index < length - ahead
            src.append(nodes[inner])
            dst.append(nodes[inner] + strides @ step)
        return np.concatenate(src), np.concatenate(dst)

    @property
    def _all_steps(self) -> tuple[tuple[int, ...], ...]:
        axes = np.eye(len(self.shape), dtype=int).tolist()
        return self.steps or tuple(map(tuple, axes))
