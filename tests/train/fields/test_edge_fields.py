"""Fields of edges as inputs: learned from, equal on all ranks, in losses, rollouts and steps."""

from dataclasses import replace
from itertools import product
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

import hpcgnn
from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.storage import Rollout
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.fields.noise import normal
from hpcgnn.train.tasks import load_task
from tests.support.series import field_config, planted, with_flows, with_holes, write_series
from tests.support.training import predict_with, train

FLOWS = "fields.edge_inputs=q"
SAME = ("fields.predict=same", "fields.targets=p", FLOWS)
CASES = {
    "meshgraphnet": ("fields.unroll=3", "fields.batch=2", "fields.inputs=['u', 'p']"),
    "gatedgcn": ("fields.history=3", "fields.unroll=2", "fields.predict=difference"),
    "pna": (*SAME, "fields.inputs=u", "fields.batch=3"),
    "nnconv": (*SAME, "fields.history=2"),
    "gine": ("graph.positions=relative", "fields.noise=0.1", "model.dropout=0.2", "fields.batch=1"),
    "sage": ("fields.unroll=2", "fields.batch=3", "fields.history=2"),
    "gat": ("fields.unroll=3", "fields.batch=2", "model.heads=2", "model.hidden=8"),
    "gatv2": (*SAME, "fields.inputs=u", "fields.history=2", "exchange.schedule=sequential"),
    "transformer": ("model.edge_features=true", "fields.batch=2", "graph.positions=relative"),
    "meshgraphnet of edges too": (
        "fields.edge_targets=q", "fields.unroll=3", "fields.batch=2", "fields.noise=0.1",
    ),
    "gatedgcn of edges": (
        *SAME[:1], "fields.targets=[]", "fields.inputs=u", "fields.edge_targets=w",
        "fields.history=2", "exchange.schedule=sequential",
    ),
    "meshgraphnet of edges": (
        "fields.targets=[]", "fields.edge_targets=['w', 'q']", "fields.predict=difference",
        "fields.unroll=2",
    ),
    "meshgraphnet, given and noisy": (
        "fields.edge_targets=['w', 'q']", "fields.edge_fixed=feature:2", "fields.fixed=feature:1",
        "fields.noise=0.1", "fields.history=2", "fields.unroll=2", "fields.batch=2",
    ),
}  # fmt: skip
ATTENTION = ("gat", "gatv2", "transformer")
# Adam takes full steps even where a gradient is 0 except for rounding.
PLAIN_STEPS = ("train.optimizer=sgd", "train.momentum=0")


