"""Fields in other modes: equal bits, node types, replicas, narrow rows, other exchanges."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

import hpcgnn
from hpcgnn.errors import CollectiveInputError
from hpcgnn.storage import Rollout
from tests.support.series import field_config, planted, with_holes, write_series
from tests.support.training import predict_with, train

EXACT = ("train.dtype=float32", "train.reproducible=true", "model.num_layers=2")


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "words",
    [
        ("fields.unroll=2", "fields.noise=0.1", "fields.predict=difference"),
        ("model.name=sage", "fields.batch=2", "fields.fixed=feature:1"),
    ],
)
def test_bits_are_equal_on_all_ranks(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, words = write_series(comm, comm_tmp_path, with_holes(planted())), (*EXACT, *words)
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    where = ("--rollout", 6, "--from", 12)
    predict_with(comm, run, monkeypatch, capsys)(comm_tmp_path / "all.h5", *where)
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, field_config(store, comm_tmp_path / "alone", *words))
        tensors = run.tensors()
        for name, tensor in alone.tensors().items():
            np.testing.assert_array_equal(tensors[name], tensor, err_msg=name)
        for mine, theirs in zip(run.metrics, alone.metrics, strict=True):
            names = [name for name in mine if name.startswith(("train_", "valid_", "test_"))]
            assert [mine[name] for name in names] == [theirs[name] for name in names]
        predict_with(MPI.COMM_SELF, run, monkeypatch, capsys)(comm_tmp_path / "one.h5", *where)
        one, every = (Rollout(comm_tmp_path / f"{name}.h5") for name in ("one", "all"))
        with one, every:
            for step in range(6):
                np.testing.assert_array_equal(one.read("u", step), every.read("u", step))
    comm.Barrier()


@pytest.mark.several_ranks
def test_nodes_of_a_type_are_given(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    walls = np.arange(29) % 5 == 0
    fields = replace(planted(), features=None, types=walls.astype(np.uint8))
    store = write_series(comm, comm_tmp_path, fields)
    words = ("fields.fixed=wall", "model.name=rgcn", "model.num_layers=2", "fields.unroll=2")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "all.h5", "--rollout", 3, "--from", 12)
    with Rollout(comm_tmp_path / "all.h5") as every:
        found, truth = every.read("u", 1), fields.values["u"][14]
    np.testing.assert_array_equal(found[walls], truth[walls])
    assert (found[~walls] != truth[~walls]).all()
    renamed = replace(fields, type_names=("wall", "free"))
    other = write_series(comm, comm_tmp_path, renamed, name="other")
    with (
        pytest.raises(CollectiveInputError, match=r"node types \('wall', 'free'\), but it was"),
        hpcgnn.Stepper(comm, run.path, store=str(other)),
    ):
        pass
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, field_config(store, comm_tmp_path / "alone", *words))
        losses = alone.column("train_loss")
        np.testing.assert_allclose(run.column("train_loss"), losses, rtol=1e-12)
    comm.Barrier()


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        (("exchange.replication=2", "fields.unroll=2"), 1e-12),
        (("train.dtype=float32", "train.precision=bfloat16", "model.num_layers=2"), 1e-2),
        (("exchange.method=joint", "exchange.schedule=sequential"), 1e-12),
        (("exchange.method=auto",), 1e-12),
    ],
)
def test_modes_do_not_matter(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], tolerance: float
) -> None:
    if "exchange.replication=2" in words and comm.size % 2:
        pytest.skip("replicas are of an even number of ranks")
    # With nothing but fields.
    fields = replace(planted(), features=None, positions=None, weights=None)
    store = write_series(comm, comm_tmp_path, fields)
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    if comm.rank == 0:
        alone = [word for word in words if "replication" not in word]
        one = train(MPI.COMM_SELF, field_config(store, comm_tmp_path / "alone", *alone))
        losses = one.column("train_loss")
        np.testing.assert_allclose(run.column("train_loss"), losses, rtol=tolerance)
    comm.Barrier()
