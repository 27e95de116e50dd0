"""The effects of training settings, seen from outside."""

import math
import sys
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.nn import ModelShape, make_model
from hpcgnn.storage import EdgeData, GraphArrays, Split, store_from_arrays
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.gradients import clip_gradients
from hpcgnn.train.optimizer import (
    evaluation_is_due,
    learning_rate,
    make_optimizer,
    num_evaluations,
)
from hpcgnn.train.run.saved_model import open_saved_model
from tests.support import training
from tests.support.training_oracle import assert_reference


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    return training.write_store(comm, comm_tmp_path, training.make_graph())


def test_dropout_does_not_depend_on_the_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    settings = ("train.epochs=3", "model.dropout=0.5", "model.input_dropout=0.3")
    config = (*settings, "train.dtype=float64")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "all", *config))
    single = training.train_alone(
        comm, training.make_config(store, comm_tmp_path / "alone", *config)
    )
    np.testing.assert_allclose(run.column("train_loss"), single.column("train_loss"), rtol=1e-12)
    assert run.column("train_accuracy") == single.column("train_accuracy")


def test_best_model_is_kept_and_patience_ends_the_run(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    settings = ("train.epochs=60", "train.patience=5", "train.learning_rate=0.05")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    valid = run.column("valid_accuracy")
    best = int(np.argmax(valid))
    seed = run.summary["seeds"][0]
    assert seed["best_epoch"] == best
    assert seed["valid"] == valid[best]
    assert seed["test"] == run.metrics[best]["test_accuracy"]
    assert seed["epochs"] == len(valid) == best + 6


def test_predictions_come_from_the_kept_model_of_the_best_seed(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    settings = ("train.epochs=4", "train.seeds=[1, 2, 3]", "train.learning_rate=0.05")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    seeds = run.summary["seeds"]
    best = max(seeds, key=lambda seed: (seed["valid"], -seed["seed"]))
    graph = training.make_graph()
    rows = (graph.split == 3) & (graph.labels >= 0)
    found = run.predictions()
    np.testing.assert_array_equal(found["node_id"], graph.ids)
    np.testing.assert_array_equal(found["prediction"], found["probabilities"].argmax(axis=1))
    np.testing.assert_allclose(found["probabilities"].sum(axis=1), 1, rtol=1e-6)
    assert (found["prediction"][rows] == graph.labels[rows]).mean() == best["test"]
    assert found["classes"].tolist() == [b"kind0", b"kind1", b"kind2", b"kind3"]


@pytest.mark.parametrize("metric", ["loss", "macro_f1"])
def test_the_best_seed_is_that_of_the_chosen_metric(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, metric: str
) -> None:
    settings = ("train.epochs=4", "train.seeds=[1, 2, 3]", f"train.metric={metric}")
    config = training.make_config(store, comm_tmp_path / "run", *settings)
    run = training.train(comm, config)
    sign = -1 if metric == "loss" else 1
    best = max(run.summary["seeds"], key=lambda seed: (sign * seed["valid"], -seed["seed"]))
    assert best["valid"] == best["metrics"][f"valid_{metric}"]
    assert open_saved_model(run.path).checkpoint.state["seed"] == best["seed"]
    kept = open_saved_model(run.path / "model.safetensors")
    assert kept.checkpoint.state["seed"] == best["seed"]


@pytest.mark.parametrize(
    ("metric", "smaller_is_better"),
    [("rel_l2", True), ("rel_l2_u", True), ("edges_rmse", True), ("links_mrr", False)],
)
def test_smaller_errors_are_better(metric: str, smaller_is_better: bool) -> None:
    value = Evaluation({f"valid_{metric}": 0.5}, "r2").rank_value("best", metric)
    assert value == (-0.5 if smaller_is_better else 0.5)


def test_the_last_model_is_kept_on_request(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    settings = ("train.epochs=7", "train.select=last", "train.evaluate_every=3")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    assert [row["epoch"] for row in run.metrics if "valid_accuracy" in row] == [2, 5, 6]
    assert run.summary["seeds"][0]["best_epoch"] == 6
    tensors = run.tensors()
    for name, value in tensors.items():
        if "/model/" in name:
            np.testing.assert_array_equal(value, tensors[name.replace("/model/", "/best/")])


def test_without_validation_nodes_the_last_model_is_kept(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = training.make_graph()
    split = np.where(graph.split == Split.VALID, Split.NONE, graph.split).astype(np.uint8)
    store = training.write_store(comm, comm_tmp_path, replace(graph, split=split))
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", "train.epochs=3"))
    (seed,) = run.summary["seeds"]
    assert seed["valid"] is None
    assert seed["best_epoch"] == 2
    assert "valid_loss" not in run.metrics[-1]
    assert run.predictions()["prediction"].shape == (61,)


def test_checkpoints_are_pruned(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    settings = ("train.epochs=9", "run.checkpoint_every=2", "train.seeds=[5, 2]")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    left = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert left == [f"seed{seed}-epoch{epoch:06d}" for seed in (2, 5) for epoch in (8, 9)]


@pytest.mark.parametrize("kind", ["row", "standard"])
def test_scaled_features_do_not_depend_on_the_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, kind: str
) -> None:
    graph = training.make_graph()
    wide = graph.features.astype(np.float64)
    scaled = {
        "row": wide / np.abs(wide).sum(axis=1, keepdims=True),
        "standard": (wide - wide.mean(axis=0)) / wide.std(axis=0),
    }[kind]
    settings = (f"graph.normalize_features={kind}", "train.epochs=3", "train.dtype=float64")
    config = training.make_config(store, comm_tmp_path / "run", *settings)
    run = training.train(comm, config)
    assert_reference(comm, run, replace(graph, features=scaled), config, 1e-12)


def test_wide_features_are_scaled_before_they_are_rounded(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = training.make_graph()
    assert graph.features is not None
    wide = graph.features.astype(np.float64) + 1.7e9
    store = training.write_store(comm, comm_tmp_path, replace(graph, features=wide))
    settings = ("graph.normalize_features=standard", "train.epochs=3")
    config = training.make_config(store, comm_tmp_path / "run", *settings)
    run = training.train(comm, config)
    scaled = (wide - wide.mean(axis=0)) / wide.std(axis=0)
    assert_reference(comm, run, replace(graph, features=scaled), config, 1e-5)


def rates(*overrides: str) -> list[float]:
    config = load_config(None, ["graph.store=a", "run.dir=b", "train.epochs=10", *overrides])
    return [learning_rate(config.train, epoch, 5 * epoch) for epoch in range(10)]


def test_schedules() -> None:
    assert rates("train.learning_rate=0.3") == [0.3] * 10
    step = rates("train.schedule=step", "train.schedule_steps=[2, 5]", "train.learning_rate=1")
    np.testing.assert_allclose(step, [1] * 2 + [0.1] * 3 + [0.01] * 5)
    falling = rates("train.schedule=exponential", "train.learning_rate=1")
    np.testing.assert_allclose(falling, [0.1 ** (epoch / 9) for epoch in range(10)])
    cosine = rates("train.schedule=cosine", "train.learning_rate=1", "train.schedule_gamma=0.2")
    halves = [0.2 + 0.4 * (1 + math.cos(math.pi * epoch / 9)) for epoch in range(10)]
    np.testing.assert_allclose(cosine, halves)
    soon = rates("train.schedule=linear", "train.decay_steps=20", "train.learning_rate=1")
    np.testing.assert_allclose(soon, [1, 0.775, 0.55, 0.325] + [0.1] * 6)
    warm = rates("train.warmup_epochs=3", "train.learning_rate=1")
    np.testing.assert_allclose(warm, [0.25, 0.5, 0.75] + [1] * 7)


def evaluations(*overrides: str) -> list[int]:
    config = load_config(None, ["graph.store=a", "run.dir=b", "train.epochs=20", *overrides])
    due = [epochs for epochs in range(1, 21) if evaluation_is_due(config.train, epochs)]
    assert num_evaluations(config.train) == len(due)
    return due


def test_evaluations_move_apart() -> None:
    assert evaluations() == list(range(1, 21))
    assert evaluations("train.evaluate_every=7") == [7, 14, 20]
    assert evaluations("train.evaluate_growth=2") == [1, 3, 7, 15, 20]
    assert evaluations("train.evaluate_every=3", "train.evaluate_growth=1.5") == [3, 8, 15, 20]
    with pytest.raises(InputError, match="evaluate_growth"):
        evaluations("train.evaluate_growth=0.5")
    # Quadratic counting would take hours.
    words = ["graph.store=a", "run.dir=b", "train.epochs=1000000"]
    assert num_evaluations(load_config(None, words).train) == 10**6


def test_clipping_scales_the_common_norm(comm: MPI.Intracomm) -> None:
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    with ProcessGrid(comm) as grid:
        clip_gradients(grid, [first, second], [], 0)
        assert first.grad.tolist() == [3.0, 0.0]
        clip_gradients(grid, [first, second], [], 10)
        assert second.grad.tolist() == [0.0, 4.0]
        clip_gradients(grid, [first, second], [], 1)
        np.testing.assert_allclose([*first.grad, *second.grad], [0.6, 0, 0, 0.8], rtol=1e-5)
        # Each rank has its own rows, so their squares add up.
        rows = torch.nn.Parameter(torch.zeros(1, 2))
        rows.grad = torch.tensor([[0.0, 0.8 / comm.size**0.5]])
        clip_gradients(grid, [first], [rows], 0.5)
        expected = [0.3, 0, 0, 0.4 / comm.size**0.5]
        np.testing.assert_allclose([*first.grad, *rows.grad[0]], expected, rtol=1e-5)


RULES = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "sgd train.momentum=0": torch.optim.SGD,
    "sgd train.nesterov=true": torch.optim.SGD,
}


@pytest.mark.parametrize("decays", [[], ["layers.*=0", "layers.0.*=0.3", "*bias=0.1"]])
@pytest.mark.parametrize("rule", RULES)
def test_optimisers_are_those_of_torch_without_its_compiler(
    rule: str, decays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*f"train.optimizer={rule}".split(), f"train.weight_decays={decays}"]
    needed = ["graph.store=a", "run.dir=b", "train.weight_decay=0.5", "train.learning_rate=0.1"]
    config = load_config(None, [*needed, *words]).train
    shape = ModelShape(num_features=5, num_classes=3, hidden=4, num_layers=2)
    ours, theirs = (
        make_model("gcn", shape, directed=False, seed=1, dtype=torch.float32) for _ in range(2)
    )
    named = {"layers.0.linear.weight": 0.3, "layers.1.linear.weight": 0.0} if decays else {}
    rest = 0.1 if decays else 0.5
    groups = [
        {"params": [parameter], "weight_decay": named.get(name, rest)}
        for name, parameter in theirs.named_parameters()
    ]
    extra = {"momentum": config.momentum, "nesterov": config.nesterov} if "sgd" in rule else {}
    expected = RULES[rule](groups, lr=0.1, **extra)
    optimizer = make_optimizer(ours, config)
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    for step in range(3):
        # The first parameter has no gradient at first.
        for number, (one, other) in enumerate(pairs):
            gradient = None if number == step == 0 else torch.randn_like(one)
            one.grad, other.grad = gradient, None if gradient is None else gradient.clone()
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "torch._dynamo", None)
            assert optimizer.step()
        expected.step()
    for one, other in pairs:
        torch.testing.assert_close(one, other)
        kept = expected.state[other]
        assert optimizer.state.get(one, {}).keys() == {k for k in kept if kept[k] is not None}
        assert set(optimizer.state.get(one, optimizer.keys)) == set(optimizer.keys)


def test_a_decay_of_no_weight_is_refused(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = ("model.name=gcn", "train.weight_decays=['layer.0.*=1']")
    config = training.make_config(store, comm_tmp_path / "run", *words)
    message = r"layer.0.\* fits none of the weights layers.0.bias, "
    with pytest.raises(CollectiveInputError, match=message):
        training.train(comm, config)


def test_columns_that_drown_others_are_named(
    comm: MPI.Intracomm, comm_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = training.make_graph()
    assert graph.features is not None
    features = graph.features.copy()
    features[:, 1] += 3000
    store = training.write_store(comm, comm_tmp_path, replace(graph, features=features))
    for kind, told in (("none", comm.rank == 0), ("standard", False)):
        words = ("train.epochs=1", f"graph.normalize_features={kind}")
        training.train(comm, training.make_config(store, comm_tmp_path / kind, *words))
        said = "features: column 1 is about 3000, 1 of 7 columns" in capsys.readouterr().err
        assert said == told


@pytest.mark.parametrize("name", ["gin", "gine"])
def test_one_number_is_learned_with_every_seed(tmp_path: Path, name: str) -> None:
    """The last layer's perceptron is as wide as hidden ones: a single rectifier would die."""
    rng = np.random.default_rng(5)
    num_nodes, edges = 400, rng.integers(0, 400, (2, 1600))
    edges = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    once = edges[:, edges[0] <= edges[1]]
    features = rng.normal(size=(num_nodes, 8)).astype(np.float32)
    sums = np.zeros(num_nodes)
    read = np.maximum(features[edges[0], 0], 0) if name == "gine" else features[edges[0], 0]
    np.add.at(sums, edges[1], read)
    np.save(tmp_path / "sums.npy", sums)
    store_from_arrays(
        tmp_path / "graph.h5",
        GraphArrays(
            name="sums",
            num_nodes=num_nodes,
            edges={"": (once[0], once[1])},
            edge_data={"": EdgeData(features=np.zeros((once.shape[1], 1), np.float32))},
            undirected=True,
            features=features,
            split=rng.choice([Split.TRAIN, Split.VALID, Split.TEST], num_nodes, p=[0.6, 0.2, 0.2]),
        ),
    )
    words = (f"model.name={name}", "model.hidden=16", "model.num_layers=1", "train.epochs=80")
    more = ("train.seeds=[1, 2, 3, 4]", "train.learning_rate=0.01", "train.evaluate_every=5")
    targets = f"graph.targets={tmp_path / 'sums.npy'}"
    config = training.make_config(tmp_path / "graph.h5", tmp_path / "run", *words, *more, targets)
    run = training.train(MPI.COMM_SELF, config)
    assert min(each["test"] for each in run.summary["seeds"]) > 0.8


@pytest.mark.quality
@pytest.mark.parametrize("numbers", [False, True])
def test_a_constant_model_is_remarked_on(
    comm: MPI.Intracomm, comm_tmp_path: Path, numbers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    graph = training.make_graph()
    blank = replace(graph, features=np.zeros_like(graph.features))
    tested = (graph.split == Split.TEST) & (graph.labels >= 0)
    file = comm_tmp_path / "numbers.npy"
    if comm.rank == 0:
        np.save(file, np.where(graph.labels < 0, np.nan, graph.labels.astype(float)))
    comm.Barrier()
    words = (f"graph.targets={file}",) if numbers else ()
    constants = {}
    for name, each in (("blank", blank), ("full", graph)):
        folder = comm_tmp_path / name
        folder.mkdir(exist_ok=True)
        store = training.write_store(comm, folder, each)
        quiet = ("train.epochs=15", "train.seeds=[1, 2]", "train.learning_rate=0.05")
        caplog.clear()
        run = training.train(comm, training.make_config(store, folder / "run", *quiet, *words))
        constants[name] = [seed["constant"] for seed in run.summary["seeds"]]
        lines = [line for line in caplog.messages if "test rows get" in line]
        assert len(lines) == (comm.rank == 0 and name == "blank")
        if name == "blank" and numbers:
            (value,) = np.unique(run.predictions()["values"].astype(np.float32))
            expected = f"all {tested.sum()} test rows get {value:.4g} for target"
        elif name == "blank":
            (given,) = np.unique(run.predictions()["prediction"])
            right = (graph.labels[tested] == given).sum()
            expected = f"all {tested.sum()} test rows get class kind{given}, which "
            expected += f"{right} of them have"
    assert expected in constants["blank"]
    assert all(constants["blank"])
    assert constants["full"] == ["", ""]


@pytest.mark.quality
def test_one_class_of_all_is_no_fault(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    """A model that gives all test nodes their own class is right."""
    graph = training.make_graph()
    labels = np.where(graph.split == Split.TEST, 1, graph.labels)
    blank = replace(graph, features=np.zeros_like(graph.features), labels=np.minimum(labels, 1))
    labels[graph.split == Split.TRAIN] = 1
    store = training.write_store(comm, comm_tmp_path, replace(blank, labels=labels))
    config = training.make_config(store, comm_tmp_path / "run", "train.epochs=30")
    (seed,) = training.train(comm, config).summary["seeds"]
    assert (seed["test"], seed["constant"]) == (1.0, "")
