"""Fields are learned to their planted optimum, equally on any ranks, and from a checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.graph.context import Context
from hpcgnn.trace import WAIT_FOR_SAMPLES, TraceRecorder, trace_file
from hpcgnn.train.fields.samples import SampleStep
from hpcgnn.train.tasks import load_task
from tests.support.series import (
    Fields,
    field_config,
    planted,
    random_fields,
    with_holes,
    write_series,
)
from tests.support.training import Run, StopAfter, assert_same, train

LEARN = (
    "train.epochs=25",
    "train.evaluate_every=25",
    "train.schedule=cosine",
    "train.learning_rate=0.1",
)


def run_on(comm: MPI.Intracomm, folder: Path, fields: Fields, *words: str) -> Run:
    """Train on some fields."""
    store = write_series(comm, folder, fields)
    return train(comm, field_config(store, folder / "run", *words))


@pytest.mark.quality
@pytest.mark.parametrize(
    "words",
    [
        ("fields.predict=next",),
        ("fields.predict=next", "fields.unroll=3", "fields.batch=2"),
        ("fields.predict=same", "fields.targets=p", "fields.inputs=u"),
    ],
)
def test_the_planted_optimum_is_reached(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = run_on(comm, comm_tmp_path, planted(), *LEARN, "fields.batch=2", *words)
    last = run.metrics[-1]
    assert last["train_r2"] > 0.98
    assert last["valid_r2"] > 0.9
    assert last["valid_rel_l2"] < 0.2
    assert last["train_loss"] < 0.02


@pytest.mark.quality
def test_of_random_fields_nothing_is_learned(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    last = run_on(comm, comm_tmp_path, random_fields(), *LEARN).metrics[-1]
    assert abs(last["test_r2"]) < 0.1
    assert abs(last["test_rel_l2"] - 1) < 0.05


CASES = {
    "noise": ("fields.noise=0.1", "fields.batch=3"),
    "unrolled": ("fields.unroll=3", "fields.predict=difference", "model.dropout=0.2"),
    "history": ("fields.history=3", "fields.inputs=['p', 'u']", "model.num_layers=2"),
    "same": ("fields.predict=same", "fields.targets=p", "fields.inputs=u"),
    "edges": ("model.name=meshgraphnet", "model.num_layers=2", "fields.unroll=2"),
    "fixed": ("fields.fixed=feature:1", "fields.unroll=2"),
    "sage": ("model.name=sage", "fields.split=trajectory", "fields.valid=0.3", "fields.test=0.3"),
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_matter(comm: MPI.Intracomm, comm_tmp_path: Path, case: str) -> None:
    fields = planted(trajectories=3 if case == "sage" else 1)
    fields = replace(with_holes(fields), edge_features=case == "edges")
    store = write_series(comm, comm_tmp_path, fields)
    words = ("fields.evaluated=2", "train.epochs=1", *CASES[case])
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, field_config(store, comm_tmp_path / "alone", *words))
        for mine, theirs in zip(run.metrics, alone.metrics, strict=True):
            for name, value in theirs.items():
                if name.startswith(("train_", "valid_", "test_")):
                    np.testing.assert_allclose(mine[name], value, rtol=1e-12, err_msg=name)
        tensors = run.tensors()
        for name, tensor in alone.tensors().items():
            np.testing.assert_allclose(tensors[name], tensor, rtol=1e-9, atol=1e-13)
    comm.Barrier()


def test_waiting_for_samples_is_told(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    words = ("model.name=sage", "train.epochs=3", "train.evaluate_every=3", "trace.enabled=true")
    run = run_on(comm, comm_tmp_path, planted(), *words)
    comm.Barrier()
    waited_ns = [0] * 3
    for rank in range(comm.size):
        for line in trace_file(run.path, rank).read_text().splitlines():
            record = json.loads(line)
            if record.get("name") == WAIT_FOR_SAMPLES:
                waited_ns[record["epoch"]] += record["dur_ns"]
    # The first sample of an epoch does not exist yet.
    assert min(waited_ns) > 0
    shares = [row["sample_wait_share"] for row in run.metrics]
    seconds = [row["epoch_s"] * comm.size for row in run.metrics]
    np.testing.assert_allclose(np.multiply(shares, seconds), np.multiply(waited_ns, 1e-9))
    assert run.summary["sample_wait_share"] == np.median(shares[1:])


def test_a_gap_between_steps_is_told(
    comm: MPI.Intracomm, comm_tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = planted(trajectories=2)
    run_on(comm, comm_tmp_path, fields, "train.epochs=1")
    assert "the model takes each for one step" not in caplog.text
    store = write_series(comm, comm_tmp_path, replace(fields, gap=0.5), name="uneven")
    train(comm, field_config(store, comm_tmp_path / "uneven", "train.epochs=1"))
    if comm.rank == 0:
        assert "steps: 1 of 30 differ from the median length 0.5; the model takes" in caplog.text


def test_a_part_without_samples_is_told(
    comm: MPI.Intracomm, comm_tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Parts of 8, 4 and 4 steps; a sample is 5.
    run_on(comm, comm_tmp_path, planted(), "train.epochs=1", "fields.history=4")
    if comm.rank == 0:
        assert "fields.valid = 0.25: no sample fits into such a part; raise it, or" in caplog.text
        assert "fields.test = 0.25: no sample fits into such a part; raise it" in caplog.text


SAMPLES = ("fields.batch=3", "fields.noise=0.1", "fields.unroll=2")
BATCHES = {
    "messages": ("model.name=meshgraphnet", "model.num_layers=2"),
    "attention": ("model.name=gat", "graph.weights=ignore", "model.edge_features=true"),
    "sums": ("model.name=sage", "model.dropout=0.3"),
    "relations": ("model.name=rgcn",),
}


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "case",
    [
        *("messages", "sums"),
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("attention", "relations")),
    ],
)
def test_groups_learn_what_one_group_does(
    comm: MPI.Intracomm, comm_tmp_path: Path, case: str
) -> None:
    store = write_series(
        comm, comm_tmp_path, replace(planted(), edge_features=case in ("messages", "attention"))
    )
    # 7 samples: the last step has only one, so some group has none.
    words = ("fields.evaluated=2", "train.epochs=3", *SAMPLES, *BATCHES[case])
    groups = {2: 2, 3: 3, 4: 2}.get(comm.size, 1)
    config = field_config(store, comm_tmp_path / "run", *words, f"exchange.groups={groups}")
    train(comm, config, StopAfter(1))
    # It resumes in one group, and then in several again.
    one = field_config(store, comm_tmp_path / "run", *words)
    train(comm, one, StopAfter(1))
    run = train(comm, config)
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, field_config(store, comm_tmp_path / "alone", *words))
        for name in ("train_loss", "valid_rmse_u"):
            mine, theirs = (
                [row[name] for row in each.metrics if name in row] for each in (run, alone)
            )
            np.testing.assert_allclose(mine, theirs, rtol=1e-11)
        assert run.summary["groups"] == groups
    comm.Barrier()


def test_a_batch_is_the_mean_of_its_samples_and_shares_messages(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    store = write_series(comm, comm_tmp_path, with_holes(planted()))
    config = field_config(store, comm_tmp_path / "run", "model.num_layers=2", "model.name=sage")
    with ProcessGrid(comm) as grid:
        trace = TraceRecorder.unattached()
        objective = load_task(Context.open(grid, config, trace)).objective
        model, key, losses, messages = objective.make_model(1), DropoutKey(1, 0), [], []
        samples = [objective.series.sample(anchor, 1) for anchor in (2, 5, 7)]
        # The plan of three copies is made in the first pass.
        for step in (samples, samples, samples[:1], samples[1:2], samples[2:]):
            numbered = [replace(each, number=number) for number, each in enumerate(step)]
            before = _messages(trace)
            loss = objective.loss(model, SampleStep(numbered, len(step)), key)
            losses.append(grid.layer.allreduce(float(loss.detach())))
            messages.append(_messages(trace) - before)
        np.testing.assert_allclose(losses[1], np.mean(losses[2:]), rtol=1e-12)
        assert messages[1:] == messages[1:2] * 4
        assert messages[1] > 0 or grid.size == 1


def _messages(trace: TraceRecorder) -> int:
    """Return the number of times that this rank has sent rows."""
    counts = {name: int(each["count"]) for name, each in trace.totals().items()}
    return sum(count for name, count in counts.items() if name.startswith("exchange."))


@pytest.mark.max_ranks(2)
def test_a_run_that_was_stopped_goes_on(
    comm: MPI.Intracomm, comm_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_series(comm, comm_tmp_path, planted())
    words = ("train.epochs=4", "fields.noise=0.1", "model.dropout=0.3", "run.checkpoint_every=1")
    whole = train(comm, field_config(store, comm_tmp_path / "whole", *words))
    assert ("model.dropout = 0.3: models" in capsys.readouterr().err) == (comm.rank == 0)
    config = field_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(2))
    again = train(comm, config)
    assert_same(again, whole)


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize("name", ["u", "p"])
def test_metrics_are_those_of_their_definitions(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str
) -> None:
    # With a learning rate that changes nothing, all inputs are known.
    fields = with_holes(planted())
    words = ("train.learning_rate=1e-300", "train.epochs=1", "fields.evaluated=0")
    of_p = ("fields.targets=p", "fields.inputs=u", "fields.predict=same")
    last = run_on(comm, comm_tmp_path, fields, *words, *of_p[: 3 * (name == "p")]).metrics[-1]
    # The loss is in units of deviations, errors in physical units.
    truth = fields.values[name][13 - (name == "p") : 16]
    weights = fields.weights[None, :, None] * ~np.isnan(truth)
    size = np.nansum(weights * truth**2)
    errors = last[f"test_rmse_{name}"] ** 2 * weights.sum()
    np.testing.assert_allclose(last["test_rel_l2"], np.sqrt(errors / size), rtol=1e-12)
    if name == "p":
        # The share of the variance of the only column.
        mean = np.nansum(weights * truth) / weights.sum()
        spread = np.nansum(weights * (truth - mean) ** 2)
        np.testing.assert_allclose(last["test_r2"], 1 - errors / spread, rtol=1e-9)


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fields.targets=[]",), "name the fields to predict"),
        (("fields.targets=v",), "no field 'v' of nodes; choose one of p, u"),
        (("fields.fixed=wal",), "no nodes are called 'wal'"),
        (("fields.fixed=feature:9",), "2 features"),
        (("fields.fixed=feature:0",), "fields: u: no value to train on: .* given"),
        (("train.task=full",), "it predicts values without time"),
        (("train.inductive=true",), "its splits are by time"),
        (("fields.unroll=30",), "a sample is 31 steps"),
        (("fields.loss=tests.support.series:none",), "none does not exist"),
        (("fields.valid=0", "train.patience=2"), "raise fields.valid"),
    ],
)
def test_what_does_not_work_is_one_line(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    store = write_series(comm, comm_tmp_path, planted())
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, field_config(store, comm_tmp_path / "run", *words))


@pytest.mark.max_ranks(2)
def test_numbers_that_mark_missing_values_are_named(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    fields = planted()
    fields.values["p"][3, 4] = np.finfo(np.float64).max
    store = write_series(comm, comm_tmp_path, fields)
    with pytest.raises(CollectiveInputError, match="fields: p: values are too large"):
        train(comm, field_config(store, comm_tmp_path / "run", "fields.inputs=['u', 'p']"))
