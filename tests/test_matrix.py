"""docs/matrix.md is true: refused pairs are refused, others run and equal their oracle."""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

import hpcgnn
from hpcgnn.comm import ProcessGrid
from hpcgnn.commands.command import find_command
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.nn import find_model
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.plan.degree_graph import DegreeGraph
from hpcgnn.plan.graph_shape import Shape
from hpcgnn.plan.mesh import MeshGraph, MeshShape
from hpcgnn.plan.rehearsal import rehearse
from hpcgnn.plan.traffic import Ranks
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, store_from_arrays
from hpcgnn.train.tasks import check_run
from tests import matrix
from tests.support.integers import has_integers, round_small_graphs
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.planned import planned
from tests.support.series import random_fields, with_flows, write_series
from tests.support.training import MOVED, TIMES, Run, load_config, make_graph, train
from tests.support.works import PREDICT, Cell, Words, every_cell, predict_words

EXPORT, PREDICTS = find_command("export"), find_command("predict")


@cache
def all_cells() -> tuple[Cell, ...]:
    return tuple(every_cell())


@cache
def working() -> tuple[Cell, ...]:
    """Return the cells that work on this machine, without repetitions."""
    cells = {cell.words: cell for cell in all_cells() if cell.conflict is None}
    return tuple(cell for cell in cells.values() if INT8 not in cell.words or has_integers())


def working_with(*doors: str) -> list[Cell]:
    """Return the cells that work, for any of some commands."""
    return [each for each in working() if {*doors} & {*each.words}]


def fixed(cells: Iterable[Cell]) -> list[Cell]:
    """Leave out cells whose run chooses its exchange, which tests/plan/test_degrees.py tests."""
    return [each for each in cells if "exchange.method=auto" not in each.words]


SMALL = (
    "model.hidden=8",
    "model.dropout=0",
    "train.epochs=2",
    "run.threads=1",
    "trace.enabled=false",
    "sampling.budget=20",
    "sampling.walkers=5",
    "links.train=0.3",
)
SEEDS = (1, 2, 3, 4)
NARROW = ("exchange.wire", "train.precision", "train.products")
INT8 = "train.products=int8"
PART, PART_ON_RANKS = 61, 127
"""The quick suite runs one of this many cells; on ranks, where cells cost most, other ones."""


def test_the_page_is_the_table() -> None:
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.write()


def test_what_the_table_refuses_is_one_line_before_anything_is_read() -> None:
    refused = [each for each in all_cells() if each.conflict is not None]
    assert len(refused) > 100
    for each in refused:
        settings = ("graph.store=none.h5", "run.dir=none", *each.settings)
        assert each.conflict is not None
        with pytest.raises(InputError) as caught:
            check_run(load_config(None, settings), *each.doors)
        told, (asking, lacking) = str(caught.value), each.conflict.pair
        assert told.startswith(f"{asking} does not work with {lacking}: {each.conflict.reason}")
        assert "\n" not in told


def test_remedies_mend() -> None:
    words = ("graph.store=none.h5", "run.dir=none", "model.name=gat")
    with pytest.raises(InputError, match=r"; leave train.inductive out, or set train.task"):
        check_run(load_config(None, [*words, "train.task=links", "train.inductive=true"]))
    wrong = load_config(None, [*words, "exchange.wire=int2"])
    with pytest.raises(InputError, match=r"set exchange.wire = 'native' or 'bfloat16' or 'fl"):
        check_run(wrong)
    check_run(replace(wrong, exchange=replace(wrong.exchange, wire="float16")))


@pytest.fixture(autouse=True)
def small_graphs_round(monkeypatch: pytest.MonkeyPatch) -> None:
    round_small_graphs(monkeypatch)


