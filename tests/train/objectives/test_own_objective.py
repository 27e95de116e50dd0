"""An objective in one file, with two sources: ranks, learning, resuming, predictions, refusals."""

import sys
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from tests.support.training import (
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    predict_with,
    train,
    write_store,
)

PLAN = find_command("plan")

MODULE = "tests.train.objectives.degree"
WHOLE = (f"train.task={MODULE}:ON_WHOLE", "exchange.active_sets=true")
SAMPLES = (f"train.task={MODULE}:ON_SAMPLES", "sampling.budget=30", "sampling.steps=3")
WORDS = ("train.dtype=float64", "model.name=gin", "train.learning_rate=0.05")
SOURCES = pytest.mark.parametrize("source", [WHOLE, SAMPLES], ids=["whole", "samples"])


@SOURCES
def test_it_learns_alike_on_all_ranks(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    source: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    words = (*WORDS, *source, "train.epochs=30", "train.evaluate_every=10")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    losses = run.column("train_loss")
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, make_config(store, comm_tmp_path / "alone", *words))
        np.testing.assert_allclose(losses, alone.column("train_loss"), rtol=1e-8)
    comm.Barrier()
    assert losses[-1] < losses[0] / 2
    degrees = np.diff(graph.adjacency.indptr)
    found = run.predictions()
    order = np.argsort(graph.ids)
    assert found["node_id"].tolist() == graph.ids[order].tolist()
    error = np.abs(found["values"][:, 0] - degrees[order]).mean()
    # The best single number for all nodes would be the median.
    assert error < np.abs(degrees - np.median(degrees)).mean()
    predict = predict_with(comm, run, monkeypatch, capsys)
    written = predict(comm_tmp_path / "again.npy", "--trust-code")
    if comm.rank == 0:
        assert written["what"] == "values"
        again = np.load(comm_tmp_path / "again.npy")
        np.testing.assert_array_equal(again, found["values"])


@pytest.mark.max_ranks(2)
@SOURCES
def test_it_goes_on_as_if_nothing_had_happened(
    comm: MPI.Intracomm, comm_tmp_path: Path, source: tuple[str, ...]
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = (*WORDS, *source, "train.epochs=3", "model.dropout=0.3", "run.checkpoint_every=1")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(2))
    assert_same(whole, train(comm, config))


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*WHOLE, "train.inductive=true"), "its degrees are of all edges"),
        ((*SAMPLES, "train.reproducible=true"), "round in the order of the ranks"),
        ((*WHOLE, "train.reproducible=true"), "round in the order of the ranks"),
        (("train.task=tests.train.objectives.degree:OTHER",), "OTHER does not exist"),
    ],
)
def test_what_its_declarations_refuse(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, make_config(store, comm_tmp_path / "run", *words))


def test_degrees_alone_do_not_plan_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shape.toml").touch()
    words = ["plan", "--shape", str(tmp_path / "shape.toml"), "--ranks", "2", *WORDS, WHOLE[0]]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(InputError, match="its graph is read"):
        PLAN.call()


def test_a_task_without_a_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.task"):
        make_config(tmp_path / "g.h5", tmp_path / "run", "train.task=degree")
