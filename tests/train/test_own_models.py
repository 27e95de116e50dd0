"""Models of a user's own modules: trained, resumed, planned and applied by the commands."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import CollectiveInputError, agree
from hpcgnn.commands.command import find_command
from hpcgnn.config.file import dump_toml, load_config
from hpcgnn.errors import InputError
from hpcgnn.nn import make_model
from tests.support.examples import EXAMPLES
from tests.support.training import (
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    predict_with,
    train,
    train_alone,
    write_store,
)

EXPORT = find_command("export")
PREDICT = find_command("predict")

MODULE = """
import torch
from hpcgnn.comm import ProcessGrid
from hpcgnn.nn import Model
from hpcgnn.nn.models import GCN
from mpi4py import MPI

class Bare(Model):
    pass

class Failing(GCN):
    own_options = {"only_on": 0, "depths": (1, 2)}

    def __init__(self, shape, *, directed):
        super().__init__(shape, directed=directed)
        if MPI.COMM_WORLD.rank == shape.own["only_on"]:
            raise OSError("no weights there")

class NoModel:
    pass

class Named(GCN):
    aggregations = ("mean_in",)

class Odd(GCN):
    own_options = {"fault": ""}

    def __init__(self, shape, *, directed):
        super().__init__(shape, directed=directed)
        fault = shape.own["fault"]
        if fault == "complex":
            self.phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex128))
        if fault == "integers":
            self.steps = torch.nn.Parameter(torch.arange(3), requires_grad=False)
        if fault == "lazy":
            self.map = torch.nn.LazyLinear(3)
        if fault == "frozen":
            self.requires_grad_(False)
        if fault == "ranks":
            torch.nn.init.constant_(self.layers[0].bias, MPI.COMM_WORLD.rank)
        if fault == "buffer":
            self.norm = torch.nn.BatchNorm1d(shape.num_classes)

    def forward(self, graph, x_NF, key):
        rows, fault = super().forward(graph, x_NF, key), self.shape.own["fault"]
        if fault == "buffer":
            return self.norm(rows)
        if fault == "integer rows":
            return rows.long()
        widths = {"narrow": rows[:, 1:], "wide": rows.repeat(1, 2), "flat": rows.sum(1)}
        return {**widths, "long": rows.repeat(2, 1), "nothing": None}.get(fault, rows)

class Dropped(GCN):
    lacks = {}

    def __init__(self, shape, *, directed):
        super().__init__(shape, directed=directed)
        self.drop, self.frozen = torch.nn.Dropout(0.5), torch.nn.Dropout(0.5).eval()

    def forward(self, graph, x_NF, key):
        assert not self.frozen.training
        assert self.drop.training == (key is not None)
        return self.drop(super().forward(graph, x_NF, key))
"""

EDGES = """
import torch
from hpcgnn import Aggregation, reduce_messages
from hpcgnn.nn import Linear, Model

class Far(torch.nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.map = Linear(*widths)

    def forward(self, targets, sources, states):
        return self.map(torch.cat([sources, states], dim=1))

class Sums(Model):
    aggregations = (Aggregation.MESSAGES,)

    def __init__(self, shape, *, directed):
        super().__init__(shape, directed=directed)
        self.far = Far(shape.num_features + shape.num_edge_features, shape.num_classes)

    @classmethod
    def num_aggregations(cls, shape):
        return 1

    def forward(self, graph, x_NF, key):
        edges = graph.layer(0).edges
        return reduce_messages(edges, self.far, sources=x_NF, states=edges.features)[0]

    def embed(self, graph, x_NF):
        return x_NF

class RowsAlone(Sums):
    aggregations = ()

    def forward(self, graph, x_NF, key):
        return self.far.map(graph.layer(0).own(x_NF))
"""


@pytest.fixture
def modules(comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory with own_model.py of the examples and more modules, freshly imported."""
    for name in ("own_model", "faulty_models", "edge_models"):
        # Set first, so that modules imported from now on are removed again.
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    if comm.rank == 0:
        shutil.copy(EXAMPLES / "own_model.py", comm_tmp_path / "own_model.py")
        (comm_tmp_path / "faulty_models.py").write_text(MODULE)
        (comm_tmp_path / "edge_models.py").write_text(EDGES)
        (comm_tmp_path / "broken_models.py").write_text("1 / 0\n")
        (comm_tmp_path / "needy_models.py").write_text("import nothing_of_this_name\n")
    comm.Barrier()
    monkeypatch.chdir(comm_tmp_path)
    monkeypatch.syspath_prepend(str(comm_tmp_path))


@pytest.mark.usefixtures("modules")
def test_it_is_trained_resumed_and_applied(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    words = ("model.name=own_model:Damped", "model.options.share=0.25", "train.epochs=3")
    more = ("run.checkpoint_every=1", "model.dropout=0.2", "train.dtype=float64")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words, *more))
    config = make_config(store, comm_tmp_path / "parts", *words, *more)
    train(comm, config, StopAfter(2))
    parts = train(comm, config)
    assert_same(whole, parts)
    assert load_config(None, ["graph.store=a", "run.dir=b"]).model.options == {}
    kept = load_config(whole.path / "config.toml").model
    assert (kept.name, kept.own_options()) == ("own_model:Damped", {"share": 0.25})
    predict = predict_with(comm, whole, monkeypatch, capsys)
    predict(comm_tmp_path / "again.npy", "--format", "npy", "--trust-code")
    found = np.load(comm_tmp_path / "again.npy")
    np.testing.assert_allclose(found, whole.predictions()["probabilities"], atol=1e-6)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("key", ["model.name", "exchange.method"])