def _stores(comm: MPI.Intracomm, folder: Path) -> Callable[[Cell], tuple[Path, Path]]:
    """Write the graphs of the cells; return a function from a cell to its graph and numbers."""
    made, rng = make_graph().with_relations(), np.random.default_rng(6)
    edges, data = {}, {}
    for name in ("cites", "names"):
        rows, columns = made.relations[name].nonzero()
        edges[name] = columns, rows
        values = rng.normal(size=(len(rows), 3)).astype(np.float32)
        classes = rng.integers(-1, 3, (len(rows), 1)).astype(np.int32)
        data[name] = EdgeData(values, labels=classes)
    count = max(4, comm.size)
    part = Partition(rng.integers(0, count, len(made.ids)).astype(np.int32), count)
    if comm.rank == 0:
        for kind, features in (("full", made.features), ("bare", None)):
            store_from_arrays(
                folder / "plain.h5",
                GraphArrays(
                    name=kind,
                    num_nodes=len(made.ids),
                    edges=edges,
                    edge_data=data,
                    edge_labels=("a", "b", "c"),
                    features=features,
                    labels=made.labels,
                    split=made.split,
                ),
            )
            with GraphStore.open(folder / "plain.h5") as store:
                path = folder / f"{kind}.h5"
                how = {"method": "block", "seed": 0, "metrics": {}, "provenance": {}}
                write_partitioned(store, path, part, **how)
        np.save(folder / "numbers.npy", rng.normal(size=(len(made.ids), 2)))
    series = write_series(comm, folder, replace(with_flows(random_fields()), edge_features=True))
    many = write_graphs(comm, folder, make_graphs(), edge_features=True)

    def store_of(each: Cell) -> tuple[Path, Path]:
        if "train.task=graphs" in each.words:
            return many, folder / "targets.npy"
        if "train.task=fields" in each.words:
            return series, folder / "numbers.npy"
        bare = "model.embeddings=true" in each.words
        return folder / ("bare.h5" if bare else "full.h5"), folder / "numbers.npy"

    return store_of


def _settings(each: Cell, numbers: Path) -> list[str]:
    """Return the settings of a run of a cell, in float64 if its features allow."""
    words = [word.replace("targets.npy", str(numbers)) for word in each.settings]
    fixed = ("train.reproducible", "train.dtype", *NARROW)
    wide = not any(word.startswith(fixed) for word in words)
    # With two bits, one run says little: its loss equals the default's only on average.
    several = "exchange.wire=int2" in words and not each.doors
    more = ["train.dtype=float64"] * wide + [f"train.seeds={list(SEEDS)}"] * several
    return [*SMALL, *more, *words]


def _trained(comm: MPI.Intracomm, folder: Path, store: Path, settings: list[str]) -> Run:
    words = [f"graph.store={store}", f"run.dir={folder}", *settings]
    return train(comm, load_config(None, words))


def _train_cells(comm: MPI.Intracomm, folder: Path, part: tuple[Cell, ...]) -> int:
    """Train each cell on all ranks, and without its exchange on one; return their number."""
    store_of, alone, single = _stores(comm, folder), {}, comm.Split(comm.rank)
    count = 0
    for number, each in enumerate(part):
        unable = ("train.device=cuda", "train.task=programs")
        if each.doors or set(unable) & set(each.words):
            continue
        if {"exchange.replication=2", "exchange.groups=2"} & set(each.words) and comm.size % 2:
            continue
        store, numbers = store_of(each)
        settings = _settings(each, numbers)
        run = _trained(comm, folder / f"run{number}", store, settings)
        plain = [
            word
            for word in settings
            if not word.startswith("exchange.") or word.startswith("exchange.active_sets")
        ]
        key = (store, *plain)
        if comm.rank == 0:
            if key not in alone:
                alone[key] = _trained(single, folder / f"alone{number}", store, plain)
            _compare(each, settings, run, alone[key])
        comm.Barrier()
        count += 1
    single.Free()
    return count


def _compare(each: Cell, settings: list[str], run: Run, alone: Run) -> None:
    narrow = any(word.startswith(NARROW) for word in settings)
    exact = "train.reproducible=true" in settings
    pairs = list(zip(*map(_epochs, (run, alone)), strict=True))
    assert len(pairs) == 2
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if "loss" not in name and narrow:
                continue
            if name not in (*TIMES, *MOVED):
                within = 0 if exact else 0.1 if narrow else 1e-7
                assert mine[name] == pytest.approx(value, rel=within), (each.words, name)
    if exact:
        assert run.column("train_loss") == alone.column("train_loss")
    mine, theirs = run.predictions(), alone.predictions()
    assert mine.keys() == theirs.keys()
    for name, rows in theirs.items():
        if exact:
            np.testing.assert_array_equal(mine[name], rows, err_msg=str(each))
        elif not narrow and rows.dtype.kind == "f":
            np.testing.assert_allclose(mine[name], rows, rtol=1e-4, atol=1e-6, err_msg=str(each))


def _epochs(run: Run) -> list[dict[str, Any]]:
    """Return the metrics of each epoch, numbers as means over the seeds of a run with several."""
    by_epoch: dict[int, list[dict[str, Any]]] = {}
    for row in run.metrics:
        by_epoch.setdefault(row["epoch"], []).append(row)
    return [
        rows[0]
        if len(rows) == 1
        else {name: np.mean([row[name] for row in rows]) for name in rows[0]}
        for rows in by_epoch.values()
    ]


