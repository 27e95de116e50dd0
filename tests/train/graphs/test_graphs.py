"""Whole graphs are predicted equally on any ranks, to the planted optimum; faulty input."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

import hpcgnn
from hpcgnn.comm import CollectiveInputError
from hpcgnn.gallery.many_graphs import NOISE
from hpcgnn.storage import Split
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.training import (
    StopAfter,
    assert_same,
    make_config,
    predict_with,
    train,
    train_alone,
)
from tests.train.links.test_links import figures

WORDS = (
    "train.task=graphs",
    "train.dtype=float64",
    "train.epochs=3",
    "graphs.batch=10",
    "model.dropout=0.3",
)
LINEAR = ("model.num_layers=1", "model.hidden=8", "model.dropout=0")
FALLING = ("train.schedule=cosine", "train.schedule_gamma=0.01", "train.evaluate_every=12")


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "setting",
    [
        ("model.name=sage", "graphs.readout=mean", "model.norm=batch"),
        ("model.name=gat", "graphs.readout=attention", "graphs.width=3"),
        ("model.name=gin", "graphs.readout=max", "sampling.topology=partitioned"),
        ("model.name=gcn", "graphs.readout=sum", "graphs.batch=0", "exchange.method=joint"),
        (
            "model.name=rgcn",
            "graphs.readout=max",
            "graphs.batch=0",
            "model.norm=batch",
            "exchange.schedule=sequential",
        ),
    ],
    ids=lambda setting: setting[0],
)
def test_losses_and_metrics_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]
) -> None:
    words = (*WORDS, *setting, "run.save_predictions=false")
    random = write_graphs(comm, comm_tmp_path, make_graphs())
    metis = write_graphs(comm, comm_tmp_path, make_graphs(), "metis")
    together = train(comm, make_config(random, comm_tmp_path / "run", *words)).metrics
    alone = train_alone(comm, make_config(metis, comm_tmp_path / "alone", *words)).metrics
    for mine, theirs in zip(figures(together), figures(alone), strict=True):
        assert mine.keys() == theirs.keys() > {"valid_accuracy", "test_loss", "train_loss"}
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name], rel=1e-8), name


def test_batches_and_all_at_once_have_the_same_loss(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    store = write_graphs(comm, comm_tmp_path, make_graphs())
    # Batches larger than the number of graphs: all of them, in one step.
    losses = {}
    for batch in (0, 1000):
        words = (*WORDS, f"graphs.batch={batch}", "model.dropout=0", "model.norm=batch")
        run = train(comm, make_config(store, comm_tmp_path / f"run{batch}", *words))
        losses[batch] = run.column("train_loss")
    np.testing.assert_allclose(losses[0], losses[1000], rtol=1e-9)


@pytest.mark.parametrize("topology", ["shared", "partitioned"])
def test_features_of_edges_come_with_batches(
    comm: MPI.Intracomm, comm_tmp_path: Path, topology: str
) -> None:
    store = write_graphs(comm, comm_tmp_path, make_graphs(), edge_features=True)
    words = (*WORDS, "model.name=gine", "graphs.readout=sum", f"sampling.topology={topology}")
    # One batch of all graphs equals training on the whole graph with an exchange.
    losses = {}
    for batch in (0, 1000, 6):
        more = ("model.dropout=0", "run.save_predictions=false", f"graphs.batch={batch}")
        run = train(comm, make_config(store, comm_tmp_path / f"run{batch}", *words, *more))
        losses[batch] = run.column("train_loss")
        if batch == 6:
            moved = sum(each["batch_graph_rows"] for each in run.summary["ranks_detail"])
            assert (moved > 0) == (topology == "partitioned" and comm.size > 1)
            alone = train_alone(
                comm, make_config(store, comm_tmp_path / "alone", *words, *more)
            ).metrics
            mine = [row["test_loss"] for row in run.metrics]
            assert mine == pytest.approx([row["test_loss"] for row in alone], rel=1e-9)
    np.testing.assert_allclose(losses[0], losses[1000], rtol=1e-9)


@pytest.mark.parametrize("batch", [0, 9])
def test_node_types_and_several_labels(
    comm: MPI.Intracomm, comm_tmp_path: Path, batch: int
) -> None:
    made = make_graphs()
    graphs = made.graphs
    types = (np.arange(graphs.num_nodes) % 3 == 0).astype(np.uint8)
    several = np.stack([graphs.labels == 0, graphs.labels < 2], axis=1).astype(np.uint8)
    typed = replace(
        graphs,
        features=None,
        types=types,
        type_features={
            "plain": graphs.features[types == 0],
            "rare": graphs.features[types == 1][:, :2],
        },
        labels=several,
        class_names=(),
    )
    store = write_graphs(comm, comm_tmp_path, replace(made, graphs=typed))
    words = (*WORDS, f"graphs.batch={batch}", "model.norm=batch")
    together = train(comm, make_config(store, comm_tmp_path / "run", *words))
    alone = train_alone(comm, make_config(store, comm_tmp_path / "alone", *words)).metrics
    for mine, theirs in zip(figures(together.metrics), figures(alone), strict=True):
        assert "valid_micro_f1" in mine
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name], rel=1e-8), name
    assert together.predictions()["probabilities"].shape == (len(made.targets), 2)


def test_a_loop_of_ones_own(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_graphs(comm, comm_tmp_path, make_graphs())
    sections = {"model": {"dropout": 0.0, "hidden": 5}, "run": {"threads": 1}}
    task = {"task": "graphs", "dtype": "float64", "epochs": 2}
    losses = []
    with hpcgnn.open_graph(comm, str(store), train=task, graphs={"batch": 10}, **sections) as graph:
        model = graph.make_model(1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(2):
            for step in graph.steps(1, epoch):
                optimizer.zero_grad()
                loss = step(model)
                loss.backward()
                hpcgnn.sum_gradients(graph, model)
                optimizer.step()
                losses.append(graph.total(loss))
        found = hpcgnn.predict(graph, model)
        assert found.values.shape == (len(found.ids), 3)
        accuracy = hpcgnn.evaluate(graph, model)["test_accuracy"]
    words = ("train.epochs=2", "model.dropout=0")
    run = train(comm, make_config(store, comm_tmp_path / "run", *WORDS, *words))
    assert run.metrics[-1]["test_accuracy"] == pytest.approx(accuracy)
    assert np.mean(losses[-3:]) == pytest.approx(run.metrics[-1]["train_loss"], rel=1e-9)


@pytest.mark.parametrize("batch", [0, 7])
def test_run_resumes_and_predicts(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make_graphs()
    store = write_graphs(comm, comm_tmp_path, made)
    words = (*WORDS, "run.checkpoint_every=1", f"graphs.batch={batch}")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(2))
    assert_same(whole, train(comm, config))
    found = whole.predictions()
    numbers = np.unique(made.graphs.graph)
    np.testing.assert_array_equal(found["graph_id"], numbers)
    np.testing.assert_allclose(found["probabilities"].sum(1), 1, rtol=1e-6)
    labels, split = (
        each[np.unique(made.graphs.graph, return_index=True)[1]]
        for each in (made.graphs.labels, made.graphs.split)
    )
    tests = split == Split.TEST
    accuracy = np.mean(found["prediction"][tests] == labels[tests])
    assert accuracy == pytest.approx(whole.summary["seeds"][0]["test"])
    predict = predict_with(comm, whole, monkeypatch, capsys)
    told = predict(comm_tmp_path / "some.csv", "--nodes", "7,3")
    predict(comm_tmp_path / "all.npy", "--what", "embeddings")
    if comm.rank == 0:
        assert told["of"] == "graphs"
        lines = (comm_tmp_path / "some.csv").read_text().splitlines()
        assert lines[0] == "graph_id,p_kind0,p_kind1,p_kind2,prediction,class"
        assert [line.split(",")[0] for line in lines[1:]] == ["7", "3"]
        assert float(lines[1].split(",")[1]) == pytest.approx(found["probabilities"][7, 0])
        assert np.load(comm_tmp_path / "all.npy").shape == (len(numbers), config.model.hidden)


@pytest.mark.parametrize(
    "model", ["name=pna", "name=pna model.norm=graph", "name=gin model.norm=batch"]
)
def test_a_graph_is_predicted_alike_in_any_company(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make_graphs()
    words = (*WORDS, *f"model.{model}".split())
    store = write_graphs(comm, comm_tmp_path, made)
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    first = int(np.searchsorted(made.graphs.graph, 35))
    src, dst = (ends[made.graphs.dst >= first] - first for ends in made.graphs.edges[""])
    names = ("features", "labels", "split", "graph")
    rows = {name: getattr(made.graphs, name)[first:] for name in names}
    few = replace(made.graphs, num_nodes=len(rows["graph"]), edges={"": (src, dst)}, **rows)
    if comm.rank == 0:
        (comm_tmp_path / "few").mkdir()
    comm.Barrier()
    store = write_graphs(comm, comm_tmp_path / "few", replace(made, graphs=few))
    out = comm_tmp_path / "few.npy"
    predict_with(comm, run, monkeypatch, capsys)(out, "--store", store)
    if comm.rank == 0:
        np.testing.assert_allclose(np.load(out), run.predictions()["probabilities"][35:], rtol=1e-6)


def test_graph_numbers_may_have_gaps(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    made, losses = make_graphs(), []
    words = (*WORDS, "model.dropout=0", "graphs.batch=0")
    for name, step in (("plain", 1), ("apart", 2**56)):
        if comm.rank == 0:
            (comm_tmp_path / name).mkdir()
        comm.Barrier()
        apart = replace(made.graphs, graph=made.graphs.graph * step)
        store = write_graphs(comm, comm_tmp_path / name, replace(made, graphs=apart))
        run = train(comm, make_config(store, comm_tmp_path / f"{name}-run", *words))
        losses.append(run.column("train_loss"))
        if comm.rank == 0:
            np.testing.assert_array_equal(
                run.predictions()["graph_id"], step * np.arange(len(made.targets))
            )
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-9)


def test_targets_are_those_of_graphs_whose_numbers_have_gaps(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    made, losses = make_graphs(), []
    for step, form in ((1, "npy"), (3, "npy"), (3, "csv")):
        folder = comm_tmp_path / f"{step}{form}"
        file, numbers = folder / f"of_graphs.{form}", step * np.arange(len(made.targets))
        if comm.rank == 0:
            folder.mkdir()
            rows = np.full(numbers[-1] + 1, np.nan)
            rows[numbers] = made.targets
            lines = [f"{number},{rows[number]}" for number in numbers]
            if form == "npy":
                np.save(file, rows)
            else:
                file.write_text("\n".join(["graph,y", *lines]))
        comm.Barrier()
        apart = replace(made.graphs, graph=made.graphs.graph * step)
        store = write_graphs(comm, folder, replace(made, graphs=apart))
        words = (*WORDS, f"graph.targets={file}", "model.dropout=0", "graphs.batch=0")
        losses.append(train(comm, make_config(store, folder / "run", *words)).column("train_loss"))
    for apart_losses in losses[1:]:
        np.testing.assert_allclose(apart_losses, losses[0], rtol=1e-9)
    if comm.rank == 0:
        file.write_text("graph,y\n0,2\n1,3\n")
    comm.Barrier()
    with pytest.raises(CollectiveInputError, match="has no graph '1'"):
        train(comm, make_config(store, comm_tmp_path / "run", *words))


@pytest.mark.quality
def test_numbers_reach_the_planted_optimum(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    if comm.size in (2, 3):
        pytest.skip("ranks are compared above")
    made = make_graphs(1500)
    store = write_graphs(comm, comm_tmp_path, made)
    words = (f"graph.targets={comm_tmp_path / 'targets.npy'}", "graphs.batch=64")
    more = ("train.epochs=12", "train.learning_rate=0.1", *FALLING)
    run = train(comm, make_config(store, comm_tmp_path / "run", *WORDS, *LINEAR, *words, *more))
    last = run.metrics[-1]
    _, first = np.unique(made.graphs.graph, return_index=True)
    for name, part in (("train", Split.TRAIN), ("test", Split.TEST)):
        chosen = made.graphs.split[first] == part
        planted = np.sqrt(np.mean((made.targets - made.exact)[chosen] ** 2))
        assert last[f"{name}_rmse"] <= 1.02 * planted, name
    assert planted == pytest.approx(NOISE, rel=0.2)


@pytest.mark.quality
def test_classes_reach_the_planted_optimum(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    if comm.size in (2, 3):
        pytest.skip("ranks are compared above")
    made = make_graphs(600)
    store = write_graphs(comm, comm_tmp_path, made)
    more = ("train.epochs=12", "train.learning_rate=0.1", "graphs.batch=32", *FALLING)
    run = train(comm, make_config(store, comm_tmp_path / "run", *WORDS, *LINEAR, *more))
    _, first = np.unique(made.graphs.graph, return_index=True)
    tests = made.graphs.split[first] == Split.TEST
    planted = np.mean(made.scores.argmax(1)[tests] == made.graphs.labels[first][tests])
    assert 0.8 < planted < 0.99
    assert run.metrics[-1]["test_accuracy"] >= 0.98 * planted


@pytest.mark.parametrize(
    "setting",
    [
        ("model.name=gcn", "train.inductive=true"),
        ("train.task=sampled", "sampling.budget=60"),
        ("model.name=gin", "model.norm=graph"),
    ],
)
def test_nodes_of_many_graphs_are_those_of_one(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]
) -> None:
    made, rng = make_graphs(), np.random.default_rng(4)
    labels = rng.integers(-1, 3, len(made.graphs.graph)).astype(np.int32)
    runs = []
    for name, graph in (("many", made.graphs.graph), ("one", None)):
        if comm.rank == 0:
            (comm_tmp_path / name).mkdir()
        comm.Barrier()
        graphs = replace(made, graphs=replace(made.graphs, labels=labels, graph=graph))
        store = write_graphs(comm, comm_tmp_path / name, graphs)
        words = ("train.dtype=float64", "train.epochs=3", *setting)
        runs.append(train(comm, make_config(store, comm_tmp_path / name / "run", *words)))
    assert_same(*runs)
    assert runs[0].predictions()["node_id"].tolist() == list(range(len(labels)))


def test_what_has_no_meaning_is_refused(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_graphs(comm, comm_tmp_path, make_graphs())
    with pytest.raises(CollectiveInputError, match="its labels are of whole graphs"):
        train(
            comm, make_config(store, comm_tmp_path / "run", *WORDS, "train.label_augmentation=0.5")
        )


def test_stores_and_targets_that_do_not_fit_are_told(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    made = make_graphs()
    graphs = made.graphs
    one, mixed, torn = (comm_tmp_path / name for name in ("one", "mixed", "torn"))
    if comm.rank == 0:
        for each in (one, mixed, torn):
            each.mkdir()
    comm.Barrier()
    labels, split = graphs.labels.copy(), graphs.split.copy()
    labels[graphs.graph == 5] = np.arange((graphs.graph == 5).sum()) % 2
    split[np.argmax(graphs.graph == 6)] ^= 3
    for folder, graph, message in (
        (one, replace(graphs, graph=None), "is one graph"),
        (mixed, replace(graphs, labels=labels), "graph 5 do not all have the same label"),
        (torn, replace(graphs, split=split), "graph 6 do not all have the same set"),
    ):
        store = write_graphs(comm, folder, replace(made, graphs=graph))
        with pytest.raises(CollectiveInputError, match=message):
            train(comm, make_config(store, folder / "run", *WORDS))
    store = write_graphs(comm, comm_tmp_path, made)
    tables = {
        "short.npy": made.targets[:-1],
        "wide.npy": np.zeros((len(made.targets), 2, 2)),
        "infinite.npy": np.full(len(made.targets), np.inf),
        "none.npy": np.full(len(made.targets), np.nan),
        "text.npy": np.array(["a"] * len(made.targets)),
    }
    texts = {
        "names.csv": "graph,y\nbenzene,1\n",
        "twice.csv": "graph,y\n1,1\n1,2\n",
        "words.csv": "graph,y\n1,high\n",
        "torn.csv": "graph,y\n1\n",
        "headless.csv": "1\n2\n",
    }
    if comm.rank == 0:
        for name, table in tables.items():
            np.save(comm_tmp_path / name, table)
        for name, text in texts.items():
            (comm_tmp_path / name).write_text(text)
    comm.Barrier()
    for name in (*tables, *texts, "missing.npy", "wrong.xlsx"):
        words = f"graph.targets={comm_tmp_path / name}"
        with pytest.raises(CollectiveInputError, match=r"graph\.targets: .*") as fault:
            train(comm, make_config(store, comm_tmp_path / "run", *WORDS, words))
        assert "\n" not in str(fault.value)
