"""Graphs whose shape is known: grids and triangulations."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import spatial

from hpcgnn.gallery.graph import GalleryGraph, both_ways
from hpcgnn.typing import GlobalIndices

GRID_CHUNK = 1 << 20
"""Nodes whose edges make one chunk."""


def grid2d(shape: tuple[int, int]) -> GalleryGraph:
    """Return the 5-point grid graph of `shape`, nodes in C order."""
    return _grid("grid2d", shape)


def grid3d(shape: tuple[int, int, int]) -> GalleryGraph:
    """Return the 7-point grid graph of `shape`, nodes in C order."""
    return _grid("grid3d", shape)


def delaunay(num_nodes: int, seed: int) -> GalleryGraph:
    """Return the Delaunay triangulation of random points in the unit square; at least 4 nodes."""
    points = np.random.default_rng(seed).random((num_nodes, 2))
    corners = spatial.Delaunay(points).simplices.astype(np.int64)
    src = corners.ravel()
    return _undirected("delaunay", num_nodes, src, np.roll(corners, 1, axis=1).ravel())


@dataclass(frozen=True)
class GridEdges:
    """The edges of a grid in C order, from each node to the next one on each axis."""

    shape: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return math.prod(self.shape)

    @property
    def num_edges(self) -> int:
        """Return the number of edges, each counted once."""
        return sum(self.num_nodes // length * (length - 1) for length in self.shape)

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.num_nodes // GRID_CHUNK)

    def chunk(self, number: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst) of chunk `number`, int64."""
        start = number * GRID_CHUNK
        nodes = np.arange(start, min(start + GRID_CHUNK, self.num_nodes))
        src, dst = [], []
        stride = 1
        for length in reversed(self.shape):
            inner = nodes[nodes // stride % length < length - 1]
            src.append(inner)
            dst.append(inner + stride)
            stride *= length
        return np.concatenate(src), np.concatenate(dst)


def _grid(name: str, shape: tuple[int, ...]) -> GalleryGraph:
    edges = GridEdges(shape)
    none = np.empty(0, np.int64)
    chunks = [(none, none), *map(edges.chunk, range(edges.num_chunks))]
    src, dst = (np.concatenate(ends) for ends in zip(*chunks, strict=True))
    return _undirected(name, edges.num_nodes, src, dst)


def _undirected(name: str, num_nodes: int, src: GlobalIndices, dst: GlobalIndices) -> GalleryGraph:
    edges = both_ways(src, dst, num_nodes)
    return GalleryGraph(name=name, num_nodes=num_nodes, edges={"": edges}, undirected=True)
