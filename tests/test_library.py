"""The library: a user's own loops train as the command does, and importing it starts no MPI."""

import doctest
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import nn

import hpcgnn
from hpcgnn.autograd import aggregate
from hpcgnn.comm import CollectiveInputError
from tests.support.examples import load_example
from tests.support.training import make_config, make_graph, train, write_store

SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"name": "sage", "hidden": 5, "dropout": 0.4},
    "train": {"dtype": "float64"},
    "run": {"threads": 1},
}
QUIET = ("train.dtype=float64", "model.dropout=0.4", "run.save_predictions=false")


class Net(nn.Module):
    """A torch module that does not use hpcgnn's models."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.linear = nn.Dropout(0.2), nn.Linear(3 * 7, 4).double()

    def forward(self, view: Any, x: torch.Tensor, _key: Any) -> torch.Tensor:
        means = [aggregate(each, x) for each in view.operators.values()]
        return self.linear(self.dropout(torch.cat([x, *means], dim=1)))


@pytest.mark.parametrize("model", ["sage", "gat", "rgcn"])
def test_own_loop_trains_as_the_command(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str
) -> None:
    graph = make_graph(weighted=model != "gat").with_relations()
    store = write_store(comm, comm_tmp_path, graph)
    words = (*QUIET, f"model.name={model}", "train.epochs=6", "exchange.method=joint")
    built_in = train(comm, make_config(store, comm_tmp_path / "run", *words))
    sections = {**SECTIONS, "model": {**SECTIONS["model"], "name": model}}
    own = load_example("own_loop").main
    losses, metrics = own(store, comm, epochs=6, exchange={"method": "joint"}, **sections)
    np.testing.assert_allclose(losses, built_in.column("train_loss"), rtol=1e-11)
    last = built_in.metrics[-1]
    for name in ("valid_loss", "valid_accuracy", "test_loss", "test_accuracy"):
        assert metrics[name] == pytest.approx(last[name], rel=1e-11)


def test_sampled_steps_are_those_of_the_command(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    sampling = {"walkers": 5, "steps": 3, "budget": 40, "subgraphs": 3}
    words = [f"sampling.{key}={value}" for key, value in sampling.items()]
    run = make_config(
        store, comm_tmp_path / "run", *QUIET, *words, "train.task=sampled", "train.epochs=2"
    )
    built_in = train(comm, run)
    sections = {**SECTIONS, "train": {"task": "sampled", "dtype": "float64"}, "sampling": sampling}
    losses, _ = load_example("sampled_training").main(store, comm, epochs=2, **sections)
    means = np.array(losses).reshape(2, -1).mean(axis=1)
    np.testing.assert_allclose(means, built_in.column("train_loss"), rtol=1e-11)


def test_module_of_ones_own_learns(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    kinds = ("mean_in", hpcgnn.Aggregation.MEAN_OUT)
    with hpcgnn.open_graph(comm, store, aggregations=kinds, **SECTIONS) as share:
        torch.manual_seed(4)
        net = Net()
        before = hpcgnn.evaluate(share, net)
        assert net.training
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for loss_of in (step for epoch in range(8) for step in share.steps(1, epoch)):
            optimizer.zero_grad()
            loss_of(net).backward()
            hpcgnn.sum_gradients(share, net)
            optimizer.step()
        assert hpcgnn.evaluate(share, net)["train_loss"] < 0.8 * before["train_loss"]
        rows = hpcgnn.predict(share, lambda *given: net(*given))
        everywhere = np.concatenate(comm.allgather(rows.ids))
        np.testing.assert_array_equal(everywhere, graph.ids)
        np.testing.assert_allclose(rows.values.sum(axis=1), 1, rtol=1e-6)
        with pytest.raises(hpcgnn.InputError, match="only a NodeModel"):
            hpcgnn.predict(share, net, "embeddings")


def test_without_a_split_predictions_only(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, replace(make_graph(), split=None))
    with hpcgnn.open_graph(comm, store, **SECTIONS) as share:
        model = share.make_model(seed=1)
        found = hpcgnn.predict(share, model, "embeddings")
        assert found.values.shape[1] == 5
        with pytest.raises(hpcgnn.InputError, match="has no labels, or no split"):
            hpcgnn.evaluate(share, model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": {"hiden": 3}}, "did you mean 'model.hidden'"),
        ({"modle": {}}, "did you mean 'model'"),
        ({"model": "gcn"}, "model = 'gcn': give a table"),
        ({"aggregations": ["mean"]}, "aggregations = 'mean': did you mean 'mean_in'"),
        (
            {"aggregations": ["symmetric", "mean_in"]},
            "aggregation 'symmetric' does not work with .* open the graph once for each",
        ),
        ({"exchange": {"wire": "native/int8"}}, "own loops send gradients in the format of rows"),
        ({"train": {"task": "programs"}}, "its store is one of many graphs; use the command"),
    ],
)
def test_faults_are_one_line_on_all_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    with pytest.raises(CollectiveInputError, match=message) as caught:
        hpcgnn.open_graph(comm, store, **{"run": {"threads": 1}, **arguments})
    assert "\n" not in str(caught.value)


def test_one_process_needs_no_launcher(tmp_path: Path) -> None:
    store = write_store(MPI.COMM_SELF, tmp_path, make_graph())
    losses, _ = load_example("own_loop").main(store, epochs=2, run={"threads": 1})
    assert len(losses) == 2


def test_names_of_the_package_are_there() -> None:
    for name in hpcgnn.__all__:
        assert getattr(hpcgnn, name) is not None
    assert callable(hpcgnn.predict)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        hpcgnn.trian  # noqa: B018


def test_links_are_those_of_the_command(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True).with_relations())
    words = (*QUIET, "model.name=rgcn", "train.task=links", "links.scorer=distmult")
    more = ("train.epochs=4", "links.ranked=20")
    built_in = train(comm, make_config(store, comm_tmp_path / "run", *words, *more))
    sections = {
        "model": {"name": "rgcn", "hidden": 5, "dropout": 0.4},
        "train": {"task": "links", "dtype": "float64"},
        "links": {"scorer": "distmult", "ranked": 20},
        "run": {"threads": 1},
    }
    losses, metrics = load_example("link_prediction").main(store, comm, epochs=4, **sections)
    np.testing.assert_allclose(losses, built_in.column("train_loss"), rtol=1e-11)
    for name in ("valid_mrr", "test_mrr", "test_auc"):
        assert metrics[name] == pytest.approx(built_in.metrics[-1][name], rel=1e-11)
    with hpcgnn.open_graph(comm, store, **sections) as share:
        model = share.make_model(seed=1)
        assert hpcgnn.predict(share, model, "embeddings").values.shape[1] == 5
        with pytest.raises(hpcgnn.InputError, match="links have scores and embeddings"):
            hpcgnn.predict(share, model)
        with pytest.raises(hpcgnn.InputError, match="has no labels of nodes"):
            _ = share.labels


@pytest.mark.filterwarnings("ignore")
@pytest.mark.max_ranks(4)  # Its store has four parts.
def test_graph_of_pyg_and_back(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    import torch_geometric as geometric

    rng = np.random.default_rng(3)
    graph = make_graph()
    rows, columns = graph.adjacency.nonzero()
    masks = {name: torch.zeros(len(graph.ids), dtype=torch.bool) for name in ("train", "test")}
    masks["train"][rng.permutation(61)[:40]] = True
    data = geometric.data.Data(
        x=torch.from_numpy(graph.features),
        edge_index=torch.from_numpy(np.stack([columns, rows])).long(),
        y=torch.from_numpy(graph.labels).long(),
        train_mask=masks["train"],
        val_mask=~masks["train"],
        test_mask=masks["test"],
    )
    example, path = load_example("from_pyg"), comm_tmp_path / "pyg.h5"
    if comm.rank == 0:
        example.to_store(data, path)
    comm.Barrier()
    found = example.train(path, comm, epochs=60, run={"threads": 1}, model={"dropout": 0.0})
    assert (found is None) == (comm.rank > 0)
    if found is not None:
        known = data.train_mask & (data.y >= 0)
        assert (found.argmax(1) == data.y)[known].double().mean() > 0.9


def test_examples_of_docstrings_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["generate", "planted", "--nodes=600", "--features=16", "--classes=4", "-o", "mine.h5"]
    subprocess.run([sys.executable, "-m", "hpcgnn", *words], check=True)
    names = {"hpcgnn": hpcgnn, "torch": torch}
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    names_of = "open_graph sum_gradients evaluate predict reduce_messages distribute"
    for name in names_of.split():
        (found,) = finder.find(getattr(hpcgnn, name), name, globs=names)
        assert found.examples
        assert runner.run(found).failed == 0
