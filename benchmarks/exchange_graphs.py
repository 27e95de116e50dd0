"""The graphs of the exchange benchmarks: block rows of a store, or of a generated graph.

``STORE.h5`` keeps its own parts. ``rmat:SCALE:FACTOR``, ``debian`` and ``grid3d:N`` are generated
on rank 0, cut into as many parts as the grid has block rows, and sent to the ranks, so no shared
file system is needed.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from hpcgnn.comm import Communicator, ProcessGrid, RowMap, agree, bcast
from hpcgnn.errors import InputError
from hpcgnn.gallery import debian_packages, grid_graph, rmat
from hpcgnn.partition import CSRGraph, Partition, Partitioner, block, metis, random
from hpcgnn.sparse import DistCSR, read_adjacency
from hpcgnn.storage import GraphStore, assign_parts

__all__ = ["METHODS", "BenchmarkGraph", "open_graph"]

METHODS = ("metis", "random", "block")
# Relations to packages that a package needs; others are packages it breaks, replaces and so on.
DEBIAN_RELATIONS = ("depends", "pre-depends", "recommends", "suggests")
SEED = 20261121


class BenchmarkGraph(Protocol):
    """A square matrix that can be distributed over a grid of ranks."""

    name: str

    def block_row(self, grid: ProcessGrid) -> DistCSR:
        """Return this rank's block row; collective."""
        ...


class StoredGraph:
    """Selected relations of a store, in the store's own parts."""

    def __init__(self, path: Path, relations: Sequence[str], *, undirected: bool) -> None:
        self.name = path.name
        self._path, self._relations, self._undirected = path, tuple(relations), undirected

    def block_row(self, grid: ProcessGrid) -> DistCSR:
        with agree(grid.world):
            store = GraphStore.open(self._path)
        with store:
            with agree(grid.world):
                edges = store.part_edges(self._relations or None)
                starts = assign_parts(store.row_starts, edges, grid.num_blocks)
            row_map = RowMap(starts, grid.block)
            rows = read_adjacency(
                grid, store, row_map, self._relations, undirected=self._undirected
            )
        return DistCSR.from_rows(row_map, rows.indptr, rows.columns, rows.weights)


class MadeGraph:
    """A graph that rank 0 generates and partitions."""

    def __init__(self, comm: Communicator, name: str, partitioner: Partitioner) -> None:
        self.name = name
        self._partitioner = partitioner
        self._pattern: CSRGraph | None = None
        with agree(comm):
            if comm.rank == 0:
                self._pattern = make_pattern(name)

    def block_row(self, grid: ProcessGrid) -> DistCSR:
        starts, shares = None, None
        with agree(grid.world):
            if self._pattern is not None:
                starts, blocks = cut(self._pattern, self._partitioner, grid.num_blocks)
                shares = [blocks[rank // grid.replication] for rank in range(grid.size)]
        starts = bcast(grid.world, starts)
        indptr, columns = grid.world.scatter(shares)
        return DistCSR.from_rows(RowMap(starts, grid.block), indptr, columns)


def open_graph(
    comm: Communicator,
    name: str,
    *,
    relations: Sequence[str] = (),
    undirected: bool = False,
    method: str | None = None,
) -> BenchmarkGraph:
    """Return the graph that `--graph` names; collective.

    Raises
    ------
    CollectiveInputError
        If there is no graph of that name.
    """
    if name.endswith(".h5"):
        if method is not None:
            raise InputError(f"--method {method}: {name} keeps its own parts; leave it out")
        return StoredGraph(Path(name), relations, undirected=undirected)
    if relations or undirected:
        raise InputError(f"--relations and --undirected belong to a store, not to {name}")
    # R-MAT graphs have no good partitions, and METIS takes minutes to try.
    chosen = method or ("block" if name.startswith("rmat") else "metis")
    partitioners = {"metis": metis(SEED), "random": random(SEED), "block": block()}
    return MadeGraph(comm, name, partitioners[chosen])


def make_pattern(name: str) -> CSRGraph:
    """Return the graph that `name` describes."""
    kind, _, sizes = name.partition(":")
    try:
        numbers = [int(each) for each in sizes.split(":") if each]
        if kind == "rmat" and len(numbers) in {1, 2}:
            scale, factor = (*numbers, 16)[:2]
            return CSRGraph.from_scipy(rmat(scale, factor, SEED, undirected=True).to_scipy())
        if kind == "grid3d" and len(numbers) == 1:
            return CSRGraph.from_scipy(grid_graph((numbers[0],) * 3).to_scipy())
        if name == "debian":
            graph = debian_packages()
            return CSRGraph.from_scipy(sum(graph.to_scipy(each) for each in DEBIAN_RELATIONS))
    except ValueError as error:
        raise InputError(f"--graph {name}: {error}") from error
    raise InputError(f"--graph {name}: give STORE.h5, rmat:SCALE:FACTOR, grid3d:N or debian")


def cut(pattern: CSRGraph, partitioner: Partitioner, num_blocks: int) -> tuple[Any, list[Any]]:
    """Return row starts and, for each block, (indptr, columns) of its rows, both int64."""
    partition = partitioner(pattern, num_blocks)
    starts, permuted = partition.row_starts(), _by_part(pattern, partition)
    blocks = []
    for first, last in pairwise(starts.tolist()):
        rows = permuted[first:last]
        blocks.append((rows.indptr.astype(np.int64), rows.indices.astype(np.int64)))
    return starts, blocks


def cut_whole(pattern: CSRGraph, partition: Partition) -> tuple[DistCSR, Any]:
    """Return the graph in the order of its parts as one block, and where the parts start."""
    permuted = _by_part(pattern, partition)
    whole = RowMap(np.array([0, permuted.shape[0]], np.int64), 0)
    indptr, indices = permuted.indptr.astype(np.int64), permuted.indices.astype(np.int64)
    return DistCSR.from_rows(whole, indptr, indices), partition.row_starts()


def _by_part(pattern: CSRGraph, partition: Partition) -> sparse.csr_matrix:
    order = partition.permutation()
    permuted = sparse.csr_matrix(pattern.to_scipy()[order][:, order])
    permuted.sort_indices()
    return permuted