def test_some_of_what_works_equals_its_oracle(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    part = working()[::PART] if comm.size == 1 else working()[comm.size :: PART_ON_RANKS]
    assert _train_cells(comm, comm_tmp_path, part) > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(8))
def test_what_works_equals_its_oracle(comm: MPI.Intracomm, comm_tmp_path: Path, share: int) -> None:
    assert _train_cells(comm, comm_tmp_path, working()[share::8]) > 50


def _plans(comm: MPI.Intracomm, folder: Path, part: list[Cell]) -> None:
    """Compare the planned rows with those that a run sends."""
    store_of = _stores(comm, folder)
    for number, each in enumerate(part):
        store, numbers = store_of(each)
        more = ("run.save_predictions=false", "train.evaluate_every=2", "exchange.prepare=before")
        settings = [*_settings(each, numbers), *more]
        words = [f"graph.store={store}", f"run.dir={folder / f'plan{number}'}", *settings]
        config = load_config(None, words)
        if comm.size % (config.exchange.replication * config.exchange.groups):
            continue
        run = train(comm, config)
        if comm.rank == 0:
            _, _, (_, epoch, evaluation) = planned(config, comm.size, None, 2)
            sent = [int(epoch.rows.sum()), int(epoch.rows.sum() + evaluation.rows.sum())]
            if "links" in config.train.tasks:
                # Pairs are redrawn in each epoch; the plan is for the first one.
                assert run.column("rows_sent")[0] == sent[0], each.words
            else:
                assert run.column("rows_sent") == sent, each.words
        comm.Barrier()


