"""Predictions of program graphs: for all graphs, along all edges or in a band; refusals."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.graph.context import Context
from hpcgnn.storage import InstanceSplit, InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.programs import predictions
from hpcgnn.train.programs.objective import ProgramObjective
from hpcgnn.train.programs.predictions import CandidateScores, by_split
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.saved_model import open_saved_model
from tests.support.supergraphs import NUM_BUCKETS
from tests.support.training import Predict, Run, predict_with, train
from tests.train.programs.test_programs import SIZES, make, write

NUM_GRAPHS = sum(map(len, SIZES.values()))


@pytest.fixture
def run(comm: MPI.Intracomm, comm_tmp_path: Path) -> Run:
    store = comm_tmp_path / "programs.h5"
    if comm.rank == 0:
        write(store, SIZES, NUM_BUCKETS)
        write(comm_tmp_path / "wrong.h5", {InstanceSplit.VALID: [6]}, 16)
    comm.Barrier()
    found = train(comm, make(store, comm_tmp_path / "run", "train.epochs=2"))
    comm.Barrier()
    return found


@pytest.fixture
def predict(
    comm: MPI.Intracomm,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Predict:
    return predict_with(comm, run, monkeypatch, capsys)


def read(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}


def test_all_graphs(comm: MPI.Intracomm, comm_tmp_path: Path, run: Run, predict: Predict) -> None:
    said = predict(comm_tmp_path / "out.h5")
    found = read(comm_tmp_path / "out.h5")
    assert found["graph_id"].tolist() == list(range(NUM_GRAPHS))
    judged = run.predictions()
    train_graphs = len(SIZES[InstanceSplit.TRAIN])
    for name in ("probabilities", "label", "prediction"):
        np.testing.assert_allclose(found[name][train_graphs:], judged[name], rtol=1e-6, atol=1e-7)
    with InstanceStore.open(comm_tmp_path / "programs.h5") as store:
        graphs = store.graphs
    for name in ("label", "split", "file", "line"):
        np.testing.assert_array_equal(found[name], graphs[name])
    assert found["files"].tolist() == [b"one.py"]
    np.testing.assert_array_equal(found["prediction"], found["probabilities"].argmax(axis=1))
    lacking = np.arange(found["probabilities"].shape[1]) >= graphs["num_candidates"][:, None]
    assert (found["probabilities"][lacking] == 0).all()
    if comm.rank == 0:
        (seed,) = run.summary["seeds"]
        assert said["splits"]["unseen"]["accuracy"] == seed["all_graphs"]["unseen_accuracy"]
        assert said["splits"]["valid"]["loss"] == pytest.approx(seed["all_graphs"]["valid_loss"])
        assert said["splits"]["train"]["graphs"] == train_graphs
        assert said["rows"] == NUM_GRAPHS


def test_in_a_band(comm_tmp_path: Path, predict: Predict) -> None:
    predict(comm_tmp_path / "all.h5")
    found = {}
    for block in (4, 1000):
        predict(comm_tmp_path / "band.h5", "--block", block)
        found[block] = read(comm_tmp_path / "band.h5")["probabilities"]
    expected = read(comm_tmp_path / "all.h5")["probabilities"]
    np.testing.assert_allclose(found[1000], expected, rtol=1e-6)
    assert np.abs(found[4] - expected).max() > 1e-4


def test_the_loss_of_a_share_that_underflows_is_finite(tmp_path: Path) -> None:
    write(tmp_path / "programs.h5", {InstanceSplit.VALID: [6, 9]}, NUM_BUCKETS)
    with InstanceStore.open(tmp_path / "programs.h5") as store:
        shares = np.zeros((2, int(store.graphs["num_candidates"].max())), np.float32)
        shares[1, store.graphs["label"][1]] = 1
        found = by_split(store, CandidateScores(np.arange(2), shares))["valid"]
    assert found["loss"] == pytest.approx(-np.log(np.finfo(np.float32).tiny) / 2)


def test_faults(comm_tmp_path: Path, predict: Predict) -> None:
    path = comm_tmp_path / "out.h5"
    cases: dict[str, tuple[object, ...]] = {
        "--nodes does not work with train.task": ("--nodes", "1,2"),
        "--what embeddings does not work with train.task": ("--what", "embeddings"),
        "--format csv does not work with train.task": ("--format", "csv"),
        "--block = -3: give a size": ("--block", -3),
        "num_buckets 16, but 17": ("--store", comm_tmp_path / "wrong.h5"),
        "missing.h5: cannot be opened": ("--store", comm_tmp_path / "missing.h5"),
    }
    for message, options in cases.items():
        with pytest.raises(CollectiveInputError, match=message):
            predict(path, *options)
    assert not path.exists()


def test_weights_of_another_model_are_refused(
    comm: MPI.Intracomm, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = open_saved_model(run.path)
    narrow = {name: value[..., :1] for name, value in saved.checkpoint.best.items()}
    other = replace(saved, checkpoint=replace(saved.checkpoint, best=narrow))
    monkeypatch.setattr(predictions, "open_saved_model", lambda _path, _seed: other)
    with ProcessGrid(comm) as grid:
        context = Context.open(grid, saved.config, TraceRecorder.off())
        objective, _ = ProgramObjective.load(context)
        with pytest.raises(CollectiveInputError, match=r"best\.safetensors.* is torch.float64 "):
            objective.save_predictions(RunDirectory(run.path), 1)
