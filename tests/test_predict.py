"""Predictions from a run directory: all nodes or selected ones, in the user's order and format."""

import csv
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest
import torch
from pyarrow import parquet

from hpcgnn.comm import CollectiveInputError
from hpcgnn.commands.command import find_command
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from hpcgnn.train.predict import read_ids
from tests.support import training
from tests.support.dense_models import Dense, sage_layer
from tests.support.training_oracle import initial_model

COMMAND = find_command("predict")

# Ids of nodes, as in a compacted edge list, in random order.
IDS = np.random.default_rng(2).permutation(np.arange(61) * 10**15 - 3 * 10**16)
GRAPH = replace(training.make_graph(weighted=True), ids=IDS)
CHOSEN = IDS[[40, 3, 60, 3, 0]]


@pytest.fixture(scope="module")
def finished() -> dict[int, training.Run]:
    """Keep the runs by number of ranks, so that each is trained only once."""
    return {}


@pytest.fixture
def run(
    comm: MPI.Intracomm, tmp_path_factory: pytest.TempPathFactory, finished: dict[int, training.Run]
) -> training.Run:
    """Return a finished run of two seeds on `GRAPH`, whose features were standardised."""
    if comm.size not in finished:
        directory = Path(comm.bcast(str(tmp_path_factory.mktemp("finished")), root=0))
        store = training.write_store(comm, directory, GRAPH)
        settings = ("train.epochs=6", "train.seeds=[3, 8]", "graph.normalize_features=standard")
        finished[comm.size] = training.train(
            comm, training.make_config(store, directory / "run", *settings)
        )
        comm.Barrier()
    return finished[comm.size]


