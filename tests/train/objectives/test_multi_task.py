"""Several objectives on one encoder: each as if alone, and losses add up."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest
import torch

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.train.gradients import sum_gradients
from hpcgnn.train.tasks import load_task
from tests.support.labelled_edges import EdgeGraph, ugly_edges
from tests.support.planned import planned
from tests.support.training import (
    StopAfter,
    assert_same,
    lasting,
    make_config,
    predict_with,
    train,
)

EXPORT = find_command("export")
ALL = "train.task=full+links+edges"
WORDS = ("train.dtype=float64", "train.epochs=3", "model.name=gcn", "links.train=0.3")
LAST = "train.select=last"


def graph_of(kind: str = "classes", *, undirected: bool = False) -> EdgeGraph:
    """Return an irregular graph with labels of nodes and edges, some missing."""
    rng = np.random.default_rng(4)
    graph = ugly_edges(kind, undirected=undirected)
    labels = rng.integers(-1, 2, graph.num_nodes).astype(np.int32)
    split = rng.integers(0, 4, graph.num_nodes).astype(np.uint8)
    return replace(graph, node_labels=labels, node_split=split)


@pytest.mark.parametrize(
    ("task", "kind"), [("links", "classes"), ("edges", "several"), ("edges", "numbers")]
)
def test_with_all_the_weight_it_is_what_it_is_alone(
    comm: MPI.Intracomm, comm_tmp_path: Path, task: str, kind: str
) -> None:
    store = graph_of(kind, undirected=task == "links").write(comm, comm_tmp_path)
    joined = (f"train.task=full+{task}", "train.task_weights=[0, 1]", LAST)
    run = train(comm, make_config(store, comm_tmp_path / "joined", *WORDS, *joined))
    if comm.rank > 0:
        return
    words = (*WORDS, LAST, f"train.task={task}")
    alone = train(MPI.COMM_SELF, make_config(store, comm_tmp_path / "alone", *words))
    assert run.column("train_loss") == pytest.approx(alone.column("train_loss"), rel=1e-10)
    for name in (name for name in alone.metrics[0] if name.startswith(("valid_", "test_"))):
        split, _, metric = name.partition("_")
        expected = pytest.approx(alone.column(name), rel=1e-10)
        assert run.column(f"{split}_{task}_{metric}") == expected, name
    with h5py.File(run.path / f"predictions.{task}.h5") as mine:
        for name, values in alone.predictions().items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(mine[name], values, rtol=1e-5, atol=1e-7)
            else:
                np.testing.assert_array_equal(mine[name], values)


def test_losses_and_gradients_add_up(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = graph_of("numbers").write(comm, comm_tmp_path)
    factors = {"one": (1, 0, 0), "two": (0, 1, 0), "three": (0, 0, 1), "all": (0.5, 2, 0.25)}
    found = {}
    for name, weights in factors.items():
        words = (*WORDS, ALL, f"train.task_weights=[{','.join(map(str, weights))}]")
        config = make_config(store, comm_tmp_path / name, *words)
        with ProcessGrid(comm, 1) as grid:
            task = load_task(Context(grid, config))
            model = task.objective.make_model(seed=5)
            ((ready, key),) = task.source.steps(5, 0)
            assert key == DropoutKey(5, 0)
            loss = task.objective.loss(model, ready(), key)
            loss.backward()
            sum_gradients(grid, list(model.parameters()))
            total = grid.layer.allreduce(float(loss.detach()))
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad
            for each in model.parameters()
        ]
        found[name] = total, torch.cat([each.flatten() for each in gradients])
    for place in (0, 1):
        parts = [found[name][place] for name in ("one", "two", "three")]
        assert all(float(abs(part).sum() if place else part) > 0 for part in parts)
        expected = sum(w * part for w, part in zip(factors["all"], parts, strict=True))
        torch.testing.assert_close(
            torch.as_tensor(found["all"][place]), torch.as_tensor(expected), rtol=1e-10, atol=1e-12
        )


def test_runs_go_on_and_predict_each_task(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = graph_of().write(comm, comm_tmp_path)
    words = (*WORDS, ALL, "train.metric=links_auc", "correct_and_smooth.enabled=true")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    stopped = make_config(store, comm_tmp_path / "stopped", *words)
    assert train(comm, stopped, StopAfter(2)).status == 75
    again = train(comm, stopped)
    predict = predict_with(comm, run, monkeypatch, capsys)
    for task in ("full", "links", "edges"):
        written = predict(comm_tmp_path / f"{task}.h5", "--task", task)
        if comm.rank > 0:
            continue
        ending = "" if task == "full" else f".{task}"
        with (
            h5py.File(comm_tmp_path / f"{task}.h5") as now,
            h5py.File(run.path / f"predictions{ending}.h5") as then,
        ):
            assert now.keys() == then.keys()
            for name in now:
                np.testing.assert_array_equal(now[name], then[name])
        if task == "full":
            kept = run.summary["seeds"][0]["smoothed"]
            assert written["scores"]["test"]["value"] == pytest.approx(kept["test"])
    pairs = predict(comm_tmp_path / "top.csv", "--task", "links", "--top", "2")
    if comm.rank > 0:
        return
    # The command is one process; it compares the module with the model.
    for task in ("full", "links", "edges") if MPI.COMM_WORLD.size == 1 else ():
        words = ["export", run.path, "--to", "torch", "--task", task, "-o", comm_tmp_path / task]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        assert EXPORT.call() == 0
        unit = {"full": "61 nodes", "links": "61 pairs", "edges": "pairs"}[task]
        assert re.search(rf"compared on .*{unit} in float64", capsys.readouterr().err)
    assert pairs["of"] == "pairs"
    assert_same(run, again)
    summary = run.summary
    assert summary["metric"] == "links_auc"
    best = max(run.column("valid_links_auc"))
    assert summary["seeds"][0]["metrics"]["valid_links_auc"] == best
    for row in run.metrics:
        row = lasting(row)
        parts = [row[f"valid_{task}_loss"] for task in ("full", "links", "edges")]
        assert row["valid_loss"] == pytest.approx(sum(parts))


def test_planned_rows_are_those_sent(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = graph_of("several").write(comm, comm_tmp_path)
    words = (*WORDS, ALL, "run.save_predictions=false", "train.evaluate_every=3")
    config = make_config(store, comm_tmp_path / "run", *words, "exchange.method=joint")
    run = train(comm, config)
    if comm.rank == 0:
        _, _, (_, epoch, _) = planned(config, comm.size, None, 2)
        # The pairs of the first epoch are planned; later epochs redraw them.
        assert run.column("rows_sent")[0] == int(epoch.rows.sum())
        assert (comm.size > 1) == (run.column("rows_sent")[0] > 0)


def test_what_does_not_fit_is_one_line(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    for words, fault in (
        (("train.task=full+graphs",), r"train.task = 'graphs': choose one of edges, full, links"),
        (("train.task=links+links",), "must join different tasks"),
        ((ALL, "train.task_weights=[1, 2]"), "give one weight for each task"),
        ((ALL, "train.task_weights=[1, 2, -1]"), "give one weight for each task"),
        ((ALL, "train.task_weights=[0, 0, 0]"), "not all 0"),
        (("train.task=links", "train.task_weights=[1]"), "give one weight for each task"),
    ):
        with pytest.raises(InputError, match=fault):
            make_config(comm_tmp_path / "g.h5", comm_tmp_path / "run", *words)
    store = graph_of().write(comm, comm_tmp_path)
    for words, fault in (
        ((ALL, "links.width=4", "edges.width=6"), "links.width = 4 and edges.width = 6: "),
        ((ALL, "train.inductive=true"), "it predicts the edges themselves"),
        ((ALL, "train.metric=mrr"), "train.metric = 'mrr'"),
    ):
        with pytest.raises(CollectiveInputError, match=fault):
            train(comm, make_config(store, comm_tmp_path / "run", *WORDS, *words))
