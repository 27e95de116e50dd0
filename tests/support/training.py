"""Small graphs in parts, their configurations, and runs to inspect."""

import hashlib
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from safetensors.numpy import load_file

from hpcgnn.commands.command import find_command
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.partition import (
    CSRGraph,
    Partition,
    Partitioner,
    block,
    measure,
    metis,
    random,
    read_pattern,
)
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, Rollout, Split, store_from_arrays
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import StopRequest
from hpcgnn.train.run.checkpoint import checkpoint_paths
from tests.support.matrices import ugly_matrix
from tests.support.node_types import WIDTHS, type_numbers

PREDICT = find_command("predict")

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 61, 7, 4
Predict = Callable[..., dict[str, Any]]


def empty_second(graph: CSRGraph, num_parts: int) -> Partition:
    """Assign the nodes to the parts in turn, but none to the second."""
    part = np.arange(graph.num_nodes, dtype=np.int32) % num_parts
    return Partition(np.where(part == 1, 0, part), num_parts)


PARTITIONERS: Mapping[str, Partitioner] = {
    "random": random(5),
    "block": block(),
    "metis": metis(5),
    "empty second": empty_second,
}


@dataclass(frozen=True)
class Graph:
    """A graph in memory, nodes in their original order."""

    adjacency: sp.csr_matrix
    features: np.ndarray | None
    labels: np.ndarray
    split: np.ndarray
    directed: bool
    weighted: bool
    ids: np.ndarray
    relations: Mapping[str, sp.csr_matrix] = field(default_factory=dict)
    types: np.ndarray | None = None
    type_features: Mapping[str, np.ndarray | None] = field(default_factory=dict)

    def with_relations(self) -> "Graph":
        """Return the graph with its edges assigned to two relations and an empty one."""
        adjacency = self.adjacency.tocoo()
        pick = np.random.default_rng(17).random(adjacency.nnz)
        masks = {"cites": pick < 0.7, "names": pick > 0.5, "nothing": pick > 2}
        relations = {
            name: sp.csr_matrix(
                (adjacency.data[mask], (adjacency.row[mask], adjacency.col[mask])),
                shape=adjacency.shape,
            )
            for name, mask in masks.items()
        }
        return replace(self, relations=relations)

    def with_types(self) -> "Graph":
        """Return the graph with node types: one without features and labels, one without nodes."""
        types = type_numbers(len(self.ids), 8)
        labels, split = self.labels.copy(), self.split.copy()
        labels[types == 1] = -1
        split[types == 2] = Split.TRAIN, Split.VALID, Split.TRAIN
        parts = [self.features[types == t, :width] for t, width in enumerate(WIDTHS)]
        features = {"plain": parts[0], "bare": None, "rare": parts[2], "absent": parts[3]}
        return replace(self, labels=labels, split=split, types=types, type_features=features)


def make_graph(
    seed: int = 3,
    *,
    directed: bool = True,
    weighted: bool = False,
    multi_label: bool = False,
    num_nodes: int = NUM_NODES,
) -> Graph:
    """Return a graph with a hub, isolated nodes and a node without a label; ids count from 0."""
    rng = np.random.default_rng(seed)
    adjacency = ugly_matrix(num_nodes, seed, weighted=weighted, symmetric=not directed)
    # A store has float32 weights.
    adjacency.data = adjacency.data.astype(np.float32).astype(np.float64)
    classes = rng.integers(0, NUM_CLASSES, num_nodes)
    centres = rng.normal(size=(NUM_CLASSES, NUM_FEATURES))
    features = (centres[classes] + rng.normal(size=(num_nodes, NUM_FEATURES))).astype(np.float32)
    labels = (rng.random((num_nodes, NUM_CLASSES)) < 0.4).astype(np.uint8)
    labels[np.arange(num_nodes), classes] = 1
    split = rng.choice(
        [Split.TRAIN, Split.VALID, Split.TEST, Split.NONE], num_nodes, p=[0.5, 0.2, 0.2, 0.1]
    )
    split[:3] = Split.TRAIN, Split.VALID, Split.TEST
    if not multi_label:
        labels = classes.astype(np.int32)
        labels[5] = -1
    return Graph(
        adjacency,
        features,
        labels,
        split.astype(np.uint8),
        directed,
        weighted,
        np.arange(num_nodes),
    )


def write_store(
    comm: MPI.Intracomm,
    directory: Path,
    graph: Graph,
    *,
    method: str = "random",
    parts: int | None = None,
    edge_width: int = 0,
) -> Path:
    """Write `graph` in at least four parts; every rank gets the path when the file is there.

    Edges have random features of `edge_width` columns, if any.
    """
    parts = parts or max(4, comm.size)
    path = directory / f"{method}{parts}.h5"
    if comm.rank == 0:
        plain = directory / "plain.h5"
        key = hashlib.sha256(pickle.dumps((graph, method, parts, edge_width))).digest()
        if key in _WRITTEN:
            for file, content in zip((plain, path), _WRITTEN[key], strict=True):
                file.write_bytes(content)
        else:
            _write(plain, path, graph, method, parts, edge_width)
            _WRITTEN[key] = plain.read_bytes(), path.read_bytes()
    comm.Barrier()
    return path


_WRITTEN: dict[bytes, tuple[bytes, bytes]] = {}
"""Files of `write_store`: many tests train on one graph, and modify only their own copies."""