@pytest.fixture
def predict(
    comm: MPI.Intracomm,
    run: training.Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> training.Predict:
    return training.predict_with(comm, run, monkeypatch, capsys)


def embeddings(run: training.Run, seed: int) -> np.ndarray:
    """Return the hidden layer of the kept model by dense products."""
    name = f"seed{seed}-epoch000006/best/"
    model = initial_model(GRAPH, load_config(run.path / "config.toml"))
    model.load_state_dict(
        {
            key.removeprefix(name): torch.from_numpy(value)
            for key, value in run.tensors().items()
            if key.startswith(name)
        }
    )
    wide = GRAPH.features.astype(np.float64)
    x = torch.from_numpy((wide - wide.mean(axis=0)) / wide.std(axis=0))
    dense = Dense(torch.from_numpy(GRAPH.adjacency.toarray()), directed=True)
    return sage_layer(model.layers[0], dense, x).clamp(min=0).detach().numpy()


def test_all_nodes_in_original_order(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    path = comm_tmp_path / "out.h5"
    said = predict(path)
    expected = run.predictions()
    np.testing.assert_array_equal(expected["node_id"], np.sort(IDS))
    with h5py.File(path) as file:
        assert sorted(file) == sorted(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(file[name], values)
        attributes = dict(file.attrs)
    best = max(run.summary["seeds"], key=lambda seed: (seed["valid"], -seed["seed"]))
    assert attributes["seed"] == best["seed"]
    assert attributes["epoch"] == best["best_epoch"]
    assert attributes["run"].decode() == str(run.path)
    if comm.rank == 0:
        assert said["rows"] == 61
        assert said["columns"] == training.NUM_CLASSES
        assert said["ranks"] == comm.size
        assert said["ids"] is None
        scores = said["scores"]
        assert scores["test"]["metric"] == "accuracy"
        assert scores["test"]["value"] == best["test"]
        assert scores["valid"]["value"] == best["valid"]
    order = np.argsort(IDS)
    scored = (GRAPH.split[order] == 3) & (GRAPH.labels[order] >= 0)
    hits = expected["prediction"][scored] == GRAPH.labels[order][scored]
    assert hits.mean() == best["test"]


def test_chosen_nodes_of_a_chosen_seed(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    options = ("--seed", 3, "--what", "embeddings")
    predict(comm_tmp_path / "out.npy", *options, "--nodes=" + ",".join(map(str, CHOSEN)))
    expected = embeddings(run, 3)[[40, 3, 60, 3, 0]]
    found = np.load(comm_tmp_path / "out.npy")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.load(comm_tmp_path / "out.ids.npy"), CHOSEN)
    file = comm_tmp_path / "ids.txt"
    if comm.rank == 0:
        file.write_text("# chosen\n" + "\n".join(map(str, CHOSEN)) + "\n\n")
    comm.Barrier()
    predict(comm_tmp_path / "out.csv", *options, "--nodes", file)
    with (comm_tmp_path / "out.csv").open() as lines:
        header, *rows = csv.reader(lines)
    assert header == ["node_id", *[f"e{number}" for number in range(5)]]
    assert [int(row[0]) for row in rows] == CHOSEN.tolist()
    np.testing.assert_array_equal(np.array([row[1:] for row in rows], np.float32), found)


def test_classes_name_the_columns(
    comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    predict(comm_tmp_path / "table", "--format", "csv")
    with (comm_tmp_path / "table").open() as lines:
        header, *rows = csv.reader(lines)
    probabilities = ["p_kind0", "p_kind1", "p_kind2", "p_kind3"]
    assert header == ["node_id", *probabilities, "prediction", "class"]
    found = np.array([row[1:5] for row in rows], np.float32)
    np.testing.assert_array_equal(found, run.predictions()["probabilities"])
    predicted = run.predictions()["prediction"].tolist()
    assert [row[5:] for row in rows] == [[str(each), f"kind{each}"] for each in predicted]


def test_replication_changes_nothing(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    if comm.size % 2:
        pytest.skip("two replicas need an even number of ranks")
    predict(comm_tmp_path / "out.h5", "--replication", 2)
    with h5py.File(comm_tmp_path / "out.h5") as file:
        found = file["probabilities"][...]
    np.testing.assert_allclose(found, run.predictions()["probabilities"], rtol=1e-5, atol=1e-7)


def write_other(comm: MPI.Intracomm, path: Path, graph: training.Graph, **data: Any) -> Path:
    """Write a store in one part, without labels unless given, and without a split."""
    if comm.rank == 0:
        rows, columns = graph.adjacency.nonzero()
        edges = {"": (columns, rows, graph.adjacency.data)}
        store_from_arrays(
            path,
            GraphArrays(name="other", num_nodes=61, edges=edges, features=graph.features, **data),
        )
    comm.Barrier()
    return path


def test_another_graph_keeps_the_scale_of_training(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    if comm.size > 1:
        pytest.skip("the other graph has one part")
    shifted = replace(GRAPH, features=GRAPH.features + np.float32(1))
    same = write_other(comm, comm_tmp_path / "same.h5", GRAPH, original_id=IDS)
    other = write_other(comm, comm_tmp_path / "other.h5", shifted)
    found = {}
    for store in (same, other):
        predict(comm_tmp_path / "out.h5", "--store", store)
        with h5py.File(comm_tmp_path / "out.h5") as file:
            found[store] = file["probabilities"][...]
    expected = run.predictions()["probabilities"]
    np.testing.assert_allclose(found[same], expected, rtol=1e-5, atol=1e-7)
    # Its own mean would hide the shift.
    assert np.abs(found[other][np.argsort(IDS)] - expected).max() > 1e-3


def test_names_of_nodes_and_classes(
    comm: MPI.Intracomm, comm_tmp_path: Path, predict: training.Predict
) -> None:
    if comm.size > 1:
        pytest.skip("the other graph has one part")
    count = len(GRAPH.labels)
    names = tuple(f"node {number:03}, ü" for number in range(count))
    ids = np.random.default_rng(9).permutation(count)
    other = write_other(
        comm, comm_tmp_path / "named.h5", GRAPH, original_id=ids, names=names, labels=None
    )
    path = comm_tmp_path / "named.parquet"
    predict(path, "--store", other)
    whole = parquet.read_table(path).to_pylist()
    assert [row["node_id"] for row in whole] == list(range(count))
    assert [row["name"] for row in whole] == list(names)
    asked = comm_tmp_path / "names.txt"
    if comm.rank == 0:
        asked.write_text("\n".join([names[40], names[0], names[40]]) + "\n", encoding="utf-8")
    comm.Barrier()
    predict(comm_tmp_path / "some.csv", "--store", other, "--nodes", asked)
    with (comm_tmp_path / "some.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["name"] for row in rows] == [names[40], names[0], names[40]]
    assert [row["class"] for row in rows] == [whole[each]["class"] for each in (40, 0, 40)]
    with pytest.raises(CollectiveInputError, match=r"has no node 'x', 'y'; give names of its"):
        predict(path, "--store", other, "--nodes", "x,y")


def test_faults(comm: MPI.Intracomm, comm_tmp_path: Path, predict: training.Predict) -> None:
    path = comm_tmp_path / "out.h5"
    narrow = replace(GRAPH, features=GRAPH.features[:, :3])
    unlike = {
        "narrow": (narrow, {}, "does not fit the model: features a node 3, .* trained with 7"),
        "classes": (GRAPH, {"labels": GRAPH.labels, "num_classes": 9}, "classes 9, .* with 4"),
        "both ways": (GRAPH, {"undirected": True}, "directed edges False, .* with True"),
    }
    cases: dict[str, tuple[object, ...]] = {
        r"has no node 5, 6, 7 and 1 more; give": ("--nodes", "5,6,7,8"),
        r"none.txt: no such file; --nodes: give": ("--nodes", "none.txt"),
        r"has no checkpoint of seed 5; it has seeds \[3, 8\]": ("--seed", 5),
        r"nowhere/out.h5: cannot be written": ("-o", comm_tmp_path / "nowhere" / "out.h5"),
        r"out.txt: its ending names no format; give .h5, .csv, .parquet, .npy, or --format": (
            "-o",
            comm_tmp_path / "out.txt",
        ),
        r"missing.h5: cannot be opened": ("--store", "missing.h5"),
        r"replication 9 does not divide": ("--replication", 9),
    }
    for name, (graph, data, message) in unlike.items():
        cases[message] = ("--store", write_other(comm, comm_tmp_path / f"{name}.h5", graph, **data))
    if comm.rank == 0:
        path.write_text("earlier")
    comm.Barrier()
    for message, options in cases.items():
        with pytest.raises(CollectiveInputError, match=message) as caught:
            predict(path, *options)
        assert "\n" not in str(caught.value)
    with pytest.raises(CollectiveInputError, match=r"is not a run directory; give the run.dir"):
        predict_elsewhere(comm, comm_tmp_path, path)
    assert path.read_text() == "earlier"
    assert not list(comm_tmp_path.glob(".*.tmp"))


def test_the_store_of_a_run_is_the_one_it_was_trained_on(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    store, away = Path(load_config(run.path / "config.toml").graph.store), comm_tmp_path / "away.h5"
    other = write_other(comm, comm_tmp_path / "other.h5", GRAPH)
    try:
        for now, message in (
            (None, "which is not here; give --store"),
            (other, "give --store .* all the same"),
        ):
            if comm.rank == 0:
                store.rename(away) if now is None else now.rename(store)
            comm.Barrier()
            with pytest.raises(CollectiveInputError, match=f"run: was trained on .*{message}"):
                predict(comm_tmp_path / "out.h5")
    finally:
        comm.Barrier()
        if comm.rank == 0:
            away.replace(store)
        comm.Barrier()


def predict_elsewhere(comm: MPI.Intracomm, directory: Path, output: Path) -> None:
    words = ["predict", str(directory / "missing"), "-o", str(output)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        COMMAND.call(comm=comm)


def test_a_run_without_checkpoints(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run
) -> None:
    if comm.rank == 0:
        (comm_tmp_path / "missing").mkdir()
        shutil.copy(run.path / "config.toml", comm_tmp_path / "missing")
    comm.Barrier()
    with pytest.raises(CollectiveInputError, match="has no checkpoint; train first"):
        predict_elsewhere(comm, comm_tmp_path, comm_tmp_path / "out.h5")


def test_a_run_that_was_not_evaluated_yet(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, GRAPH)
    settings = ("train.evaluate_every=10", "train.epochs=10")
    training.train(
        comm,
        training.make_config(store, comm_tmp_path / "missing", *settings),
        training.StopAfter(2),
    )
    comm.Barrier()
    with pytest.raises(CollectiveInputError, match=r"epoch000002 has no evaluated model yet: let"):
        predict_elsewhere(comm, comm_tmp_path, comm_tmp_path / "out.h5")


def test_lists_of_ids(tmp_path: Path) -> None:
    assert read_ids("5").tolist() == [5]
    assert read_ids("-3,5,-3").tolist() == [-3, 5, -3]
    np.save(tmp_path / "a.npy", np.array([4, 2], np.uint16))
    assert read_ids(str(tmp_path / "a.npy")).tolist() == [4, 2]
    for values in (np.zeros((2, 2), int), np.zeros(2), np.zeros(0, int), np.array([2**63], "u8")):
        np.save(tmp_path / "b.npy", values)
        with pytest.raises(InputError, match=r"b.npy: has shape .* and type"):
            read_ids(str(tmp_path / "b.npy"))
    # Spreadsheets write a byte order mark.
    (tmp_path / "c.txt").write_text("7\n3 # last\n", encoding="utf-8-sig")
    assert read_ids(str(tmp_path / "c.txt")).tolist() == [7, 3]
    for text in ("1.5\n", "1 2\n", "a\n", ""):
        (tmp_path / "c.txt").write_text(text)
        with pytest.raises(InputError, match=r"^--nodes .*c.txt: .*; give"):
            read_ids(str(tmp_path / "c.txt"))
    (tmp_path / "d.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"d.npy: .*; give one integer a line, or .npy"):
        read_ids(str(tmp_path / "d.npy"))
    with pytest.raises(InputError, match=r"give a list of at least one integer below"):
        read_ids(str(2**64))
    (tmp_path / "e.txt").write_text("9" * 5000)
    for long in (f"1,{'9' * 5000}", "9" * 30, str(tmp_path / "e.txt")):
        with pytest.raises(InputError, match=r"digits is no id; give one integer a line"):
            read_ids(long)


def test_names_of_columns_and_classes_are_those_of_training(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def store(name: str, columns: str = "a,b", of_edges: str = "c,d", classes: str = "xy") -> Path:
        path = comm_tmp_path / f"{name}.h5"
        if comm.rank == 0:
            edges, nodes = path.with_suffix(".edges.csv"), path.with_suffix(".nodes.csv")
            pairs = [f"{i},{(i + 1) % 9},{i},{-i}" for i in range(9)]
            edges.write_text("\n".join([f"src,dst,{of_edges}", *pairs]))
            rows = [f"{i},{i},{9 - i},{classes[i % 2]},train" for i in range(7)]
            rows += ["7,0,0,x,valid" if "x" in classes else "7,0,0,z,valid", "8,0,0,y,test"]
            nodes.write_text("\n".join([f"id,{columns},label,split", *rows]))
            plain = path.with_suffix(".plain.h5")
            words = [edges, "--nodes", nodes, "--edge-features", of_edges, "-o", plain]
            find_command("convert").call([str(word) for word in words])
            parts = str(max(4, comm.size))
            find_command("partition").call([str(plain), "--parts", parts, "-o", str(path)])
        comm.Barrier()
        return path

    words = ("model.name=gine", "model.hidden=4", "train.epochs=1")
    run = training.train(
        comm, training.make_config(store("trained"), comm_tmp_path / "run", *words)
    )
    predict = training.predict_with(comm, run, monkeypatch, capsys)
    out = comm_tmp_path / "out.csv"
    for name, other, message in (
        ("turned", {"columns": "b,a"}, "feature 0 'b', but it was trained with 'a'"),
        ("edges", {"of_edges": "d,c"}, "feature of edges 0 'd', but it was trained with 'c'"),
        ("classes", {"classes": "zy"}, "class 0 'y', but it was trained with 'x'"),
    ):
        with pytest.raises(CollectiveInputError, match=message):
            predict(out, "--store", store(name, **other))
    predict(out, "--store", store("renamed", columns="e,b", of_edges="f,g"))


def test_columns_of_node_types_are_compared(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def store(name: str, columns: str = "b,c") -> Path:
        folder = comm_tmp_path / name
        if comm.rank == 0:
            folder.mkdir()
            (folder / "graph.toml").write_text(
                "".join(f'[nodes.{kind}]\nfiles = ["{kind}.csv"]\n' for kind in "uv")
                + '[edges."u,k,v"]\nfiles = ["e.csv"]\n'
            )
            rows = [f"{i},{i},{i % 2},{'valid' if i > 6 else 'train'}" for i in range(9)]
            (folder / "u.csv").write_text("\n".join(["id,b,label,split", *rows]))
            rows = [f"{i},{i},{9 - i}" for i in range(9)]
            (folder / "v.csv").write_text("\n".join([f"id,{columns}", *rows]))
            (folder / "e.csv").write_text("\n".join(["src,dst", *(f"{i},{i}" for i in range(9))]))
            plain, parts = folder / "plain.h5", str(max(4, comm.size))
            find_command("convert").call([str(folder), "-o", str(plain)])
            find_command("partition").call(
                [str(plain), "--parts", parts, "--method", "block", "-o", str(folder / "g.h5")]
            )
        comm.Barrier()
        return folder / "g.h5"

    words = ("model.hidden=4", "train.epochs=1")
    given = store("trained")
    run = training.train(comm, training.make_config(given, comm_tmp_path / "run", *words))
    predict = training.predict_with(comm, run, monkeypatch, capsys)
    message = "feature of v, 0 'c', but it was trained with 'b'"
    with pytest.raises(CollectiveInputError, match=message):
        predict(comm_tmp_path / "out.csv", "--store", store("turned", "c,b"))
    predict(comm_tmp_path / "out.csv", "--store", store("renamed", "d,c"))
    with GraphStore.open(given) as opened:
        assert opened.feature_names == ("b", "b", "c")
