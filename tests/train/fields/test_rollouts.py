"""Rollouts equal feeding a model by hand, for any number of ranks, and their files can be read."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from mpi4py import MPI

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file

import hpcgnn
from analysis import rollout as analyse
from hpcgnn.autograd.numerics import integers
from hpcgnn.comm import CollectiveInputError
from hpcgnn.errors import InputError
from hpcgnn.storage import Rollout
from tests.support.integers import needs_integers, round_small_graphs
from tests.support.series import field_config, planted, symmetric, with_holes, write_series
from tests.support.training import predict_with, train

WORDS = ("train.epochs=3", "fields.horizons=[1, 3]")


def by_hand(run: Path, fields: object, steps: range, *, fixed: int = 3) -> np.ndarray:
    """Return one GCN layer's predictions of u, fed back, with the first nodes prescribed.

    Values that no step has are read as means; they stay missing, like unknown prescribed ones.
    """
    tensors = load_file(run / "model.safetensors")
    (weight,) = (v for k, v in tensors.items() if k.endswith("linear.weight"))
    (bias,) = (v for k, v in tensors.items() if k.endswith("bias"))
    scale = {key.rpartition("frames/")[2]: v for key, v in tensors.items() if "frames/" in key}
    outputs = {key.rpartition("outputs/")[2]: v for key, v in tensors.items() if "outputs/" in key}
    matrix, truth, found = symmetric(fields.adjacency), fields.values["u"], []
    stays, filled = np.isnan(truth).all(0), np.where(np.isnan(truth), scale["mean"], truth)
    stays[:fixed], u = True, filled[steps.start]
    for step in steps:
        scaled = (u - scale["mean"]) / scale["deviation"]
        given = [] if fields.features is None else [fields.features]
        u = matrix @ np.column_stack([*given, scaled]) @ weight.T + bias
        u = u * outputs["deviation"] + outputs["mean"]
        u = np.where(stays, filled[step + 1], u)
        found.append(np.where(stays & np.isnan(truth[step + 1]), np.nan, u))
    return np.array(found)


def test_a_rollout_feeds_the_model_its_own_predictions(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = planted()
    store = write_series(comm, comm_tmp_path, fields)
    words = (*WORDS, "fields.fixed=feature:1")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    told = predict(comm_tmp_path / "in & out.xdmf", "--rollout", 5, "--from", 3)
    expected = by_hand(run.path, fields, range(3, 8))
    with Rollout(comm_tmp_path / "in & out.h5") as rollout:
        assert rollout.node_id.tolist() == list(range(len(fields.features)))
        np.testing.assert_array_equal(rollout.positions, fields.positions)
        np.testing.assert_array_equal(rollout.times, 0.5 * np.arange(4, 9))
        for step, values in enumerate(expected):
            np.testing.assert_allclose(rollout.read("u", step), values, rtol=1e-10, atol=1e-12)
    if comm.rank == 0:
        errors = (expected - fields.values["u"][4:9])[:, 3:]
        weights = np.broadcast_to(fields.weights[3:, None], errors.shape[1:])
        rmse = np.sqrt((weights * errors**2).sum((1, 2)) / weights.sum())
        np.testing.assert_allclose(told["rollout"]["rmse"]["u"], rmse, rtol=1e-9)
        still = (fields.values["u"][[3]] - fields.values["u"][4:9])[:, 3:]
        rmse = np.sqrt((weights * still**2).sum((1, 2)) / weights.sum())
        np.testing.assert_allclose(told["rollout"]["unchanged_rmse"]["u"], rmse, rtol=1e-9)
        root = ET.parse(comm_tmp_path / "in & out.xdmf").getroot()
        assert [each.get("Value") for each in root.iter("Time")] == list(map(str, rollout.times))
        with h5py.File(comm_tmp_path / "in & out.h5") as file:
            for item in root.iter("DataItem"):
                if item.get("Format") == "HDF":
                    name, _, dataset = item.text.partition(":")
                    assert name == "in & out.h5"
                    shape = tuple(map(int, item.get("Dimensions").split()))
                    assert file[dataset].shape == shape
            # ParaView shows a point for each.
            assert file["cells"][:, 0].tolist() == list(range(len(fields.features)))
    for part in ("valid", "test"):
        found = run.summary["seeds"][0]["rollout"][part]
        assert found["steps"] == 3
        assert len(found["rmse"]["u"]) == len(found["unchanged_rmse"]["u"]) == 3
    # The end of a run writes one that begins at the test part.
    with Rollout(run.path / "rollout.h5") as rollout:
        assert rollout.attributes["start"] == 12
        expected = by_hand(run.path, fields, range(12, 15))
        np.testing.assert_allclose(rollout.read("u", 2), expected[2], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("features", [True, False])
def test_a_rollout_scales_features_as_training_did(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    features: bool,
) -> None:
    fields = planted()
    table = fields.features.astype(np.float64)
    spread = table.std(0)
    scaled = replace(fields, features=(table - table.mean(0)) / np.where(spread > 0, spread, 1))
    if not features:
        fields, scaled = (replace(f, features=None) for f in (fields, scaled))
    store = write_series(comm, comm_tmp_path, fields)
    words = (*WORDS, "graph.normalize_features=standard")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "out.h5", "--rollout", 2, "--from", 3)
    with Rollout(comm_tmp_path / "out.h5") as rollout:
        expected = by_hand(run.path, scaled, range(3, 5), fixed=0)[1]
        np.testing.assert_allclose(rollout.read("u", 1), expected, rtol=1e-10, atol=1e-12)


def test_what_never_has_a_value_stays_missing(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = replace(planted(), feature_names=("all", "first"))
    u = fields.values["u"]
    u[:, [9, 20]] = u[:, 8, 1] = u[5, 1] = u[4, 12] = np.nan
    store = write_series(comm, comm_tmp_path, fields)
    run = train(comm, field_config(store, comm_tmp_path / "run", *WORDS, "fields.fixed=first"))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "out.h5", "--rollout", 4, "--from", 3)
    assert ("never has a value: u of 3 nodes" in caplog.text) == (comm.rank == 0)
    expected = by_hand(run.path, fields, range(3, 7))
    assert np.isnan(expected).sum() == 4 * 5 + 2
    with Rollout(comm_tmp_path / "out.h5") as rollout:
        for step, values in enumerate(expected):
            np.testing.assert_allclose(rollout.read("u", step), values, rtol=1e-10, atol=1e-12)
    with hpcgnn.Stepper(comm, run.path) as stepper:
        states, ids = stepper.stored(3), stepper.node_ids
        for number, values in enumerate(expected, 4):
            states = [stepper.step(states, {"u": u[number][ids]})]
            np.testing.assert_allclose(states[0]["u"], values[ids], rtol=1e-10, atol=1e-12)


@needs_integers
def test_steps_are_not_rounded_to_integers(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    inside = integers._multiply
    round_small_graphs(monkeypatch)
    monkeypatch.setattr(
        integers, "_multiply", lambda *given, **named: calls.append(1) or inside(*given, **named)
    )
    store = write_series(comm, comm_tmp_path, planted())
    words = (*WORDS, "train.dtype=float32", "train.products=int8", "model.hidden=64")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words, "model.num_layers=3"))
    # A rank may have too few rows.
    assert comm.allreduce(len(calls)) > 0
    calls.clear()
    with hpcgnn.Stepper(comm, run.path) as stepper:
        stepper.step(stepper.stored(3))
    assert not calls


def test_what_is_missing_counts_nowhere(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = with_holes(planted())
    # A step without any value remains a step of the rollout.
    fields.values["u"][5] = np.nan
    store = write_series(comm, comm_tmp_path, fields)
    run = train(comm, field_config(store, comm_tmp_path / "run", *WORDS))
    told = predict_with(comm, run, monkeypatch, capsys)(
        comm_tmp_path / "out.h5", "--rollout", 3, "--from", 3
    )
    if comm.rank > 0:
        return
    analyse.main([str(comm_tmp_path / "out.h5"), "--json"])
    page = json.loads(capsys.readouterr().out)["errors"]
    truth, weights = fields.values["u"], fields.weights[:, None]
    with Rollout(comm_tmp_path / "out.h5") as rollout:
        # The model reads means where a value is missing, and so does the baseline.
        means = json.loads(rollout.attributes["means"])["u"]
        trained = truth[:8]
        counts = (weights * ~np.isnan(trained)).sum((0, 1))
        expected = np.nansum(weights * trained, (0, 1)) / counts
        np.testing.assert_allclose(means, expected, atol=1e-4)
        before = np.where(np.isnan(truth[3]), means, truth[3])
        for step in range(3):
            due = truth[4 + step]
            if step == 1:
                every = [told["rollout"][name]["u"][step] for name in ("rmse", "unchanged_rmse")]
                assert [*every, page["rmse"]["u"][step]] == [None, None, None]
                continue
            for name, values in (("rmse", rollout.read("u", step)), ("unchanged_rmse", before)):
                errors = values - due
                counts = weights * ~np.isnan(errors)
                rmse = np.sqrt(np.nansum(weights * errors**2) / counts.sum())
                np.testing.assert_allclose(told["rollout"][name]["u"][step], rmse, rtol=1e-9)
                np.testing.assert_allclose(page[name]["u"][step], rmse, rtol=1e-9)
            size = np.nansum(weights * due**2)
            errors = np.nansum(weights * (rollout.read("u", step) - due) ** 2)
            found = told["rollout"]["rel_l2"]["u"][step]
            np.testing.assert_allclose(found, np.sqrt(errors / size), rtol=1e-9)


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("fields.predict=difference", "fields.history=2", "fields.inputs=['u', 'p']"), 6),
        (("fields.predict=same", "fields.targets=p", "fields.inputs=u"), 4),
    ],
)
def test_files_are_equal_at_any_number_of_ranks(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    words: tuple[str, ...],
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Also beyond the end of the store, where p keeps its values.
    store = write_series(comm, comm_tmp_path, with_holes(planted()))
    run = train(comm, field_config(store, comm_tmp_path / "run", *WORDS, *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "all.h5", "--rollout", steps, "--from", 12)
    if comm.rank == 0:
        alone = predict_with(MPI.COMM_SELF, run, monkeypatch, capsys)
        alone(comm_tmp_path / "one.h5", "--rollout", steps, "--from", 12)
        one, every = (Rollout(comm_tmp_path / f"{name}.h5") for name in ("one", "all"))
        with one, every:
            assert np.diff(every.times).tolist() == [0.5] * (steps - 1)
            for name in every.names:
                for step in range(steps):
                    mine, theirs = every.read(name, step), one.read(name, step)
                    assert np.isfinite(mine).all()
                    np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    comm.Barrier()


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "x.h5"), "give --pairs or --top, or --rollout"),
        (("-o", "x.csv", "--rollout", "3"), r"give \.h5, \.xdmf"),
        (("-o", "series.h5", "--rollout", "2"), r"series\.h5: is the input itself"),
        (("-o", "series.xdmf", "--rollout", "2"), r"series\.h5: is the input itself"),
        (("-o", "x.h5", "--rollout", "0"), "from 1 on"),
        (("-o", "x.h5", "--rollout", "2", "--from", "99"), "steps 0 to 15"),
        (("-o", "x.h5", "--rollout", "2", "--nodes", "1"), "a rollout is of all nodes"),
    ],
)
def test_what_does_not_work_is_one_line(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_series(comm, comm_tmp_path, planted())
    run = train(comm, field_config(store, comm_tmp_path / "run", "train.epochs=1"))
    predict = predict_with(comm, run, monkeypatch, capsys)
    _, name, *more = options
    with pytest.raises(CollectiveInputError, match=message):
        predict(comm_tmp_path / name, *more)


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    ("name", "units", "message"),
    [
        ("u", {"u": "km/h"}, r"other.h5 .* units \('times=s', 'u=km/h'\), .* 'u=m/s'\); convert"),
        ("u", {}, r"units .* 'u='\), .*'u=m/s'"),
        ("u", {"u": "m/s", "times": "h"}, "'times=h', .*'times=s'"),
        ("v", {"v": "m/s"}, "other.h5 has no field 'u'"),
        ("u", {"u": "m/s", "p": "Pa"}, ""),
    ],
)
def test_another_store_has_the_same_names_and_units(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    name: str,
    units: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = replace(planted(), units={"u": "m/s"})
    store = write_series(comm, comm_tmp_path, fields)
    run = train(comm, field_config(store, comm_tmp_path / "run", "train.epochs=1"))
    values = {name: fields.values["u"], "p": fields.values["p"]}
    changed = replace(fields, values=values, units=units)
    other = write_series(comm, comm_tmp_path, changed, name="other")
    predict = predict_with(comm, run, monkeypatch, capsys)
    asked = (comm_tmp_path / "out.h5", "--rollout", 2, "--from", 3, "--store", other)
    if not message:
        predict(*asked)
        return
    with pytest.raises(CollectiveInputError, match=message) as raised:
        predict(*asked)
    assert "\n" not in str(raised.value)
    with (
        pytest.raises(CollectiveInputError, match=message),
        hpcgnn.Stepper(comm, run.path, store=str(other)),
    ):
        pass


def test_another_store_has_its_features_and_steps_compared(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = planted()

    def store(name: str, names: tuple[str, ...]) -> Path:
        return write_series(comm, comm_tmp_path, replace(fields, feature_names=names), name=name)

    words = ("train.epochs=1", "fields.horizons=[]")
    run = train(comm, field_config(store("series", ("a", "b")), comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    asked = (comm_tmp_path / "out.h5", "--rollout", 2, "--from", 3, "--store")
    with pytest.raises(CollectiveInputError, match="feature 0 'b', but it was trained with 'a'"):
        predict(*asked, store("turned", ("b", "a")))
    with caplog.at_level("INFO", logger="hpcgnn"):
        predict(*asked, store("renamed", ("a", "new")))
        told = "each feature is taken by its place, since names differ: 'new' here, 'b' in training"
        assert (told in caplog.text) == (comm.rank == 0)
        assert "has steps of" not in caplog.text
        fields = replace(fields, length=0.25)
        predict(*asked, store("shorter", ("a", "b")))
    told = "has steps of 0.25, and the model was trained with steps of 0.5; it takes each for one"
    assert (told in caplog.text) == (comm.rank == 0)


def test_inputs_of_another_store_have_as_many_columns(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = planted()
    u = fields.values["u"]
    for name, widths in {"series": (2, 1), "other": (1, 2)}.items():
        values = {"u": u, **{key: u[..., :n] for key, n in zip("vw", widths, strict=True)}}
        write_series(comm, comm_tmp_path, replace(fields, values=values), name=name)
    words = ("train.epochs=1", "fields.horizons=[]", "fields.inputs=['u', 'v', 'w']")
    run = train(comm, field_config(comm_tmp_path / "series.h5", comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    asked = (comm_tmp_path / "out.h5", "--rollout", 2, "--from", 3)
    predict(*asked)
    message = (
        r"columns of the inputs \['u', 'u', 'v', 'w', 'w'\], but .* \['u', 'u', 'v', 'v', 'w'\]"
    )
    with pytest.raises(CollectiveInputError, match=message):
        predict(*asked, "--store", comm_tmp_path / "other.h5")


def test_a_step_function_goes_the_same_way(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    fields = planted()
    store = write_series(comm, comm_tmp_path, fields)
    words = (*WORDS, "fields.fixed=feature:1", "run.save_predictions=false")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    expected = by_hand(run.path, fields, range(3, 6))
    with hpcgnn.Stepper(comm, run.path) as stepper:
        states, ids = stepper.stored(3), stepper.node_ids
        np.testing.assert_array_equal(states[0]["u"], fields.values["u"][3][ids])
        for number, values in enumerate(expected, 4):
            states = [stepper.step(states, {"u": fields.values["u"][number][ids]})]
            np.testing.assert_allclose(states[0]["u"], values[ids], rtol=1e-10, atol=1e-12)
        with pytest.raises(CollectiveInputError, match="give the last 1"):
            stepper.step([])
        for step in (-1, 16):
            with pytest.raises(InputError, match=rf"stored\({step}\): the store has steps 0 to 15"):
                stepper.stored(step)
        with pytest.raises(CollectiveInputError, match="field 'u' has shape"):
            stepper.step([{}])


def test_rollouts_do_not_import_the_module_of_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "rollout_loss.py"
    module.write_text("from hpcgnn.train.fields.losses import squared_error\n")
    monkeypatch.syspath_prepend(tmp_path)
    store = write_series(MPI.COMM_SELF, tmp_path, planted())
    words = (*WORDS, "fields.loss=rollout_loss:squared_error")
    run = train(MPI.COMM_SELF, field_config(store, tmp_path / "run", *words))
    module.write_text("raise AssertionError('imported')\n")
    monkeypatch.delitem(sys.modules, "rollout_loss")
    predict_with(MPI.COMM_SELF, run, monkeypatch, capsys)(tmp_path / "out.h5", "--rollout", 1)
    with hpcgnn.Stepper(MPI.COMM_SELF, run.path) as stepper:
        assert stepper.stored(3)
    assert "rollout_loss" not in sys.modules


def test_the_first_step_of_a_series_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_series(MPI.COMM_SELF, tmp_path, planted())
    words = ("fields.predict=same", "fields.targets=p", "fields.inputs=u")
    run = train(MPI.COMM_SELF, field_config(store, tmp_path / "run", *words))
    predict = predict_with(MPI.COMM_SELF, run, monkeypatch, capsys)
    told = predict(tmp_path / "out.h5", "--rollout", 2, "--from", 0)["rollout"]
    analyse.main([str(tmp_path / "out.h5"), "--json"])
    found = json.loads(capsys.readouterr().out)["errors"]
    np.testing.assert_allclose(found["rmse"]["p"], told["rmse"]["p"], rtol=1e-9)
    # The first predicted step has no step before it.
    assert found["unchanged_rmse"]["p"] == told["unchanged_rmse"]["p"] == [None, None]


@pytest.mark.parametrize(("starts", "length"), [((0, 13, 16), 0.5), ((0, 13, 15, 16), 0.5)])
def test_times_behind_a_trajectory_go_on_as_its_steps(
    tmp_path: Path,
    starts: tuple[int, ...],
    length: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_series(MPI.COMM_SELF, tmp_path, replace(planted(), starts=starts))
    words = ("fields.valid=0", "fields.test=0", "train.epochs=1")
    run = train(MPI.COMM_SELF, field_config(store, tmp_path / "run", *words))
    predict = predict_with(MPI.COMM_SELF, run, monkeypatch, capsys)
    predict(tmp_path / "out.h5", "--rollout", 3, "--from", 15)
    with Rollout(tmp_path / "out.h5") as rollout:
        first = 0.5 * (15 - starts[-2])
        np.testing.assert_allclose(rollout.times, first + length * np.arange(1, 4))


def test_pictures_of_a_run_without_a_rollout(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rollout\.h5 does not exist: train\.task=fields writes"):
        analyse.main([str(tmp_path)])
