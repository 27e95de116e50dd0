"""One function for each kind of graph: from options to a written store."""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from hpcgnn.errors import InputError
from hpcgnn.gallery import (
    DEBIAN_FEATURES,
    GalleryGraph,
    RandomNodes,
    RmatEdges,
    debian_from_index,
    debian_packages,
    grid_edges,
    write_streamed,
)
from hpcgnn.storage import StoreHeader
from hpcgnn.typing import GlobalIndices

__all__ = ["Planted", "generate_debian", "generate_grid3d", "generate_planted", "generate_rmat"]

GRID_CHUNK = 1 << 20

EdgeChunks: TypeAlias = Iterator[tuple[GlobalIndices, GlobalIndices]]
Planted: TypeAlias = Callable[[int, int, int, int], GalleryGraph]


def generate_rmat(options: argparse.Namespace) -> None:
    """Write an R-MAT graph."""
    edges = RmatEdges(
        options.scale, options.edge_factor, options.seed, options.a, options.b, options.c
    )
    header = StoreHeader(
        name=f"rmat-{options.scale}",
        num_nodes=edges.num_nodes,
        num_classes=options.classes,
        undirected=options.undirected,
        provenance=provenance(),
    )
    stream(options, header, edges.chunks(), edges.num_edges)


def generate_grid3d(options: argparse.Namespace) -> None:
    """Write a 3-D grid."""
    num_nodes = math.prod(options.shape)
    chunks = (
        grid_edges(options.shape, start, min(start + GRID_CHUNK, num_nodes))
        for start in range(0, num_nodes, GRID_CHUNK)
    )
    num_edges = sum(num_nodes // length * (length - 1) for length in options.shape)
    header = StoreHeader(
        name="grid3d-" + "x".join(str(length) for length in options.shape),
        num_nodes=num_nodes,
        num_classes=options.classes,
        undirected=True,
        provenance=provenance(),
    )
    stream(options, header, chunks, num_edges)


def stream(
    options: argparse.Namespace, header: StoreHeader, chunks: EdgeChunks, num_edges: int
) -> None:
    """Write a graph of edge chunks and random node data."""
    nodes = RandomNodes(header.num_nodes, options.features, options.classes, options.seed)
    memory_bytes = options.memory << 20
    write_streamed(options.output, header, chunks, num_edges, nodes, memory_bytes=memory_bytes)


def generate_planted(options: argparse.Namespace) -> None:
    """Write a graph with planted communities."""
    for name in ("nodes", "features", "classes"):
        if not getattr(options, name):
            raise InputError(f"--{name} 0: a planted graph needs at least 1")
    graph = options.make(options.nodes, options.classes, options.features, options.seed)
    graph.write(options.output, provenance())


def generate_debian(options: argparse.Namespace) -> None:
    """Write the bundled debian-packages graph, or that of another index."""
    if options.packages is not None:
        num_features = DEBIAN_FEATURES if options.features is None else options.features
        graph = debian_from_index(
            options.packages, num_features, options.split_seed, virtual=options.virtual
        )
    elif options.features is not None:
        raise InputError("--features belongs to --packages: the bundled graph has its own features")
    else:
        graph = debian_packages(options.split_seed, virtual=options.virtual)
    graph.write(options.output, provenance())
    if options.names is not None:
        write_names(options.names, graph.node_names)


def write_names(path: Path, names: tuple[str, ...]) -> None:
    """Write one name a line, in the order of the nodes."""
    try:
        path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def provenance() -> dict[str, Any]:
    """Return what to record in the store."""
    return {"command": ["hpcgnn.generate", *sys.argv[1:]]}
