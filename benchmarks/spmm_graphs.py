"""The matrices and operands of the SpMM benchmark."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.hyperbolic import hyperbolic
from hpcgnn.errors import InputError
from hpcgnn.gallery import debian_packages, grid_graph, rmat
from hpcgnn.storage import GraphStore
from hpcgnn.typing import FloatArray, LocalIndices, Offsets

__all__ = ["Matrix", "aligned", "load_matrix"]

# Relations to packages that a package needs; others are packages it breaks, replaces and so on.
DEBIAN_RELATIONS = ("depends", "pre-depends", "recommends", "suggests")
SEED = 20261121


@dataclass(frozen=True)
class Matrix:
    """A square CSR matrix with float32 values; `num_nodes` rows and columns."""

    name: str
    num_nodes: int
    indptr: Offsets
    indices: LocalIndices
    values: FloatArray


def load_matrix(name: str) -> Matrix:
    """Return ``rmat:SCALE:FACTOR``, ``grid3d:N``, ``debian`` or ``STORE.h5``, symmetrised.

    ``hyperbolic:NODES`` is like a web graph: it has hubs, and neighbours are near each other in the
    order of nodes. The values are random, so no peer can treat them as ones.
    """
    pattern = (_stored(name) if name.endswith(".h5") else _made(name)).tocsr()
    pattern = (pattern + pattern.T).tocsr()
    pattern.sort_indices()
    values = np.random.default_rng(SEED).random(pattern.nnz, dtype=np.float32)
    return Matrix(
        name,
        pattern.shape[0],
        pattern.indptr.astype(np.int64),
        pattern.indices.astype(np.int32),
        values,
    )


def aligned(num_rows: int, width: int) -> FloatArray:
    """Return zeros of shape (num_rows, width), float32, on a 64-byte boundary as torch's are."""
    size = num_rows * width * 4
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(np.float32).reshape(num_rows, width)


def _made(name: str) -> Any:
    kind, _, sizes = name.partition(":")
    try:
        numbers = [int(each) for each in sizes.split(":") if each]
        if kind == "rmat" and len(numbers) == 2:
            return rmat(numbers[0], numbers[1], SEED).to_scipy()
        if kind == "grid3d" and len(numbers) == 1:
            return grid_graph((numbers[0],) * 3).to_scipy()
        if kind == "hyperbolic" and len(numbers) == 1:
            return hyperbolic(numbers[0], SEED, mean_degree=20).to_scipy()
        if name == "debian":
            graph = debian_packages()
            return sum(graph.to_scipy(relation) for relation in DEBIAN_RELATIONS)
    except ValueError as error:
        raise InputError(f"--graph {name}: {error}") from error
    raise InputError(f"--graph {name}: give STORE.h5, rmat:SCALE:FACTOR, grid3d:N or debian")


def _stored(name: str) -> Any:
    with GraphStore.open(name) as store:
        blocks = [
            store.read_adjacency(0, store.num_nodes, relation) for relation in store.relations
        ]
        return sum(block.to_scipy(store.num_nodes) for block in blocks)