def _write(plain: Path, path: Path, graph: Graph, method: str, parts: int, edge_width: int) -> None:
    edges, data, rng = {}, {}, np.random.default_rng(6)
    for name, matrix in (graph.relations or {"": graph.adjacency}).items():
        rows, columns = matrix.tocoo().coords
        edges[name] = (columns, rows, matrix.data) if graph.weighted else (columns, rows)
        if edge_width:
            features = rng.normal(size=(len(rows), edge_width)).astype(np.float32)
            data[name] = EdgeData(features)
    store_from_arrays(
        plain,
        GraphArrays(
            name="planted",
            num_nodes=len(graph.ids),
            edges=edges,
            edge_data=data,
            features=graph.features if graph.types is None else None,
            types=graph.types,
            type_features=graph.type_features,
            labels=graph.labels,
            split=graph.split,
            original_id=graph.ids,
            num_classes=NUM_CLASSES,
            class_names=tuple(f"kind{number}" for number in range(NUM_CLASSES)),
            undirected=not graph.directed,
        ),
    )
    with GraphStore.open(plain) as store:
        partition = PARTITIONERS[method](read_pattern(store), parts)
        write_partitioned(store, path, partition, method=method, seed=5)


def expected_volume(store: Path) -> Any:
    """Return the metrics of a store's own parts."""
    with GraphStore.open(store) as opened:
        part = np.repeat(np.arange(opened.num_parts, dtype=np.int32), np.diff(opened.row_starts))
        return measure(read_pattern(opened), part, opened.num_parts)


def make_config(store: Path, run: Path, *overrides: str) -> Config:
    """Return a configuration of a small model without dropout."""
    defaults = ["model.hidden=5", "model.dropout=0", "train.epochs=3", "run.threads=1"]
    attending = tuple(f"model.name={name}" for name in ("gat", "transformer", "hgt", "rgat"))
    if any(each.startswith(attending) for each in overrides):
        # It does not use the weights that many of the graphs here have.
        defaults.append("graph.weights=ignore")
    return load_config(None, [f"graph.store={store}", f"run.dir={run}", *defaults, *overrides])


class StopAfter(StopRequest):
    """A request to stop that arrives in a given epoch, counted from 1."""

    def __init__(self, epoch: int) -> None:
        # The first check comes before the first epoch.
        self._left = epoch + 1

    @property
    def received(self) -> str | None:  # type: ignore[override]
        self._left -= 1
        return "SIGTERM" if self._left <= 0 else None


@dataclass(frozen=True)
class Run:
    """The files that a run has left in its directory."""

    path: Path
    status: int

    @property
    def metrics(self) -> list[dict[str, Any]]:
        lines = (self.path / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.metrics]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.path / "summary.json").read_text())

    def tensors(self) -> dict[str, np.ndarray]:
        """Return every tensor of the newest checkpoint of each seed."""
        found = {}
        newest = {seed: path for seed, _, path in checkpoint_paths(self.path / "checkpoints")}
        for checkpoint in newest.values():
            for file in checkpoint.glob("*.safetensors"):
                for name, value in load_file(file).items():
                    found[f"{checkpoint.name}/{file.stem}/{name}"] = value
        return found

    def predictions(self) -> dict[str, np.ndarray]:
        if (rollout := self.path / "rollout.h5").exists():
            with Rollout(rollout) as steps:
                found = {"edge_id": steps.edge_id}
                for name in (*steps.names, *steps.edge_names):
                    rows = [steps.read(name, step) for step in range(len(steps.times))]
                    found[name] = np.stack(rows)
                return found
        with h5py.File(self.path / "predictions.h5") as file:
            return {name: file[name][...] for name in file}


def train(comm: MPI.Intracomm, config: Config, stop: StopRequest | None = None) -> Run:
    """Run a training on `comm`."""
    _, status = run_training(comm, config, stop or StopRequest())
    return Run(Path(config.run.dir), status)


def train_alone(comm: MPI.Intracomm, config: Config) -> Run:
    """Run a training on rank 0, for which the others wait; every rank gets its files."""
    if comm.rank == 0:
        train(MPI.COMM_SELF, config)
    comm.Barrier()
    return Run(Path(config.run.dir), 0)


def predict_with(
    comm: MPI.Intracomm,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Predict:
    """Return `predict(output, *options)`, which runs the command and returns its JSON on rank 0."""

    def call(output: Path, *options: object) -> dict[str, Any]:
        words = ["predict", run.path, "--json", "-o", output, *options]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        capsys.readouterr()
        assert PREDICT.call(comm=comm) == 0
        comm.Barrier()
        shown = capsys.readouterr().out
        assert bool(shown) == (comm.rank == 0)
        return json.loads(shown) if shown else {}

    return call


def assert_same(run: Run, other: Run) -> None:
    """Require equal bits of weights, optimiser, metrics, predictions and results.

    Rank 0 compares the files, which it has written.
    """
    if MPI.COMM_WORLD.rank > 0:
        return
    mine, theirs = run.tensors(), other.tensors()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    assert [lasting(row) for row in run.metrics] == [lasting(row) for row in other.metrics]
    assert run.summary["seeds"] == other.summary["seeds"]
    mine, theirs = run.predictions(), other.predictions()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


MOVED = ("rows_sent", "bytes_sent", "evaluate_rows", "evaluate_bytes")
"""The traffic in a line of metrics, which depends on the ranks."""


TIMES = ("epoch_s", "evaluate_s", "sample_wait_share")


def lasting(row: dict[str, Any]) -> dict[str, Any]:
    """Return the values in a line of metrics other than times."""
    return {name: value for name, value in row.items() if name not in TIMES}
