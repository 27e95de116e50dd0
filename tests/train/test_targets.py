"""Numbers of nodes are learned to their planted optimum, equally on any ranks; faulty files."""

import csv
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.comm import CollectiveInputError
from hpcgnn.storage import Split
from hpcgnn.train.run.report import print_results
from tests.support.training import (
    Graph,
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    predict_with,
    train,
    train_alone,
    write_store,
)

NUM_NODES = 400
LINEAR = ("model.name=sage", "model.num_layers=1", "train.dtype=float64")


def design(graph: Graph) -> np.ndarray:
    """Return the inputs of a linear GraphSAGE layer: own rows, means both ways, and a one."""
    forward = sp.csr_matrix(graph.adjacency != 0).astype(float)
    means = [
        sp.diags_array(1 / np.maximum(np.asarray(each.sum(1)).ravel(), 1)) @ each @ graph.features
        for each in (forward, sp.csr_matrix(forward.T))
    ]
    return np.column_stack([graph.features, *means, np.ones(len(graph.ids))])


def planted(graph: Graph) -> np.ndarray:
    """Return two targets, linear except for noise, with gaps: one far from 0, in other units."""
    rng = np.random.default_rng(5)
    inputs = design(graph)
    exact = inputs @ rng.normal(size=(inputs.shape[1], 2))
    targets = (exact + 0.3 * rng.normal(size=exact.shape)) * [1.0, 4000.0] + [1e9, 1e5]
    targets[rng.random(targets.shape) < 0.2] = np.nan
    targets[7] = np.nan
    return targets


def write_targets(comm: MPI.Intracomm, path: Path, targets: np.ndarray) -> Path:
    if comm.rank == 0:
        if path.suffix == ".npy":
            np.save(path, targets)
        else:
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["node", "age", "price"])
                for node, row in enumerate(targets):
                    texts = ["" if np.isnan(each) else repr(each) for each in row.tolist()]
                    if any(texts):
                        writer.writerow([node, *texts])
    comm.Barrier()
    return path


