"""Small reproducible graphs for tests, examples and benchmarks, and one real graph.

Every function returns a `GalleryGraph`, whose `write` makes a store of it; seeds are explicit.
`debian_packages` is the bundled graph. `RmatEdges` and `write_streamed` make graphs of any size
chunk by chunk. The commands are in `hpcgnn.generate`. This package imports no MPI.
"""

from hpcgnn.gallery.communities import dcsbm, lfr, planted, planted_types
from hpcgnn.gallery.debian_bundle import (
    DEBIAN_FEATURES,
    DEBIAN_SPLIT_SEED,
    debian_from_index,
    debian_packages,
)
from hpcgnn.gallery.graph import GalleryGraph, random_split
from hpcgnn.gallery.rmat_edges import RmatEdges, rmat
from hpcgnn.gallery.shapes import delaunay, empty, grid2d, grid3d, grid_edges, isolated, path, star
from hpcgnn.gallery.streamed import RandomNodes, write_streamed

__all__ = [
    "DEBIAN_FEATURES",
    "DEBIAN_SPLIT_SEED",
    "GalleryGraph",
    "RandomNodes",
    "RmatEdges",
    "dcsbm",
    "debian_from_index",
    "debian_packages",
    "delaunay",
    "empty",
    "grid2d",
    "grid3d",
    "grid_edges",
    "isolated",
    "lfr",
    "path",
    "planted",
    "planted_types",
    "random_split",
    "rmat",
    "star",
    "write_streamed",
]