@pytest.mark.quality
def test_what_flows_is_learned_from(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_series(comm, comm_tmp_path, with_flows(planted(), holes=0))
    words = ("train.epochs=30", "train.evaluate_every=30", "fields.batch=2", "model.hidden=16")
    words += ("train.learning_rate=0.01",)
    config = field_config(store, comm_tmp_path / "run", *SAME, *words, "model.name=meshgraphnet")
    assert train(comm, config).metrics[-1]["valid_r2"] > 0.8
    # Flows at other times say nothing about these.
    mixed = with_flows(planted(), holes=0)
    mixed.of_edges["q"] = mixed.of_edges["q"][::-1]
    store = write_series(comm, comm_tmp_path, mixed, name="mixed")
    config = field_config(store, comm_tmp_path / "mixed", *SAME, *words, "model.name=meshgraphnet")
    assert train(comm, config).metrics[-1]["valid_r2"] < 0.1


@pytest.mark.quality
def test_a_flux_is_learned_and_chance_is_not(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    fields = replace(with_flows(planted(noise=1, trajectories=2)), edge_features=True)
    store = write_series(comm, comm_tmp_path, fields)
    words = ("fields.predict=same", "fields.inputs=u", "model.name=meshgraphnet")
    words += ("train.learning_rate=0.01",)
    words += ("fields.targets=[]", "fields.edge_targets=['w', 'q']", "model.hidden=16")
    words += ("train.epochs=20", "train.evaluate_every=20", "fields.batch=2")
    last = train(comm, field_config(store, comm_tmp_path / "run", *words)).metrics[-1]
    assert last["valid_r2_w"] > 0.9
    assert last["valid_r2_q"] < 0.1


@pytest.mark.several_ranks
@pytest.mark.parametrize("kind", ["numbers", "bits"])
@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_matter(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    case: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = replace(with_flows(with_holes(planted())), edge_features="given" in case)
    store = write_series(comm, comm_tmp_path, fields)
    name = case.replace(",", "").partition(" ")[0]
    sizes = ("model.num_layers=2", "fields.evaluated=2", "train.epochs=1", "fields.batch=4")
    words = (f"model.name={name}", FLOWS, *sizes, *CASES[case], "run.save_predictions=false")
    if name in ATTENTION:
        words += PLAIN_STEPS
    if kind == "bits":
        if name in ATTENTION:
            pytest.skip("refused, see below")
        words += ("train.dtype=float32", "train.reproducible=true")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    steps = 4 if "fields.predict=same" in words else 5
    where = ("--rollout", steps, "--from", 12)
    predict_with(comm, run, monkeypatch, capsys)(comm_tmp_path / "all.h5", *where)
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, field_config(store, comm_tmp_path / "alone", *words))
        within = {"rtol": 0} if kind == "bits" else {"rtol": 1e-12}
        for mine, theirs in zip(run.metrics, alone.metrics, strict=True):
            for key, value in theirs.items():
                if key.startswith(("train_", "valid_", "test_")):
                    np.testing.assert_allclose(mine[key], value, **within, err_msg=key)
        tensors = run.tensors()
        for key, tensor in alone.tensors().items():
            within = {"rtol": 0} if kind == "bits" else {"rtol": 1e-9, "atol": 1e-13}
            np.testing.assert_allclose(tensors[key], tensor, **within)
        predict_with(MPI.COMM_SELF, alone, monkeypatch, capsys)(comm_tmp_path / "one.h5", *where)
        with Rollout(comm_tmp_path / "one.h5") as one, Rollout(comm_tmp_path / "all.h5") as every:
            np.testing.assert_array_equal(every.edge_id, one.edge_id)
            assert one.names or one.edge_names
            for field, step in product((*one.names, *one.edge_names), range(steps)):
                due = one.read(field, step)
                within = 0 if kind == "bits" else 1e-10 * np.nanmax(np.abs(due))
                np.testing.assert_allclose(every.read(field, step), due, rtol=0, atol=within)
    comm.Barrier()


def test_scales_are_those_of_what_is_trained_on(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    fields = with_flows(planted())
    store = write_series(comm, comm_tmp_path, fields)
    config = field_config(store, comm_tmp_path / "run", FLOWS, "model.name=meshgraphnet")
    with ProcessGrid(comm, 1) as grid:
        objective = load_task(Context.open(grid, config, TraceRecorder.off())).objective
        trained = fields.of_edges["q"][:8, fields.adjacency.toarray() != 0].reshape(-1, 2)
        scale = objective.scales.edges.frames
        # Digits that depend on the order of sums are rounded off.
        grain = scale.deviation.max() / 65536
        np.testing.assert_allclose(scale.mean, np.nanmean(trained, 0), atol=grain)
        np.testing.assert_allclose(scale.deviation, np.nanstd(trained, 0), rtol=2e-5)
        assert objective.facts.num_edge_features == 2
        assert "q=" in objective.facts.units


def test_behind_the_last_step_they_stay_as_they_were(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = with_flows(planted())
    store = write_series(comm, comm_tmp_path, fields)
    words = (FLOWS, "model.name=meshgraphnet", "fields.history=2", "model.num_layers=2")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "out.h5", "--rollout", 6, "--from", 13)
    if comm.rank == 0:
        assert "4 steps are beyond the last one of the store" in caplog.text
    matrix = fields.adjacency
    with (
        hpcgnn.Stepper(comm, run.path) as stepper,
        Rollout(comm_tmp_path / "out.h5") as rollout,
    ):
        states, ids, (sources, targets) = stepper.stored(13), stepper.node_ids, stepper.edge_ids.T
        assert [each.name for each in stepper.edge_fields] == ["q"]
        assert len(sources) == matrix[ids].nnz
        np.testing.assert_array_equal(states[0]["q"], fields.of_edges["q"][12][targets, sources])
        for step in range(6):
            q = fields.of_edges["q"][min(14 + step, 15)][targets, sources]
            states = [*states[1:], stepper.step(states, {"q": q})]
            due = rollout.read("u", step)[ids]
            np.testing.assert_allclose(states[-1]["u"], due, rtol=1e-10, atol=1e-12)
            np.testing.assert_array_equal(states[-1]["q"], q)
        with pytest.raises(CollectiveInputError, match=r"field 'q' has shape \(1, 2\), not"):
            stepper.step([{**states[0], "q": np.zeros((1, 2))}, states[1]])


def test_rollouts_and_steps_feed_back_what_is_predicted(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = with_flows(planted())
    store = write_series(comm, comm_tmp_path, fields)
    words = ("fields.edge_targets=q", "model.name=meshgraphnet", "model.num_layers=2")
    run = train(comm, field_config(store, comm_tmp_path / "run", FLOWS, *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    told = predict(comm_tmp_path / "out.h5", "--rollout", 3, "--from", 9)
    with pytest.raises(CollectiveInputError, match=r"xdmf does not work .*edges too; write \.h5"):
        predict(comm_tmp_path / "out.xdmf", "--rollout", 3)
    with hpcgnn.Stepper(comm, run.path) as stepper, Rollout(comm_tmp_path / "out.h5") as rollout:
        count, ends = fields.adjacency.shape[0], rollout.edge_id
        assert (np.diff(ends @ [count, 1]) > 0).all()
        assert len(ends) == fields.adjacency.nnz
        places = np.searchsorted(ends @ [count, 1], stepper.edge_ids @ [count, 1])
        for step in range(2):
            rows = (("u", stepper.node_ids), ("q", places))
            found = stepper.step([{name: rollout.read(name, step)[at] for name, at in rows}])
            for name, at in rows:
                due = rollout.read(name, step + 1)[at]
                np.testing.assert_allclose(found[name], due, rtol=1e-10, atol=1e-12)
        truth = fields.of_edges["q"][10:13, ends[:, 1], ends[:, 0]]
        for step, error in enumerate(told["rollout"]["rmse"]["q"] if comm.rank == 0 else ()):
            due = np.sqrt(np.nanmean((rollout.read("q", step) - truth[step]) ** 2))
            np.testing.assert_allclose(error, due, rtol=1e-9)


def test_given_edges_are_those_of_the_store_and_count_nowhere(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields = replace(with_flows(planted(), holes=0), edge_features=True)
    store = write_series(comm, comm_tmp_path, fields)
    words = ("fields.targets=[]", "fields.edge_targets=q", "fields.edge_fixed=first")
    more = ("model.name=meshgraphnet", "model.num_layers=2", "graph.normalize_features=standard")
    run = train(comm, field_config(store, comm_tmp_path / "run", *words, *more))
    predict = predict_with(comm, run, monkeypatch, capsys)
    told = predict(comm_tmp_path / "out.h5", "--rollout", 6, "--from", 12)
    with Rollout(comm_tmp_path / "out.h5") as rollout:
        ends = rollout.edge_id
        given = ends.min(axis=1) < 3
        assert 0 < given.sum() < len(given)
        for step in range(3):
            found, truth = rollout.read("q", step), fields.of_edges["q"][13 + step]
            truth = truth[ends[:, 1], ends[:, 0]]
            np.testing.assert_array_equal(found[given], truth[given])
            assert (found[~given] != truth[~given]).all()
            due = np.sqrt(np.mean((found - truth)[~given] ** 2))
            if comm.rank == 0:
                np.testing.assert_allclose(told["rollout"]["rmse"]["q"][step], due, rtol=1e-9)
        # Beyond the last step they keep their values.
        np.testing.assert_array_equal(rollout.read("q", 5)[given], truth[given])


def test_noise_is_of_each_edge_and_each_frame(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    fields = replace(with_flows(planted(), holes=0), edge_features=True)
    store = write_series(comm, comm_tmp_path, fields)
    words = ("fields.edge_targets=w", "fields.edge_inputs=['q', 'w']", "fields.history=2")
    more = ("model.name=meshgraphnet", "fields.noise=0.1", "fields.edge_fixed=feature:2")
    config = field_config(store, comm_tmp_path / "run", *words, *more)
    with ProcessGrid(comm, 1) as grid:
        objective = load_task(Context.open(grid, config, TraceRecorder.off())).objective
        series, unroller = objective.series, objective.unroller
        sample, ends = series.sample(2, 1), series.reader.edge_ends(grid, unroller.node_ids)
        plain, noisy = (unroller.read(sample, key) for key in (None, DropoutKey(1, 5)))
        size = objective.scales.edges.frames.deviation
        every = []
        for before, after in zip(plain, noisy, strict=True):
            drawn = (after.edges - before.edges).numpy() / size
            every.append(np.concatenate(grid.layer.allgather(drawn)))
        ends = np.concatenate(grid.layer.allgather(ends))
    free = ends.min(axis=1) >= 3
    assert not any(drawn[~free].any() for drawn in every)
    # The columns of the target w come first, then those of q.
    values = np.concatenate(every, axis=1)[free]
    assert abs(values.std() - 0.1) < 0.01
    assert np.abs(np.corrcoef(values.T) - np.eye(6)).max() < 0.25
    # An edge and its reverse have separate draws.
    assert len(np.unique(values)) == values.size
    due = normal(ends @ [fields.adjacency.shape[0], 1], 3, DropoutKey(1, 5, -(1 << 34) + 1))
    # The model reads q before w.
    np.testing.assert_allclose(values[:, 3:], 0.1 * due[free][:, [2, 0, 1]], rtol=1e-6, atol=1e-9)


REFUSED = {
    "no such edges": (
        ("fields.edge_targets=q", "fields.edge_fixed=wall", "model.name=meshgraphnet"),
        r"fields.edge_fixed: no edges are called 'wall'; choose one of feature:N",
    ),
    "no such feature": (
        ("fields.edge_targets=q", "fields.edge_fixed=feature:3", "model.name=meshgraphnet"),
        r"fields.edge_fixed = 'feature:3': edges have 0 features, counted from 0",
    ),
    "nothing to give": (
        (FLOWS, "fields.edge_fixed=feature:2", "model.name=meshgraphnet"),
        r"fields.edge_fixed = 'feature:2': is of fields.edge_targets, and there are none; leave it",
    ),
    "gcn": (
        (FLOWS,),
        r"fields.edge_inputs = \['q'\] does not work with model.name = 'gcn': it reads no features",
    ),
    "rgat": (
        (FLOWS, "model.name=rgat"),
        "'rgat': it reads no features of edges; leave fields.edge_inputs",
    ),
    "gat pushed": (
        (FLOWS, "model.name=gat", "exchange.method=push"),
        "does not work with fields.edge_inputs .* under attention: in every step its edges change",
    ),
    "gat of equal bits": (
        (FLOWS, "model.name=gat", "train.dtype=float32", "train.reproducible=true"),
        "does not work with fields.edge_inputs .* under attention: gradients of its values",
    ),
    "unknown": (
        ("fields.edge_inputs=flow", "model.name=pna"),
        "has no field 'flow' of edges; .*q",
    ),
    "of nodes": (
        ("fields.edge_inputs=p", "model.name=pna"),
        "no field 'p' of edges; 'p' is a field of nodes: use fields.inputs",
    ),
    "target": (
        ("fields.targets=q", "model.name=pna"),
        "fields.targets: .* no field 'q' of nodes; .* of edges: use fields.edge_targets",
    ),
    "input": (("fields.inputs=q", "model.name=pna"), "fields.inputs: .*'q' is a field of edges"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_one_line(comm: MPI.Intracomm, comm_tmp_path: Path, case: str) -> None:
    words, message = REFUSED[case]
    store = write_series(comm, comm_tmp_path, with_flows(planted()))
    with pytest.raises((InputError, CollectiveInputError), match=message) as caught:
        train(comm, field_config(store, comm_tmp_path / "run", *words))
    assert "\n" not in str(caught.value)