def test_some_planned_rows_are_those_sent(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    _plans(comm, comm_tmp_path, fixed(working_with("plan"))[::9])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_planned_rows_are_those_sent(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    _plans(comm, comm_tmp_path, fixed(working_with("plan")))


EXPORTS = ("export", "export --to dgl")


def _exports(folder: Path, part: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    """Export; the command itself compares torch modules with the model, in float64."""
    store_of = _stores(MPI.COMM_SELF, folder)
    for number, each in enumerate(part):
        if {"train.device=cuda", "exchange.replication=2", "exchange.groups=2"} & set(each.words):
            continue
        store, numbers = store_of(each)
        to = "dgl" if "export --to dgl" in each.words else "torch"
        settings = _settings(each, numbers)
        run = _trained(MPI.COMM_SELF, folder / f"run{number}", store, settings)
        output = folder / f"module{number}"
        words = ["export", run.path, "--to", to, "-o", output]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        assert EXPORT.call() == 0, each.words
        assert (output / "model.py").exists()


def test_some_of_what_is_exported_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _exports(tmp_path, working_with(*EXPORTS)[::11], monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_exported_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _exports(tmp_path, working_with(*EXPORTS), monkeypatch)


def _loops(comm: MPI.Intracomm, folder: Path, part: list[Cell]) -> None:
    """Take the first step of a user's own loop; its loss is that of the command."""
    store_of = _stores(comm, folder)
    for number, each in enumerate(part):
        if "train.device=cuda" in each.words:
            continue
        if {"exchange.replication=2", "exchange.groups=2"} & set(each.words) and comm.size % 2:
            continue
        store, numbers = store_of(each)
        settings = [*_settings(each, numbers), "exchange.prepare=first_epoch"]
        run = _trained(comm, folder / f"run{number}", store, settings)
        sections: dict[str, dict[str, Any]] = {}
        config = load_config(None, [f"graph.store={store}", "run.dir=none", *settings])
        for section in (
            "graph",
            "model",
            "train",
            "links",
            "edges",
            "graphs",
            "fields",
            "sampling",
            "exchange",
        ):
            values = getattr(config, section)
            names = [name for name in values.__dataclass_fields__ if name != "store"]
            sections[section] = {name: getattr(values, name) for name in names}
        with hpcgnn.open_graph(comm, str(store), **sections) as graph:
            model = graph.make_model(1)
            first = graph.total(next(iter(graph.steps(1, 0)))(model))
            if len(list(graph.steps(1, 0))) == 1:
                assert run.column("train_loss")[0] == pytest.approx(first, rel=1e-3), each.words
            else:
                assert np.isfinite(first)


def test_some_loops_of_ones_own(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    _loops(comm, comm_tmp_path, working_with("open_graph")[::9])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_loops_of_ones_own(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    _loops(comm, comm_tmp_path, working_with("open_graph"))


def _predictions(folder: Path, part: Iterable[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    """Use runs that have ended; other tests check the results."""
    store_of = _stores(MPI.COMM_SELF, folder)
    table = folder / "pairs.csv"
    table.write_text("source,target,relation,a,b,c\n0,1,names,1,2,3\n1,0,cites,0,0,1\n")
    runs: dict[Words, Run] = {}
    for number, each in enumerate(part):
        if "train.task=programs" in each.words:
            continue
        if each.settings not in runs:
            store, numbers = store_of(each)
            settings = _settings(each, numbers)
            runs[each.settings] = _trained(MPI.COMM_SELF, folder / f"run{number}", store, settings)
        (name,), output = {*PREDICT} & {*each.words}, folder / f"said{number}"
        words = [word.replace("pairs.csv", str(table)) for word in predict_words(name)]
        run = runs[each.settings].path
        monkeypatch.setattr(sys, "argv", ["predict", str(run), "-o", str(output), *words])
        assert PREDICTS.call(comm=MPI.COMM_SELF) == 0, each.words
        assert output.stat().st_size > 0


def test_some_of_what_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _predictions(tmp_path, working_with(*PREDICT)[::7], monkeypatch)


@pytest.mark.slow
def test_what_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _predictions(tmp_path, working_with(*PREDICT), monkeypatch)


DEGREES = """
name = "small"
classes = 3
training = 0.2
[nodes.paper]
count = 400
features = 5
[edges.cites]
from = "paper"
to = "paper"
count = 2000
features = 3
"""
DIRECTED = """
out_degrees = {exponent = 3.5, min = 0, max = 40}
in_degrees = {exponent = 2.2, min = 0, max = 200}
"""


def _passes_messages(config: Config) -> bool:
    return any(each.passes_messages for each in find_model(config.model.name).aggregations)


def _from_degrees(folder: Path, part: list[Cell]) -> None:
    """Rehearse a rank of a graph that is known by its degrees only."""
    path = folder / "small.toml"
    for each in part:
        bare, words = "model.embeddings=true" in each.words, [*SMALL, *each.settings]
        words += [f"graph.store={path}", "run.dir=none"]
        both = load_config(None, words)
        reads = both.model.edge_features or _passes_messages(both)
        # No reverses are added to edges with features.
        law = "degrees = {exponent = 2.2, min = 0, max = 200}\n" if reads else DIRECTED
        path.write_text((DEGREES.replace("features = 5\n", "") if bare else DEGREES) + law)
        config = load_config(None, [*words, f"graph.undirected={str(not reads).lower()}"])
        check_run(config, *each.doors)
        whole = DegreeGraph(config, Shape.read(path))
        ranks = Ranks(whole.row_starts(4), config.exchange)
        share = whole.share(config, ranks, whole.surveys(ranks), 2)
        with ProcessGrid.of_this_process() as alone:
            found = rehearse(alone, share, 2)
        assert found.epoch_s > 0, each.words


def test_some_of_what_is_planned_from_degrees(tmp_path: Path) -> None:
    _from_degrees(tmp_path, fixed(working_with("plan --shape"))[::5])


@pytest.mark.slow
def test_what_is_planned_from_degrees(tmp_path: Path) -> None:
    _from_degrees(tmp_path, fixed(working_with("plan --shape")))


BOX = """
name = "box"
[mesh]
nodes = [9, 7, 5]
steps = 12
[mesh.fields]
u = 2
"""


def _from_mesh(folder: Path, part: list[Cell]) -> None:
    """Rehearse a box of a mesh that is known by its shape only."""
    (folder / "box.toml").write_text(BOX)
    shape = MeshShape.read(folder / "box.toml")
    for each in part:
        words = ["graph.store=none", "run.dir=none", *SMALL, *each.settings]
        config = load_config(None, words)
        if _passes_messages(config) or config.model.edge_features:
            config = replace(config, graph=replace(config.graph, positions="relative"))
        with ExitStack() as stack:
            alone = stack.enter_context(ProcessGrid.of_this_process())
            whole = MeshGraph(alone, config, shape, stack)
            ranks = Ranks(whole.row_starts(12), config.exchange)
            share = whole.share(config, ranks, whole.surveys(ranks), 5)
            found = rehearse(alone, share, 2)
        assert found.epoch[0], each.words


def test_some_of_what_is_planned_from_a_mesh(tmp_path: Path) -> None:
    _from_mesh(tmp_path, fixed(working_with("plan --shape, mesh"))[::7])


@pytest.mark.slow
def test_what_is_planned_from_a_mesh(tmp_path: Path) -> None:
    _from_mesh(tmp_path, fixed(working_with("plan --shape, mesh")))
