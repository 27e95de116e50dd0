"""Vectors of nodes equal those of one process, whichever rank owns a node."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch.nn import functional

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import CollectiveInputError
from hpcgnn.config.config import Config
from hpcgnn.nn.node_types import draw_vectors
from hpcgnn.storage import Split
from tests.support import training
from tests.support.dense_models import Dense, logits
from tests.support.training_oracle import first_rows, initial_model

BARE = 1
WORDS = (
    "model.embeddings=true",
    "train.dtype=float64",
    "model.dropout=0.3",
    "train.epochs=3",
    "train.clip_norm=0.3",
)
SPREADS = {
    "aware": ("exchange.method=aware",),
    "all nodes": ("exchange.method=joint", "exchange.active_sets=false"),
    "stages": ("exchange.schedule=sequential", "model.name=gat"),
    "decay": ("train.weight_decay=0.01", "model.input_width=3"),
}


@pytest.fixture
def graph() -> training.Graph:
    return training.make_graph(weighted=True).with_types()


def reference_losses(graph: training.Graph, config: Config) -> Iterator[float]:
    """Yield the losses of dense training with a vector for each node without features."""
    model = initial_model(graph, config).double()
    bare = np.flatnonzero(graph.types == BARE)
    width = len(model.inputs.biases[0])
    start = draw_vectors(graph.ids[bare], width, config.train.seeds[0])
    vectors = torch.nn.Parameter(torch.from_numpy(start))
    parameters = [*model.parameters(), vectors]
    decay = config.train.weight_decay
    optimizer = torch.optim.Adam(parameters, config.train.learning_rate, weight_decay=decay)
    trains = torch.from_numpy((graph.split == Split.TRAIN) & (graph.labels >= 0))
    labels = torch.from_numpy(graph.labels.astype(np.int64))[trains]
    dense = Dense(torch.from_numpy(graph.adjacency.toarray()), graph.directed)
    if config.exchange.active_sets:
        dense = dense.with_sets(model.body, trains)
    for epoch in range(config.train.epochs):
        optimizer.zero_grad()
        x = first_rows(graph, model, None).index_add(0, torch.from_numpy(bare), vectors)
        key = DropoutKey(config.train.seeds[0], epoch)
        out = logits(config.model.name, model.body, dense, x, key)
        loss = functional.cross_entropy(out[trains], labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.train.clip_norm)
        optimizer.step()
        yield float(loss.detach())


@pytest.mark.parametrize("name", SPREADS)
def test_losses_equal_the_reference(
    comm: MPI.Intracomm, comm_tmp_path: Path, graph: training.Graph, name: str
) -> None:
    method = "empty second" if comm.size > 2 else "random"
    store = training.write_store(comm, comm_tmp_path, graph, method=method, parts=comm.size)
    config = training.make_config(store, comm_tmp_path / "run", *WORDS, *SPREADS[name])
    losses = training.train(comm, config).column("train_loss")
    np.testing.assert_allclose(losses, list(reference_losses(graph, config)), rtol=1e-9)


def test_replicas_hold_equal_vectors(
    comm: MPI.Intracomm, comm_tmp_path: Path, graph: training.Graph
) -> None:
    if comm.size % 2:
        pytest.skip("two replicas need an even number of ranks")
    store = training.write_store(comm, comm_tmp_path, graph)
    config = training.make_config(store, comm_tmp_path / "run", *WORDS, "exchange.replication=2")
    losses = training.train(comm, config).column("train_loss")
    np.testing.assert_allclose(losses, list(reference_losses(graph, config)), rtol=1e-9)


def test_a_run_goes_on_at_any_number_of_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, graph: training.Graph
) -> None:
    store = training.write_store(comm, comm_tmp_path, graph)
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *WORDS))
    alone = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    config = training.make_config(store, comm_tmp_path / "same", *WORDS)
    training.train(comm, config, training.StopAfter(2))
    training.assert_same(whole, training.train(comm, config))
    other = training.make_config(store, comm_tmp_path / "other", *WORDS)
    training.train(comm, other, training.StopAfter(2))
    if alone != MPI.COMM_NULL:
        training.train(alone, other)
        alone.Free()
    comm.Barrier()
    found, expected = training.Run(Path(other.run.dir), 0).tensors(), whole.tensors()
    assert found.keys() == expected.keys()
    vectors = [name for name in found if "inputs.vectors.1" in name and found[name].ndim]
    # The weights, the kept weights, and two moments.
    assert len(vectors) == 4
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-7, atol=1e-12, err_msg=name)


def test_vectors_are_for_nodes_that_were_trained_on(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    graph: training.Graph,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = training.write_store(comm, comm_tmp_path, graph)
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *WORDS))
    predict = training.predict_with(comm, run, monkeypatch, capsys)
    (comm_tmp_path / "metis").mkdir(exist_ok=True)
    moved = training.write_store(comm, comm_tmp_path / "metis", graph, method="metis")
    predict(comm_tmp_path / "moved.npy", "--store", moved)
    expected = run.predictions()["probabilities"]
    np.testing.assert_allclose(np.load(comm_tmp_path / "moved.npy"), expected, rtol=1e-5)
    (comm_tmp_path / "renumbered").mkdir(exist_ok=True)
    renumbered = replace(graph, ids=graph.ids * 1000)
    strange = training.write_store(comm, comm_tmp_path / "renumbered", renumbered)
    with pytest.raises(CollectiveInputError, match=r"no vector of node \d+,? .*their graph"):
        predict(comm_tmp_path / "strange.npy", "--store", strange)


def test_what_has_no_vectors_says_so(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    config = training.make_config(store, comm_tmp_path / "run", "model.embeddings=true")
    with pytest.raises(CollectiveInputError, match=r"of all nodes .* leave model.embeddings"):
        training.train(comm, config)


def test_first_values_depend_on_seed_and_id_only() -> None:
    ids = np.array([-3, 0, 5, 1 << 62])
    vectors = draw_vectors(ids, 200, 7)
    np.testing.assert_array_equal(draw_vectors(ids[[2, 0]], 200, 7), vectors[[2, 0]])
    assert abs(vectors - draw_vectors(ids, 200, 8)).min() > 0
    assert abs(np.corrcoef(vectors)[np.triu_indices(4, 1)]).max() < 0.3
    np.testing.assert_allclose((vectors**2).sum(1), 1, rtol=0.3)


def test_untyped_graphs_without_features_have_vectors_too(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    bare = replace(training.make_graph(weighted=True), features=None)
    types = np.zeros(len(bare.ids), np.uint8)
    typed = replace(bare, types=types, type_features={"node": None})
    runs = []
    for name, graph in (("bare", bare), ("typed", typed)):
        folder = comm_tmp_path / name
        folder.mkdir(exist_ok=True)
        store = training.write_store(comm, folder, graph)
        runs.append(training.train(comm, training.make_config(store, folder / "run", *WORDS)))
    training.assert_same(*runs)
    with pytest.raises(
        CollectiveInputError, match=r"--nodes FILE, derive them .* learn a vector for each node"
    ):
        training.train(
            comm, training.make_config(comm_tmp_path / "bare" / store.name, folder / "refused")
        )