def test_a_module_that_a_run_names_is_not_imported(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    path = comm_tmp_path / "run"
    values = {"model.name": "own_model:Damped", "exchange.method": "own_method:NEAREST"}
    if comm.rank == 0:
        text = "from hpcgnn.spmm.registry import METHODS\nNEAREST = METHODS['aware']\n"
        (comm_tmp_path / "own_method.py").write_text(text)
    comm.Barrier()
    value = values[key]
    train(comm, make_config(store, path, f"{key}={value}", "train.epochs=1"))
    module = value.partition(":")[0]
    mark = comm_tmp_path / f"imported{comm.rank}"
    if comm.rank == 0:
        text = "import os, pathlib\nfrom mpi4py import MPI\n"
        text += "pathlib.Path('imported' + str(MPI.COMM_WORLD.rank)).touch()\n"
        file = comm_tmp_path / f"{module}.py"
        file.write_text(text + file.read_text())
    comm.Barrier()
    monkeypatch.delitem(sys.modules, module)
    importlib.invalidate_caches()
    output = comm_tmp_path / "out.npy"
    for run in (path, path / "model.safetensors"):
        words = ["predict", str(run), "-o", str(output)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(
            CollectiveInputError, match=rf"{key} = '{value}' names a module.*--trust-"
        ):
            PREDICT.call(comm=comm)
        if comm.size == 1:
            monkeypatch.setattr(sys, "argv", ["export", str(run), "--to", "torch"])
            with pytest.raises(InputError, match="names a module, whose code would run; if"):
                EXPORT.call()
    with pytest.raises(CollectiveInputError, match=r"whose code would run; use another run\.dir"):
        train(comm, make_config(store, path, "train.epochs=2"))
    comm.Barrier()
    assert not mark.exists()
    monkeypatch.setattr(sys, "argv", [*words, "--trust-code"])
    assert PREDICT.call(comm=comm) == 0
    assert mark.exists()


@pytest.mark.usefixtures("modules")
def test_one_that_lacks_nothing_is_not_exported(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = write_store(comm, comm_tmp_path, make_graph()), comm_tmp_path / "run"
    train(comm, make_config(store, path, "model.name=faulty_models:Dropped", "train.epochs=1"))
    if comm.size == 1:
        monkeypatch.setattr(sys, "argv", ["export", str(path), "--to", "torch", "--trust-code"])
        with pytest.raises(InputError, match=r"Dropped': its layers are not written in other"):
            EXPORT.call()


@pytest.mark.usefixtures("modules")
def test_losses_do_not_depend_on_ranks(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    words = ("model.name=own_model:Damped", "train.epochs=3", "train.dtype=float64")
    together = train(comm, make_config(store, comm_tmp_path / "run", *words))
    single = train_alone(comm, make_config(store, comm_tmp_path / "alone", *words))
    losses = single.column("train_loss")
    np.testing.assert_allclose(together.column("train_loss"), losses, rtol=1e-11)


@pytest.mark.usefixtures("modules")
def test_edges_need_neither_features_nor_aggregations(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    quiet = ("train.epochs=1", "train.dtype=float64", "exchange.active_sets=false")
    losses = {}
    for name in ("Sums", "RowsAlone"):
        config = make_config(store, comm_tmp_path / name, f"model.name=edge_models:{name}", *quiet)
        losses[name] = train(comm, config).column("train_loss")
    shape = config.model.shape(num_features=graph.features.shape[1], num_classes=4)
    model = make_model(config.model.name, shape, directed=True, seed=1, dtype=torch.float64)
    weight, bias = (each.detach().numpy() for each in model.parameters())
    rows = graph.features @ weight.T + bias
    trains = (graph.split == 1) & (graph.labels >= 0)
    for name, logits in (("Sums", (graph.adjacency != 0) @ rows), ("RowsAlone", rows)):
        total = np.log(np.exp(logits).sum(1))[trains]
        expected = (total - logits[trains, graph.labels[trains]]).mean()
        np.testing.assert_allclose(losses[name], [expected], rtol=1e-6)


FAULTS = [
    ("own_model:Dampt", {}, r"Dampt does not exist; did you mean 'Damped'\?"),
    ("own_modle:Damped", {}, r"there is no module 'own_modle' in .* nor installed"),
    ("needy_models:A", {}, r"its module needs nothing_of_this_name"),
    ("broken_models:A", {}, r"its module raises ZeroDivisionError: division by zero"),
    ("faulty_models:NoModel", {}, r"NoModel is not a subclass of hpcgnn.nn.Model"),
    ("faulty_models:Named", {}, r"aggregations are members of hpcgnn.Aggregation, not "),
    ("faulty_models:Bare", {}, r"it does not implement embed, forward"),
    ("own_model:Damped", {"shar": 1}, r"in \[model.options\] of own_model:Damped: 'shar'; did"),
    ("own_model:Damped", {"share": '"x"'}, r"model.options.share = 'x': expected a number"),
    ("faulty_models:Failing", {"depths": '["a"]'}, r"model.options.depths = 'a': expected a whole"),
    ("sage", {"share": 1}, r"model.options: sage has no options of its own; leave it out"),
    ("nosuch", {}, r"model.name = 'nosuch': choose one of MODULE:CLASS, appnp, gat"),
]


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("name", "options", "message"), FAULTS, ids=[e[0] for e in FAULTS])
def test_faults_are_one_line(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    words = [f"model.options.{key}={value}" for key, value in options.items()]
    with pytest.raises(CollectiveInputError, match=message) as caught, agree(comm):
        make_config(comm_tmp_path / "store.h5", comm_tmp_path, f"model.name={name}", *words)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("modules")
def test_constructor_that_fails_on_one_rank(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    last = f"model.options.only_on={comm.size - 1}"
    config = make_config(store, comm_tmp_path / "run", "model.name=faulty_models:Failing", last)
    message = "'faulty_models:Failing': its constructor raises OSError: no weights there"
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, config)


ODD = {
    "complex": "phase is complex128; parameters are real numbers",
    "integers": "steps is int64; parameters are real numbers, with sizes; integers may be buffers",
    "lazy": "map.weight is without sizes",
    "frozen": "it has no parameter to train",
    "narrow": r"forward returns torch.float32 \(\d+, 3\), not .* = \(\d+, 4\)",
    "wide": r"forward returns torch.float32 \(\d+, 8\), not .* = \(\d+, 4\)",
    "flat": r"forward returns torch.float32 \(\d+,\), not ",
    "long": r"forward returns torch.float32 \(\d+, 4\), not ",
    "integer rows": "forward returns torch.int64 ",
    "nothing": "forward returns NoneType, not float32",
}
ODD_RANKS = {
    "ranks": r"layers.0.bias begins with other values on other ranks; in the constructor, draw",
    "buffer": "the buffer norm.running_mean has other values on other ranks; torch.nn.BatchNorm1d",
}


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("fault", [*ODD, *ODD_RANKS])
def test_tensors_that_do_not_fit_are_one_line(
    comm: MPI.Intracomm, comm_tmp_path: Path, fault: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = ("model.name=faulty_models:Odd", f"model.options.fault={fault}", "train.epochs=1")
    config = make_config(store, comm_tmp_path / "run", *words)
    if fault in ODD_RANKS and comm.size == 1:
        train(comm, config)
        return
    with pytest.raises(InputError, match=(ODD | ODD_RANKS)[fault]) as caught:
        train(comm, config)
    assert str(caught.value).startswith("model.name = 'faulty_models:Odd': ")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("modules")
def test_evaluations_and_predictions_are_without_dropout_of_torch(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = ("model.name=faulty_models:Dropped", "train.epochs=2")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "again.npy", "--format", "npy", "--trust-code")
    found = np.load(comm_tmp_path / "again.npy")
    np.testing.assert_array_equal(found, run.predictions()["probabilities"])


def test_options_are_written_and_read_back(tmp_path: Path) -> None:
    words = ["model.name=tests.support.own:Many", "model.options.widths=[4, 5]"]
    config = load_config(None, ["graph.store=a", "run.dir=b", *words])
    assert config.model.own_options() == {"widths": (4, 5), "name": "x", "on": False}
    (tmp_path / "config.toml").write_text(dump_toml(config))
    assert load_config(tmp_path / "config.toml") == config
    with pytest.raises(InputError, match=r"override .*: model.options is not a table"):
        load_config(None, ["model.options=3", "model.options.on=true"])


@pytest.mark.parametrize("schedule", ["resident", "sequential"])
def test_own_exchange_gives_the_same_losses(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    words = ("train.epochs=3", "train.dtype=float64", f"exchange.schedule={schedule}")
    methods = ("aware", "push", "own_exchange:HUBS")
    runs = [
        train(comm, make_config(store, comm_tmp_path / name[:4], *words, f"exchange.method={name}"))
        for name in methods
    ]
    fetching, pushing, own = runs
    for other in (fetching, pushing):
        np.testing.assert_allclose(own.column("train_loss"), other.column("train_loss"), rtol=1e-11)
    if comm.size > 1:
        sent = own.summary["exchange_rows"]["total"]
        assert sent < min(e.summary["exchange_rows"]["total"] for e in (fetching, pushing))


def test_unknown_exchanges_of_ones_own_are_one_line() -> None:
    for name, message in (
        ("tests.support.own:Many", "Many is not a hpcgnn.spmm.Method; write one"),
        ("nosuch:A", "exchange.method = 'nosuch:A': there is no module 'nosuch'"),
        ("awere", "exchange.method = 'awere': did you mean 'aware'"),
    ):
        with pytest.raises(InputError, match=message):
            load_config(None, ["graph.store=a", "run.dir=b", f"exchange.method={name}"])
