"""Random graphs with unusual parts for tests/oracle.py, and the dense reference's view of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import torch

from hpcgnn.config.config import Config
from hpcgnn.config.run_features import samples
from hpcgnn.partition import read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import (
    EdgeData,
    GraphArrays,
    GraphStore,
    SeriesArrays,
    Split,
    store_from_arrays,
)
from hpcgnn.train.links.edges import is_kept_direction
from tests.support.dense_models import Dense, DenseEdges
from tests.support.training import PARTITIONERS

SIZES = (1, 2, 5, 17, 33, 40, 61)
EDGE_CLASSES = 3
PARTS = (Split.TRAIN, Split.VALID, Split.TEST, Split.NONE)


@dataclass(frozen=True, eq=False)
class Relation:
    """Edges of a relation: int64 ends (E,), and weights (E,) and features (E, F) if it has some.

    Where edges are predicted, `labels` and `split` are as in `EdgeData`.
    """

    src: np.ndarray
    dst: np.ndarray
    weights: np.ndarray | None
    features: np.ndarray | None
    labels: np.ndarray | None = None
    split: np.ndarray | None = None

    @property
    def data(self) -> EdgeData:
        return EdgeData(self.features, self.split, labels=self.labels)


@dataclass(frozen=True, eq=False)
class OracleGraph:
    """A graph in memory, nodes in their original order; `targets` are numbers to predict.

    `graph` (N,) are the graphs of the nodes, where those are predicted; `series` are fields, of
    which nodes count `weights` (N,).
    """

    num_nodes: int
    undirected: bool
    relations: Mapping[str, Relation]
    features: np.ndarray | None
    labels: np.ndarray
    num_classes: int
    split: np.ndarray
    targets: np.ndarray
    types: np.ndarray | None = None
    type_features: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    graph: np.ndarray | None = None
    weights: np.ndarray | None = None
    series: SeriesArrays | None = None

    def write(self, comm: MPI.Intracomm, folder: Path, method: str, parts: int) -> Path:
        """Write the store in parts, and ``targets.npy``; every rank gets the path."""
        path = folder / "graph.h5"
        if comm.rank == 0:
            np.save(folder / "targets.npy", self.targets)
            store_from_arrays(folder / "plain.h5", self._arrays())
            with GraphStore.open(folder / "plain.h5") as store:
                partition = PARTITIONERS[method](read_pattern(store), parts)
                write_partitioned(store, path, partition, method=method, seed=5)
        comm.Barrier()
        return path

    def _arrays(self) -> GraphArrays:
        edges: dict[str, Any] = {}
        for name, each in self.relations.items():
            ends = each.src, each.dst
            edges[name] = ends if each.weights is None else (*ends, each.weights)
        return GraphArrays(
            name="oracle",
            num_nodes=self.num_nodes,
            edges=edges,
            edge_data={name: each.data for name, each in self.relations.items()},
            edge_labels=self._edge_labels(),
            graph=self.graph,
            weights=self.weights,
            series=self.series,
            features=self.features,
            types=self.types,
            type_features=self.type_features,
            labels=self.labels,
            split=self.split,
            num_classes=self.num_classes,
            undirected=self.undirected,
        )

    def _edge_labels(self) -> tuple[str, ...]:
        labels = next(iter(self.relations.values())).labels
        if labels is None:
            return ()
        kinds = EDGE_CLASSES if labels.dtype.kind == "i" else labels.shape[1]
        return tuple(f"kind{number}" for number in range(kinds))

    def one_way(
        self, config: Config, name: str, *, with_roles: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sources, targets and roles of the edges that are predicted as links.

        Without loops, and each pair once; with stored roles, all of the store and no reverses.
        """
        relation = self.relations[name]
        roles = np.zeros(len(relation.src), np.uint8) if relation.split is None else relation.split
        edges = np.stack([relation.src, relation.dst, roles])[:, relation.src != relation.dst]
        if self.undirected or (config.graph.undirected and not with_roles):
            edges = np.concatenate([edges, edges[[1, 0, 2]]], 1)
            edges = edges[:, np.unique(edges[:2], axis=1, return_index=True)[1]]
            pairs = edges[:2]
            kept = is_kept_direction(*pairs)
            if self.types is not None:
                kinds = self.types[pairs]
                kept = np.where(kinds[0] == kinds[1], kept, kinds[0] < kinds[1])
            edges = edges[:, kept]
        return edges[0], edges[1], edges[2]

    def dense(self, config: Config, *, training: bool, hidden: np.ndarray | None = None) -> Dense:
        """Return the graph that models see, without any edge of the pairs `hidden` (E, 2).

        In inductive training, only edges of training nodes remain.
        """
        gone = {frozenset(pair) for pair in ([] if hidden is None else hidden.tolist())}
        hides = training and config.train.inductive
        seen = np.flatnonzero(self.split == Split.TRAIN) if hides else np.arange(self.num_nodes)
        both = config.graph.undirected and not self.undirected
        directed = not (self.undirected or both)
        matrices, lists = [], []
        for name in config.graph.relations or self.relations:
            src, dst, weights, features = self._entries(self.relations[name], seen, gone)
            a = torch.zeros(self.num_nodes, self.num_nodes, dtype=torch.float64)
            if config.graph.weights == "ignore" or weights is None:
                weights = np.ones(len(src))
            a[dst, src] = torch.from_numpy(weights.astype(np.float64))
            matrices.append(_united([a, a.T]) if both else a)
            lists.append((src, dst, features))
        batches = config.train.task == "graphs" and config.graphs.batch > 0
        if config.train.reproducible and not (training and (batches or samples(config))):
            # Weights of a whole graph are then multiples of at most 2^-24 of the largest.
            top = max(float(each.abs().max()) for each in matrices)
            unit = 2.0 ** (np.frexp(top)[1] - 24)
            matrices = [(each / unit).round() * unit for each in matrices]
        sources, targets, features = (np.concatenate(each) for each in zip(*lists, strict=True))
        given = torch.from_numpy(features.astype(np.float64))
        reverses = [each.T for each in matrices] if directed and config.graph.reverse else []
        return Dense(
            _united(matrices),
            directed,
            counted=torch.from_numpy(self.split == Split.TRAIN) if hides else None,
            relations=(*matrices, *reverses),
            types=None if self.types is None else torch.from_numpy(self.types.astype(np.int64)),
            edges=DenseEdges(torch.from_numpy(sources), torch.from_numpy(targets), given),
            graphs=None if self.graph is None else torch.from_numpy(self.graph.astype(np.int64)),
        )

    def with_scaled_edges(self, config: Config) -> "OracleGraph":
        """Return it with edge features as models read them."""
        how = config.graph.normalize_edge_features
        if how == "none":
            return self
        known = np.ones(self.num_nodes, np.bool_)
        if config.train.inductive or self.graph is not None:
            known = self.split == Split.TRAIN
        relations = {}
        for name, each in self.relations.items():
            rows = each.features
            if rows is not None:
                # A loop is its own reverse.
                counts = 1 + (self.undirected & (each.src != each.dst))
                rows = _scaled(
                    how, rows.astype(np.float64), counts * known[each.src] * known[each.dst]
                )
            relations[name] = replace(each, features=rows)
        return replace(self, relations=relations)

    def _entries(
        self, relation: Relation, seen: np.ndarray, gone: set[frozenset[int]]
    ) -> tuple[Any, Any, Any, Any]:
        """Return sources, targets, weights and features of edges between some nodes."""
        src, dst = relation.src, relation.dst
        rows = np.arange(len(src))
        if self.undirected:
            # A loop is its own reverse.
            back = rows[src != dst]
            rows = np.concatenate([rows, back])
            src, dst = np.concatenate([src, dst[back]]), np.concatenate([dst, src[back]])
        kept = np.isin(src, seen) & np.isin(dst, seen)
        ends = zip(src.tolist(), dst.tolist(), strict=True)
        kept &= np.array([frozenset(pair) not in gone for pair in ends], bool)
        rows = rows[kept]
        features = np.zeros((len(relation.src), 0)) if relation.features is None else None
        features = relation.features if features is None else features
        weights = None if relation.weights is None else relation.weights[rows]
        return src[kept], dst[kept], weights, features[rows]


