"""Labels of edges: the same for any number of ranks, equal to plain torch, without leaks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.storage import GraphStore, Split, store_from_arrays
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.edges.labelled import num_features
from hpcgnn.train.edges.objective import EdgeObjective
from hpcgnn.train.gradients import sum_gradients
from hpcgnn.train.links.requested_pairs import read_pairs
from hpcgnn.train.tasks import load_task
from tests.support.dense_models import Dense, logits
from tests.support.labelled_edges import KINDS, EdgeGraph, planted_edges, ugly_edges
from tests.support.planned import planned
from tests.support.training import (
    MOVED,
    StopAfter,
    assert_same,
    lasting,
    make_config,
    predict_with,
    train,
    train_alone,
)

WORDS = ("train.task=edges", "train.dtype=float64", "train.epochs=3", "model.name=gcn")
SAMPLED = "edges.sampled=true"
NEIGHBOURS = (
    SAMPLED,
    "sampling.sampler=neighbour",
    "sampling.budget=50",
    "sampling.fan_outs=[3,3]",
)
SUBGRAPHS = (SAMPLED, "sampling.sampler=node", "sampling.budget=30", "sampling.subgraphs=3")
PLANTED = (
    "train.task=edges",
    "model.name=sage",
    "graph.undirected=true",
    "model.num_layers=1",
    "model.hidden=16",
    "train.learning_rate=0.03",
    "run.save_predictions=false",
)
METRICS = {
    "classes": {"test_accuracy", "test_macro_f1", "valid_loss"},
    "several": {"test_micro_f1", "test_auc", "valid_average_precision"},
    "numbers": {"test_rmse_a", "test_r2", "valid_loss"},
}


def figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of metrics without values that depend on the ranks."""
    return [{k: v for k, v in lasting(row).items() if k not in MOVED} for row in rows]


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    ("kind", "undirected", "more"),
    [
        ("classes", False, ("model.name=sage", "exchange.method=joint", "model.dropout=0.3")),
        ("classes", True, ("model.name=gat", "edges.width=3", "edges.hidden=9")),
        ("several", True, ("edges.stored=false", "exchange.schedule=sequential")),
        ("numbers", False, ("model.name=gine", "edges.features=false")),
        ("numbers", True, NEIGHBOURS),
        ("several", False, SUBGRAPHS),
        ("classes", False, ("model.name=rgcn", *SUBGRAPHS)),
        ("numbers", True, ("model.name=hgt", "model.hidden=8", *NEIGHBOURS)),
        ("several", True, ("model.name=rgat", *NEIGHBOURS)),
        ("classes", True, ("model.name=gat", *NEIGHBOURS)),
    ],
)
def test_losses_and_metrics_do_not_depend_on_ranks(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    kind: str,
    undirected: bool,
    more: tuple[str, ...],
) -> None:
    graph = ugly_edges(kind, undirected=undirected, relations="gine" not in str(more))
    words = (*WORDS, "run.save_predictions=false", *more)
    many = graph.write(comm, comm_tmp_path)
    # The samples depend on the order of the store.
    other = many if SAMPLED in more else graph.write(comm, comm_tmp_path, seed=7)
    together = train(comm, make_config(many, comm_tmp_path / "run", *words)).metrics
    single = train_alone(comm, make_config(other, comm_tmp_path / "alone", *words)).metrics
    for mine, theirs in zip(figures(together), figures(single), strict=True):
        assert mine.keys() == theirs.keys() > METRICS[kind]
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name], rel=1e-10), name


