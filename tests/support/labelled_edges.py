"""Graphs whose edges have labels, in parts, and the predictions of a plain model for the edges."""

from dataclasses import dataclass
from pathlib import Path

from mpi4py import MPI

import numpy as np

from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, store_from_arrays
from tests.support.matrices import ugly_matrix

KINDS = ("classes", "several", "numbers")


@dataclass(frozen=True)
class EdgeGraph:
    """A graph in memory: `labels` of edges as in `EdgeData`, in the order of `src` and `dst`."""

    features: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    edge_features: np.ndarray | None = None
    split: np.ndarray | None = None
    undirected: bool = False
    relation: np.ndarray | None = None
    node_labels: np.ndarray | None = None
    node_split: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.features)

    def write(self, comm: MPI.Intracomm, directory: Path, parts: int = 0, seed: int = 0) -> Path:
        """Write it with nodes assigned at random, by default in four parts or one for each rank.

        Every rank gets the path.
        """
        parts = parts or max(4, comm.size)
        path = directory / f"edges{parts}.{seed}.h5"
        if comm.rank == 0:
            plain = directory / f"plain{parts}.{seed}.h5"
            store_from_arrays(plain, self.arrays())
            part = np.random.default_rng(seed).integers(0, parts, self.num_nodes)
            # A part without nodes.
            part[part == 1] = 0
            with GraphStore.open(plain) as store:
                partition = Partition(part.astype(np.int32), parts)
                write_partitioned(store, path, partition, method="random", seed=seed)
        comm.Barrier()
        return path

    def arrays(self) -> GraphArrays:
        """Return it in the form that makes a store."""
        data = EdgeData(self.edge_features, self.split, labels=self.labels)
        edges = {"": (self.src, self.dst)}
        of_edges = {"": data}
        if self.relation is not None:
            chosen = {name: self.relation == n for n, name in enumerate(("first", "second"))}
            edges = {name: (self.src[some], self.dst[some]) for name, some in chosen.items()}
            of_edges = {name: data.take(some) for name, some in chosen.items()}
        return GraphArrays(
            name="edges",
            num_nodes=self.num_nodes,
            edges=edges,
            edge_data=of_edges,
            edge_labels=self.names,
            features=self.features.astype(np.float32),
            labels=self.node_labels,
            split=self.node_split,
            undirected=self.undirected,
        )


def ugly_edges(kind: str, *, undirected: bool = False, relations: bool = False) -> EdgeGraph:
    """Return a graph with a hub, isolated nodes, loops, and edges without labels."""
    rng = np.random.default_rng(3)
    matrix = ugly_matrix(61, 3, weighted=False, symmetric=False)
    dst, src = matrix.nonzero()
    if undirected:
        low, high = np.minimum(src, dst), np.maximum(src, dst)
        src, dst = np.unique(np.stack([low, high]), axis=1)
    count = len(src)
    if kind == "classes":
        labels = rng.integers(-1, 3, (count, 1)).astype(np.int32)
    elif kind == "several":
        labels = rng.integers(0, 2, (count, 3)).astype(np.uint8)
    else:
        labels = rng.normal(3, 4, (count, 2)).astype(np.float32)
        labels[rng.random((count, 2)) < 0.2] = np.nan
    names = ("a", "b") if kind == "numbers" else ("a", "b", "c")
    return EdgeGraph(
        rng.normal(size=(61, 7)),
        src,
        dst,
        labels,
        names,
        rng.normal(size=(count, 2)).astype(np.float32),
        rng.integers(0, 4, count).astype(np.uint8),
        undirected,
        rng.integers(0, 2, count) if relations else None,
    )


def planted_edges(what: str, num_nodes: int = 800, degree: int = 8) -> tuple[EdgeGraph, float]:
    """Return a graph whose edges' labels follow from hidden classes of their nodes, with noise.

    Of "classes" the second result is the share of tested edges whose label the rule gives, of
    "numbers" the root of the mean square of the noise of tested edges; of "chance" labels follow
    from nothing, and two relations have the same edges with the same labels.
    """
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, num_nodes, (2, num_nodes * degree))
    apart = src != dst
    src, dst = np.unique(np.stack([src, dst])[:, apart], axis=1)
    hidden = rng.integers(0, 2, num_nodes)
    features = np.stack([2 * hidden - 1, np.ones(num_nodes)], 1) + rng.normal(
        0, 0.25, (num_nodes, 2)
    )
    count = len(src)
    split = rng.choice([1, 2, 3], count, p=[0.6, 0.1, 0.3]).astype(np.uint8)
    if what == "numbers":
        noise = rng.normal(0, 0.5, count)
        values = 3 * hidden[src] - hidden[dst] + 2 * (hidden[src] & hidden[dst]) + 10
        labels = (values + noise)[:, None].astype(np.float32)
        best = float(np.sqrt(np.mean(noise[split == 3] ** 2)))
        return EdgeGraph(features, src, dst, labels, ("speed",), None, split), best
    flipped = rng.random(count) < 0.1
    labels = hidden[src] ^ hidden[dst] ^ flipped
    if what == "classes":
        best = float(np.mean(~flipped[split == 3]))
        of_edges = labels[:, None].astype(np.int32)
        return EdgeGraph(features, src, dst, of_edges, ("same", "other"), None, split), best
    low, high = np.unique(np.sort(np.stack([src, dst]), axis=0), axis=1)
    by_chance = rng.integers(0, 2, len(low))
    of_edges = np.concatenate([by_chance, by_chance])[:, None].astype(np.int32)
    relation = np.repeat([0, 1], len(low))
    ends = np.concatenate([low, low]), np.concatenate([high, high])
    names = ("heads", "tails")
    return EdgeGraph(features, *ends, of_edges, names, None, None, True, relation), 0.5