def _scaled(how: str, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return rows (E, F) scaled to mean 0 and deviation 1, with counts (E,) as weights."""
    if how != "standard":
        norms = np.linalg.norm(rows, 1 if how == "row" else 2, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1)
    if not counts.any():
        return rows
    mean = np.average(rows, axis=0, weights=counts)
    deviation = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=counts))
    return (rows - mean) / np.where(deviation > 1e-12, deviation, 1)


def draw_graph(
    rng: np.random.Generator, tasks: Collection[str], *, reads_edges: bool, weighs: bool
) -> OracleGraph:
    """Return a graph for some tasks.

    `reads_edges` gives most graphs edge features, `weighs` some of them weights.
    """
    num_nodes, undirected = int(rng.choice(SIZES)), bool(rng.random() < 0.4)
    names = ("",) if rng.random() < 0.5 else ("cites", "names", "nothing")[: rng.integers(1, 4)]
    width = int(rng.integers(1, 4)) if rng.random() < (0.95 if reads_edges else 0.2) else 0
    weighs = weighs and bool(rng.random() < 0.4)
    alone = rng.random(num_nodes) < rng.choice([0, 0.1, 0.4])
    relations = {}
    graph, kind = None, str(rng.choice(["classes", "several", "numbers"]))
    if "graphs" in tasks:
        graph = rng.integers(0, max(num_nodes // 4, 1), num_nodes)
        # Numbers of graphs without gaps.
        graph = np.unique(graph, return_inverse=True)[1]
    for name in names:
        src, dst = _draw_edges(
            rng, num_nodes, alone, undirected=undirected, empty=name == "nothing"
        )
        if graph is not None:
            inside = graph[src] == graph[dst]
            src, dst = src[inside], dst[inside]
        if {"edges", "links"} & set(tasks) and not len(src) and not relations:
            # Something is learned.
            src, dst = np.array([num_nodes - 1]), np.array([0])
        weights = rng.uniform(0.5, 2, len(src)).astype(np.float32) if weighs else None
        features = rng.normal(size=(len(src), width)).astype(np.float32) if width else None
        of_edges = _label_edges(rng, kind, len(src)) if "edges" in tasks else (None, None)
        relations[name] = Relation(src, dst, weights, features, *of_edges)
    num_classes = int(rng.integers(2, 6))
    classes = rng.integers(0, num_classes, num_nodes).astype(np.int32)
    labels: Any = np.where(rng.random(num_nodes) < 0.1, -1, classes).astype(np.int32)
    if several := rng.random() < 0.2:
        labels = (rng.random((num_nodes, num_classes)) < 0.4).astype(np.uint8)
    split = rng.choice(PARTS, num_nodes, p=[0.5, 0.2, 0.2, 0.1]).astype(np.uint8)
    # Some node is trained on.
    split[0] = Split.TRAIN
    if not several:
        labels[0] = classes[0]
    targets = rng.normal(3, 2, (num_nodes, 2))
    targets[rng.random((num_nodes, 2)) < 0.1] = np.nan
    targets[0] = 1, 5
    features: Any = rng.normal(size=(num_nodes, int(rng.integers(1, 8)))).astype(np.float32)
    types, type_features = None, {}
    if num_nodes > 4 and rng.random() < 0.25:
        types = rng.choice([0, 0, 0, 1, 2], num_nodes).astype(np.uint8)
        of_type = [features[types == number] for number in range(4)]
        parts = (of_type[0], None, of_type[2][:, :1], of_type[3])
        type_features = dict(zip(("plain", "bare", "rare", "absent"), parts, strict=True))
        features = None
    elif rng.random() < 0.1:
        features = None
    if graph is not None:
        first = np.unique(graph, return_index=True)[1]
        # Node 0 belongs to a training graph, whose number also comes first in the targets.
        first[graph[0]] = 0
        labels, split = labels[first[graph]], split[first[graph]]
        targets[graph[0]] = 1, 5
        targets = targets[: len(first)]
    return OracleGraph(
        num_nodes, undirected, relations, features, labels, num_classes, split, targets,
        types, type_features, graph,
    )  # fmt: skip


def with_few_features(rng: np.random.Generator, graph: OracleGraph) -> OracleGraph:
    """Return the graph with most features zero, and all of some nodes and columns."""

    def few(rows: np.ndarray | None) -> Any:
        if rows is None:
            return None
        kept = rng.random(rows.shape) < rng.choice([0.1, 0.4])
        kept &= (rng.random((len(rows), 1)) < 0.8) & (rng.random(rows.shape[1]) < 0.8)
        return np.where(kept, rows, np.float32(0))

    of_types = {name: few(rows) for name, rows in graph.type_features.items()}
    return replace(graph, features=few(graph.features), type_features=of_types)


def with_signs(rng: np.random.Generator, graph: OracleGraph) -> OracleGraph:
    """Return the graph with some negative weights, which sums accept."""

    def signed(edges: Relation) -> Relation:
        if edges.weights is None:
            return edges
        signs = rng.choice(np.array([-1, 1], np.float32), len(edges.weights))
        return replace(edges, weights=edges.weights * signs)

    relations = {name: signed(edges) for name, edges in graph.relations.items()}
    return replace(graph, relations=relations)


def _label_edges(rng: np.random.Generator, kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and a split of edges, of which the first is for training."""
    split = rng.choice(PARTS, count, p=[0.5, 0.2, 0.2, 0.1]).astype(np.uint8)
    split[:1] = Split.TRAIN
    if kind == "classes":
        classes = rng.integers(-1, EDGE_CLASSES, (count, 1)).astype(np.int32)
        classes[:1] = 1
        return classes, split
    if kind == "several":
        return rng.integers(0, 2, (count, 2)).astype(np.uint8), split
    numbers = rng.normal(3, 4, (count, 2)).astype(np.float32)
    numbers[rng.random((count, 2)) < 0.2] = np.nan
    numbers[:1] = 2, -1
    return numbers, split


def _draw_edges(
    rng: np.random.Generator, num_nodes: int, alone: Any, *, undirected: bool, empty: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return sources and targets: sparse, sometimes with hubs and loops; none at nodes `alone`."""
    if empty:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    edges = rng.random((num_nodes, num_nodes)) < min(3 / num_nodes, 1)
    hub, spreader = rng.integers(0, num_nodes, 2)
    edges[hub, :] |= bool(rng.random() < 0.5)
    edges[:, spreader] |= bool(rng.random() < 0.5)
    np.fill_diagonal(edges, rng.random(num_nodes) < rng.choice([0, 0.3]))
    edges[alone] = edges[:, alone] = False
    dst, src = np.nonzero(np.tril(edges) if undirected else edges)
    return src.astype(np.int64), dst.astype(np.int64)


def _united(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the largest entries; if there are none, no smaller one gets the gradient."""
    entries = torch.stack(list(matrices))
    largest = entries.masked_fill(entries == 0, -torch.inf).amax(0)
    return largest.masked_fill(largest == -torch.inf, 0)