def plain_loss(graph: EdgeGraph, model: Any, kind: str, scales: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of the training edges, and the outputs of all edges, by dense matrices."""
    a = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    a[graph.dst, graph.src] = 1
    if graph.undirected:
        a[graph.src, graph.dst] = 1
    x = torch.from_numpy(graph.features.astype(np.float32).astype(np.float64))
    dense = Dense(a, directed=not graph.undirected)
    rows = logits("sage", model.encoder, dense, x, DropoutKey(1, 0))
    decoder = model.decoder
    relation = torch.from_numpy(graph.relation)
    features = torch.from_numpy(graph.edge_features.astype(np.float64))
    bias = torch.cat([torch.zeros_like(decoder.relations), decoder.relations])[relation]
    first = decoder.first
    both = []
    for targets, sources in ((graph.dst, graph.src), (graph.src, graph.dst)):
        inputs = torch.cat([rows[targets], rows[sources], features], 1)
        both.append(functional.relu(inputs @ first.weight.T + first.bias + bias))
    inner = (both[0] + both[1]) / 2 if graph.undirected else both[0]
    out = inner @ decoder.output.weight.T + decoder.output.bias
    labels = torch.from_numpy(graph.labels)
    trains = torch.from_numpy(graph.split == Split.TRAIN)
    if kind == "classes":
        trains &= labels[:, 0] >= 0
        return functional.cross_entropy(out[trains], labels[trains, 0].long()), out
    if kind == "several":
        loss = functional.binary_cross_entropy_with_logits
        return loss(out[trains], labels[trains].double()), out
    means, deviations = (torch.tensor(each, dtype=torch.float64) for each in scales)
    known = ~labels.isnan()
    truth = (labels.double().nan_to_num(0) - means) / deviations
    trains &= known.any(1)
    per_edge = ((out - truth).square() * known).sum(1)[trains] / known.sum(1)[trains]
    return per_edge.mean(), out


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_plain_torch(
    comm: MPI.Intracomm, comm_tmp_path: Path, kind: str, undirected: bool
) -> None:
    graph = ugly_edges(kind, undirected=undirected, relations=True)
    store = graph.write(comm, comm_tmp_path)
    config = make_config(store, comm_tmp_path / "run", *WORDS, "model.name=sage")
    with ProcessGrid(comm) as grid:
        task = load_task(Context.open(grid, config, TraceRecorder.off()))
        model, same = (task.objective.make_model(1) for _ in range(2))
        (step,) = task.steps(1, 0)
        loss = step(model)
        loss.backward()
        sum_gradients(grid, model.parameters())
        facts = task.objective.facts
        expected, _ = plain_loss(graph, same, kind, (facts.target_means, facts.target_scales))
        expected.backward()
        total = grid.layer.allreduce(float(loss.detach()))
    assert total == pytest.approx(float(expected.detach()), rel=1e-12)
    theirs = dict(same.named_parameters())
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.grad, theirs[name].grad, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_run_resumes_and_predicts_all_edges(
    comm: MPI.Intracomm, comm_tmp_path: Path, kind: str
) -> None:
    graph = ugly_edges(kind, undirected=kind == "classes", relations=True)
    store = graph.write(comm, comm_tmp_path)
    words = (*WORDS, "run.checkpoint_every=1", "model.name=sage", "train.select=last")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(2))
    parts = train(comm, config)
    assert_same(whole, parts)
    found = whole.predictions()
    assert whole.summary["metric"] == ("accuracy" if kind == "classes" else "r2")
    assert set(whole.summary["labelled_edges"]) == {"train", "valid", "test"}
    with ProcessGrid(comm) as grid:
        objective, _ = EdgeObjective.load(Context.open(grid, config, TraceRecorder.off()))
        model = objective.make_model(1)
        weights = {k.rpartition("/")[2]: v for k, v in whole.tensors().items() if "/best/" in k}
        model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        facts = objective.facts
        scales = facts.target_means, facts.target_scales
        _, out = plain_loss(graph, model, kind, scales)
    relations = found["relations"][found["relation"]].tolist()
    places = {
        (b"first" if r == 0 else b"second", s, t): i
        for i, (r, s, t) in enumerate(zip(graph.relation, graph.src, graph.dst, strict=True))
    }
    # Only one direction of an undirected edge is there.
    keys = list(zip(relations, found["source"].tolist(), found["target"].tolist(), strict=True))
    order = [places[key] if key in places else places[key[0], key[2], key[1]] for key in keys]
    assert sorted(order) == list(range(len(graph.src)))
    assert [key[1:] for key in keys] == sorted(key[1:] for key in keys)
    if kind == "classes":
        expected = out.softmax(1)
        np.testing.assert_array_equal(found["prediction"], out.argmax(1)[order])
        values = found["probabilities"]
    else:
        expected, values = out * torch.tensor(scales[1]) + torch.tensor(scales[0]), found["values"]
    np.testing.assert_allclose(values, expected.detach()[order], rtol=1e-5)


def write_pairs(
    comm: MPI.Intracomm, path: Path, rows: Iterable[Sequence[Any]], more: str = ""
) -> Path:
    if comm.rank == 0:
        lines = [",".join(map(str, row)) for row in (("source,target,relation" + more,), *rows)]
        path.write_text("\n".join(lines) + "\n")
    comm.Barrier()
    return path


@pytest.mark.parametrize(
    ("kind", "undirected", "reads"),
    [("classes", True, True), ("several", False, False), ("numbers", False, True)],
)
def test_asked_pairs_are_the_rows_of_all_edges(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    undirected: bool,
    reads: bool,
) -> None:
    graph = ugly_edges(kind, undirected=undirected, relations=True)
    assert graph.relation is not None
    assert graph.edge_features is not None
    store, out = graph.write(comm, comm_tmp_path), comm_tmp_path
    words = [*WORDS, "model.name=sage", f"edges.features={reads}".lower()]
    words += ["graph.normalize_edge_features=standard"] * (kind == "numbers")
    run = train(comm, make_config(store, out / "run", *words))
    predict, every = predict_with(comm, run, monkeypatch, capsys), run.predictions()
    what = "values" if kind == "numbers" else "probabilities"
    values = every[what]
    keys = np.stack([every[name] for name in ("relation", "source", "target")], axis=1).tolist()
    row_of = {tuple(key): row for row, key in enumerate(keys)}
    if undirected:
        row_of |= {(r, t, s): row for (r, s, t), row in [*row_of.items()]}
    # In arbitrary order, one of them repeated, with a hub.
    asked = np.random.default_rng(5).permutation(len(graph.src))[:40]
    asked = np.append(asked, asked[:1])
    names = [str(each, "utf-8") for each in every["relations"]]
    of = [names.index(("first", "second")[graph.relation[edge]]) for edge in asked]
    ends = np.stack([graph.src[asked], graph.dst[asked]], axis=1)
    ends = ends[:, ::-1] if undirected else ends
    pairs = [(*map(int, pair), names[number]) for pair, number in zip(ends, of, strict=True)]
    wanted = [row_of[number, *pair[:2]] for pair, number in zip(pairs, of, strict=True)]
    table = write_pairs(comm, out / "pairs.csv", pairs)
    said = predict(out / "some.h5", "--pairs", table)
    with h5py.File(out / "some.h5") as file:
        np.testing.assert_allclose(file[what], values[wanted], rtol=1e-6)
        np.testing.assert_array_equal(file["source"], ends[:, 0])
        np.testing.assert_array_equal(file["relation"], of)
        if kind != "numbers":
            np.testing.assert_array_equal(file["prediction"], every["prediction"][wanted])
    if comm.rank == 0:
        assert (said["rows"], said["of"]) == (len(pairs), "pairs")
    predict(out / "some.npy", "--pairs", table)
    np.testing.assert_allclose(np.load(out / "some.npy"), values[wanted], rtol=1e-6)
    np.testing.assert_array_equal(np.load(out / "some.ids.npy"), np.column_stack([ends, of]))
    # The given edge features count: here the same ones, and new ones for a pair without an edge.
    columns = graph.edge_features[asked].tolist()
    told = [(*pair, *row) for pair, row in zip(pairs, columns, strict=True)]
    no_edge = next((s, t) for s in range(61) for t in range(61) if (0, s, t) not in row_of)
    told.append((*no_edge, names[0], *told[0][3:]))
    with_features = write_pairs(comm, out / "told.csv", told, ",a,b")
    predict(out / "told.csv.npy", "--pairs", with_features)
    found = np.load(out / "told.csv.npy")
    np.testing.assert_allclose(found[:-1], values[wanted], rtol=1e-6)
    assert np.isfinite(found[-1]).all()
    alone = write_pairs(comm, out / "no.csv", [(*no_edge, names[0])])
    if reads:
        missing = (
            rf"has no edge '{no_edge[0]} -> {no_edge[1]}' to take features from; add 2 columns"
        )
        with pytest.raises(CollectiveInputError, match=missing):
            predict(out / "no.npy", "--pairs", alone)
        too_few = write_pairs(comm, out / "few.csv", [(0, 1, "first", 1)], ",a")
        with pytest.raises(CollectiveInputError, match=r"1 columns beside .* have 2 features"):
            predict(out / "few.npy", "--pairs", too_few)
    else:
        predict(out / "no.npy", "--pairs", alone)
        np.testing.assert_allclose(np.load(out / "no.npy"), found[-1:], rtol=1e-6)


def test_relations_of_another_store_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    graph, comm, other = ugly_edges("several", relations=True), MPI.COMM_SELF, tmp_path / "other.h5"
    arrays = graph.arrays()
    edges, data = (
        dict(reversed(of_relations.items())) for of_relations in (arrays.edges, arrays.edge_data)
    )
    store_from_arrays(other, replace(arrays, edges=edges, edge_data=data))
    run = train(comm, make_config(graph.write(comm, tmp_path), tmp_path / "run", *WORDS))
    predict = predict_with(comm, run, monkeypatch, capsys)
    pairs = [(3, 7, name, 1, 2) for name in ("first", "second")]
    table = write_pairs(comm, tmp_path / "pairs.csv", pairs, ",a,b")
    predict(tmp_path / "own.npy", "--pairs", table)
    predict(tmp_path / "other.npy", "--pairs", table, "--store", other)
    own = np.load(tmp_path / "own.npy")
    np.testing.assert_allclose(np.load(tmp_path / "other.npy"), own, rtol=1e-6)
    assert not np.allclose(own[0], own[1], rtol=1e-4)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("edge_features", "features of an edge to predict 2, but it was trained with 0"),
        ("relation", "number of predicted relations 2, but it was trained with 1"),
    ],
)
def test_a_store_whose_edges_the_model_cannot_predict_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, without: str, message: str
) -> None:
    graph, comm, other = ugly_edges("classes", relations=True), MPI.COMM_SELF, tmp_path / "other.h5"
    store_from_arrays(other, graph.arrays())
    store = replace(graph, **{without: None}).write(comm, tmp_path)
    run = train(comm, make_config(store, tmp_path / "run", *WORDS))
    with pytest.raises(InputError, match=rf"other\.h5 does not fit the model: {message}"):
        predict_with(comm, run, monkeypatch, capsys)(tmp_path / "out.npy", "--store", other)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(99, 0, "first"), (0, -5, "first")], "edges has no node 99; give ids"),
        ([(0, "x", "first")], "have no names; give original ids"),
        ([(0, 1, "third")], "unknown relation of .*'third'"),
        ([(0, 1, "first"), (), (0, 1)], "line 4 has 2 fields, not 3"),
    ],
)
def test_faults_of_asked_pairs_are_one_line(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows: list[tuple[Any, ...]],
    message: str,
) -> None:
    store = ugly_edges("classes", relations=True).write(comm, comm_tmp_path)
    run = train(comm, make_config(store, comm_tmp_path / "run", *WORDS, "train.epochs=1"))
    predict = predict_with(comm, run, monkeypatch, capsys)
    table = write_pairs(comm, comm_tmp_path / "pairs.csv", rows)
    with pytest.raises(CollectiveInputError, match=message) as caught:
        predict(comm_tmp_path / "out.csv", "--pairs", table)
    assert "\n" not in str(caught.value)
    refused = r"--top does not work with train\.task = 'edges': it labels edges"
    with pytest.raises(CollectiveInputError, match=refused):
        predict(comm_tmp_path / "out.csv", "--top", 3)


@pytest.mark.quality
@pytest.mark.parametrize(
    ("kind", "metric", "best"),
    [("classes", "macro_f1", max), ("several", "auc", max), ("numbers", "rmse_b", min)],
)
def test_any_metric_chooses_the_model(
    comm: MPI.Intracomm, comm_tmp_path: Path, kind: str, metric: str, best: Callable[..., float]
) -> None:
    store = ugly_edges(kind).write(comm, comm_tmp_path)
    words = (*WORDS, "train.epochs=12", "train.learning_rate=0.1", f"train.metric={metric}")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    values = run.column(f"valid_{metric}")
    assert len(set(values)) > 2
    assert run.summary["seeds"][0]["best_epoch"] == values.index(best(values))
    assert run.summary["metric"] == metric
    assert run.summary["seeds"][0]["valid"] == best(values)
    wrong = make_config(store, comm_tmp_path / "wrong", *WORDS, "train.metric=macro_f2")
    with pytest.raises(CollectiveInputError, match=r"train\.metric = 'macro_f2'"):
        train(comm, wrong)


@pytest.mark.parametrize("more", [(), ("model.name=sage", "exchange.method=joint")])
def test_planned_rows_are_those_sent(
    comm: MPI.Intracomm, comm_tmp_path: Path, more: tuple[str, ...]
) -> None:
    store = ugly_edges("classes", relations=True).write(comm, comm_tmp_path)
    words = (*WORDS, "train.epochs=2", "run.save_predictions=false", "exchange.prepare=before")
    config = make_config(store, comm_tmp_path / "run", *words, "train.evaluate_every=2", *more)
    run = train(comm, config)
    if comm.rank == 0:
        _, _, (_, epoch, evaluation) = planned(config, comm.size, None, 2)
        sent = [int(epoch.rows.sum()), int(epoch.rows.sum() + evaluation.rows.sum())]
        assert run.column("rows_sent") == sent
    comm.Barrier()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None, "names": ()}, "its edges have no labels; convert with --edge-labels"),
        ({"split": 2}, "no labelled edge is in the training split"),
    ],
)
def test_faults_are_one_line(
    comm: MPI.Intracomm, comm_tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    graph = ugly_edges("classes")
    if "split" in change:
        change = {"split": np.full(len(graph.src), change["split"], np.uint8)}
    store = EdgeGraph(**{**vars(graph), **change}).write(comm, comm_tmp_path)
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, make_config(store, comm_tmp_path / "run", *WORDS))


def test_relations_have_equally_many_features() -> None:
    store: Any = SimpleNamespace(path="g.h5", edge_features=lambda name: (len(name), None))
    assert num_features(store, ("a", "b"), read=True) == 1
    assert num_features(store, ("a", "bc"), read=False) == 0
    with pytest.raises(InputError, match=r"unequal numbers of edge features \(a 1, bc 2\)"):
        num_features(store, ("a", "bc"), read=True)


@pytest.mark.quality
@pytest.mark.parametrize(
    "more", [(), (*NEIGHBOURS[:2], "sampling.budget=900", "sampling.fan_outs=[4]")]
)
def test_planted_classes_are_found(
    comm: MPI.Intracomm, comm_tmp_path: Path, more: tuple[str, ...]
) -> None:
    graph, right = planted_edges("classes")
    store = graph.write(comm, comm_tmp_path)
    epochs = 40 if not more else 8
    words = (*PLANTED, f"train.epochs={epochs}", f"train.evaluate_every={epochs}", *more)
    found = train(comm, make_config(store, comm_tmp_path / "run", *words)).metrics[-1]
    # Bayes' rule on the same edges: no model can do better.
    assert found["test_accuracy"] > right - 0.01
    assert found["test_auc"] > right - 0.02


@pytest.mark.slow
def test_planted_numbers_are_found(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph, noise = planted_edges("numbers", 1500, 16)
    store = graph.write(comm, comm_tmp_path)
    words = (*PLANTED, "model.num_layers=2", "train.epochs=300", "train.evaluate_every=300")
    found = train(comm, make_config(store, comm_tmp_path / "run", *words)).metrics[-1]
    assert found["test_rmse"] < 1.02 * noise


@pytest.mark.quality
@pytest.mark.parametrize("more", [(), (*SUBGRAPHS[:2], "sampling.budget=300")])
def test_labels_by_chance_are_guessed_by_chance(
    comm: MPI.Intracomm, comm_tmp_path: Path, more: tuple[str, ...]
) -> None:
    graph, _ = planted_edges("chance")
    store = graph.write(comm, comm_tmp_path)
    words = (*PLANTED, "train.epochs=20", "train.evaluate_every=20", "edges.stored=false", *more)
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    found, tested = run.metrics[-1], run.summary["labelled_edges"]["test"]
    # Both relations have the same labels, so the two edges of a pair count as one.
    assert abs(found["test_accuracy"] - 0.5) < 3 * 0.5 / np.sqrt(tested / 2)
    assert abs(found["test_auc"] - 0.5) < 3 / np.sqrt(12 * tested / 4)


def test_features_of_pairs_are_in_the_order_of_the_store(tmp_path: Path) -> None:
    edges, store, pairs = (tmp_path / name for name in ("e.csv", "e.h5", "pairs.csv"))
    edges.write_text("src,dst,amount,day\n0,1,0.5,3\n1,2,0.25,4\n")
    words = [str(edges), "--edge-features", "amount,day", "-o", str(store)]
    find_command("convert").call(words)
    with GraphStore.open(store) as opened:
        for header, row in (("amount,day", "7,8"), ("a,b", "7,8")):
            pairs.write_text(f"source,target,{header}\n2,0,{row}\n")
            asked = read_pairs(pairs, opened, [""], None, 2)
            assert asked.features is not None
            assert asked.features.tolist() == [[7, 8]]
        pairs.write_text("source,target,day,amount\n2,0,8,7\n")
        with pytest.raises(InputError, match=r"columns day, amount; give them in .* amount, day"):
            read_pairs(pairs, opened, [""], None, 2)
