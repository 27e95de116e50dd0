"""Graphs with a known geometry: grids and triangulations."""

import math
from dataclasses import dataclass

import numpy as np
import scipy

from hpcgnn.gallery.graph import GalleryGraph, both_ways
from hpcgnn.typing import GlobalIndices

GRID_CHUNK = 1 << 20
"""Number of nodes whose edges make one chunk."""


def grid2d(shape: tuple[int, int]) -> GalleryGraph:
    """Return the 5-point grid graph of `shape`, nodes in C order."""
    return _grid("grid2d", shape)


def grid3d(shape: tuple[int, int, int]) -> GalleryGraph:
    """Return the 7-point grid graph of `shape`, nodes in C order."""
    return _grid("grid3d", shape)


def delaunay(num_nodes: int, seed: int) -> GalleryGraph:
    """Return the Delaunay triangulation of at least 4 random points in the unit square."""
    points = np.random.default_rng(seed).random((num_nodes, 2))
    corners = scipy.spatial.Delaunay(points).simplices.astype(np.int64)
    src = corners.ravel()
    return _undirected("delaunay", num_nodes, src, np.roll(corners, 1, axis=1).ravel())


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


def _grid(name: str, shape: tuple[int, ...]) -> GalleryGraph:
    edges = GridEdges(shape)
    none = np.empty(0, np.int64)
    chunks = [(none, none), *map(edges.chunk, range(edges.num_chunks))]
    src, dst = (np.concatenate(ends) for ends in zip(*chunks, strict=True))
    return _undirected(name, edges.num_nodes, src, dst)


def _undirected(name: str, num_nodes: int, src: GlobalIndices, dst: GlobalIndices) -> GalleryGraph:
    edges = both_ways(src, dst, num_nodes)
    return GalleryGraph(name=name, num_nodes=num_nodes, edges={"": edges}, undirected=True)