@pytest.mark.quality
@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_the_planted_optimum_is_reached(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = make_graph(num_nodes=NUM_NODES)
    targets = planted(graph)
    store = write_store(comm, comm_tmp_path, graph)
    file = write_targets(comm, comm_tmp_path / f"targets.{kind}", targets)
    words = (f"graph.targets={file}", "train.epochs=150", "train.learning_rate=0.1")
    more = ("train.schedule=cosine", "train.evaluate_every=150")
    run = train(comm, make_config(store, comm_tmp_path / "run", *LINEAR, *words, *more))
    names = ("target0", "target1") if kind == "npy" else ("age", "price")
    values, last = run.predictions()["values"], run.metrics[-1]
    for place, name in enumerate(names):
        known = ~np.isnan(targets[:, place])
        chosen = known & (graph.split == Split.TRAIN)
        truth, inputs = targets[chosen, place], design(graph)[chosen]
        best, *_ = np.linalg.lstsq(inputs, truth, rcond=None)
        optimum = np.sqrt(np.mean((inputs @ best - truth) ** 2))
        assert last[f"train_rmse_{name}"] <= 1.02 * optimum
        for part in ("train", "valid", "test"):
            mine = known & (graph.split == Split[part.upper()])
            errors, truth = (values[:, place] - targets[:, place])[mine], targets[mine, place]
            found = {
                "rmse": np.sqrt(np.mean(errors**2)),
                "mae": np.abs(errors).mean(),
                "r2": 1 - np.sum(errors**2) / np.sum((truth - truth.mean()) ** 2),
            }
            for metric, value in found.items():
                np.testing.assert_allclose(last[f"{part}_{metric}_{name}"], value, rtol=1e-4)
    mean = np.mean([last[f"valid_r2_{name}"] for name in names])
    assert run.summary["metric"] == "r2"
    np.testing.assert_allclose([run.summary["seeds"][0]["valid"], last["valid_r2"]], mean)
    predict = predict_with(comm, run, monkeypatch, capsys)
    told = predict(comm_tmp_path / "out.csv", "--nodes", "5,7")
    lines = (comm_tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == ",".join(["node_id", *names])
    answers = np.array([line.split(",")[1:] for line in lines[1:]], float)
    np.testing.assert_allclose(answers, values[[5, 7]], rtol=1e-15)
    if comm.rank == 0:
        np.testing.assert_allclose(told["scores"]["test"]["value"], last["test_r2"], rtol=1e-4)
        capsys.readouterr()
        print_results(run.summary, run.path)
        shown = capsys.readouterr().out
        assert f"{mean:.3f}" in shown
        assert "%" not in shown


@pytest.mark.parametrize("task", ["full", "sampled"])
def test_a_run_that_was_stopped_goes_on(
    comm: MPI.Intracomm, comm_tmp_path: Path, task: str
) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    # One column, with a missing value at a training node.
    file = write_targets(comm, comm_tmp_path / "one.npy", planted(graph)[:, 0])
    words = (f"graph.targets={file}", f"train.task={task}", "train.epochs=3", "model.dropout=0.2")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words, "run.checkpoint_every=1")
    train(comm, config, StopAfter(2))
    assert_same(whole, train(comm, config))


@pytest.mark.parametrize("epoch", [2, 4], ids=["stopped", "ended"])
def test_another_file_is_noticed(comm: MPI.Intracomm, comm_tmp_path: Path, epoch: int) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    targets = planted(graph)
    file = write_targets(comm, comm_tmp_path / "t.npy", targets)
    words = (f"graph.targets={file}", "train.epochs=4")
    config = make_config(store, comm_tmp_path / "run", *words)
    train(comm, config, StopAfter(epoch))
    # The mean and the deviation of the training nodes stay.
    write_targets(comm, file, np.where(graph.split[:, None] == Split.TEST, 0, targets))
    with pytest.raises(CollectiveInputError, match=r"another store or graph\.targets than"):
        train(comm, config)
    write_targets(comm, file, targets)
    assert train(comm, config).status == 0


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_losses_are_those_of_one_rank(comm: MPI.Intracomm, comm_tmp_path: Path, kind: str) -> None:
    graph = make_graph(weighted=True)
    store = write_store(comm, comm_tmp_path, graph, method="empty second")
    file = write_targets(comm, comm_tmp_path / f"t.{kind}", planted(graph))
    words = (f"graph.targets={file}", "train.epochs=3", "train.dtype=float64", "model.name=gat")
    mine = train(comm, make_config(store, comm_tmp_path / "run", *words))
    one = train_alone(comm, make_config(store, comm_tmp_path / "alone", *words))
    last = "test_mae_target1" if kind == "npy" else "test_mae_price"
    for name in ("train_loss", "valid_loss", "test_r2", last):
        np.testing.assert_allclose(mine.column(name), one.column(name), rtol=1e-9)


def test_a_target_that_is_constant_in_training_has_deviation_one(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    # The means of these are rounded.
    constant = np.array([0.1, 1 / 3, 1e7 / 3])
    targets = np.where((graph.split == Split.TRAIN)[:, None], constant, constant + 2)
    file = write_targets(comm, comm_tmp_path / "t.npy", targets)
    words = (f"graph.targets={file}", "train.dtype=float64", "train.epochs=1")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    (line,) = run.metrics
    assert line["test_loss"] == pytest.approx(line["test_rmse"] ** 2, rel=0.5)


def test_a_target_that_is_constant_in_testing_explains_nothing(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    targets, tested = np.random.default_rng(2).normal(size=(61, 3)), graph.split == Split.TEST
    # Sums of the first, scaled, round; the second is far from 0, but varies.
    targets[tested, 0], targets[tested, 1] = 0.9371, targets[tested, 1] + 1000
    file = write_targets(comm, comm_tmp_path / "t.npy", targets)
    words = (f"graph.targets={file}", "train.dtype=float64", "train.epochs=1")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    errors = np.square(run.predictions()["values"] - targets)[tested].mean(0)
    expected = np.append(0, 1 - errors[1:] / targets[tested, 1:].var(0))
    (line,) = run.metrics
    found = [line[f"test_r2_target{number}"] for number in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert line["test_r2"] == pytest.approx(expected.mean(), rel=1e-5)


BAD = {
    "rows": (np.zeros((5, 2)), (), "has 5 rows, not one for each of the ids 0 to 60"),
    "text": (np.array(["a"] * 61), (), "of <U1; give numbers"),
    "infinite": (np.full(61, np.inf), (), "has infinite values"),
    "large": (1e300 * np.arange(61), (), "values of 'target' are too large; give them in other"),
    "unknown": (np.full((61, 2), np.nan), (), "has no value of 'target0' in the train"),
}


@pytest.mark.parametrize("fault", BAD)
def test_wrong_targets_are_refused(comm: MPI.Intracomm, comm_tmp_path: Path, fault: str) -> None:
    table, words, message = BAD[fault]
    store = write_store(comm, comm_tmp_path, make_graph())
    file = write_targets(comm, comm_tmp_path / "t.npy", table)
    config = make_config(store, comm_tmp_path / "run", f"graph.targets={file}", *words)
    with pytest.raises(CollectiveInputError, match=message) as caught:
        train(comm, config)
    assert "\n" not in str(caught.value)


TABLES = {
    "node,x\n1,2\n1,3\n": "has node '1' twice",
    "node,x\n1,two\n": "'two' is not a number",
    "node,x\nlibc,2\n": "must hold integers: original ids",
    "node,x\n61,2\n": ".h5 has no node '61'",
    "node,x\n1,2,3\n": "line 2 has 3 fields, not 2",
    "\nnode,x\n\n1,2\n\n3\n": "line 6 has 1 fields, not 2",
    'node,"x\ny"\n1,2\n\n3,z\n': "line 5: 'z' is not a number",
    "node\n1\n": "needs a header",
    "0,1.5\n1,2\n": "needs a header",
    "0,-1.5e-3\n1,2\n": "needs a header",
    "libc,-1.5\nlibm,2\n": "needs a header",
}


@pytest.mark.parametrize("text", TABLES)
def test_wrong_tables_are_refused(comm: MPI.Intracomm, comm_tmp_path: Path, text: str) -> None:
    store, file = write_store(comm, comm_tmp_path, make_graph()), comm_tmp_path / "t.csv"
    if comm.rank == 0:
        file.write_text(text)
    comm.Barrier()
    config = make_config(store, comm_tmp_path / "run", f"graph.targets={file}")
    with pytest.raises(CollectiveInputError, match=TABLES[text]):
        train(comm, config)
