"""Plans from degrees alone: expected rows are those of random parts; drawn ranks rehearse."""

import json
import sys
from itertools import product
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn import gallery
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.commands.command import find_command
from hpcgnn.config.config import Config
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.plan.degree_graph import DegreeGraph, outside_of
from hpcgnn.plan.ghost_rows import StoredSurvey
from hpcgnn.plan.graph_shape import Shape, write_shape
from hpcgnn.plan.rehearsal import rehearse
from hpcgnn.plan.traffic import ALL, Ranks, Traffic, between_hosts
from hpcgnn.sparse import DistCSR
from hpcgnn.storage import GraphStore
from tests.support.training import make_graph, write_store

COMMAND = find_command("plan")

TYPED = """
name = "small"
classes = 3
training = 0.2
[nodes.paper]
count = 400
features = 5
[nodes.author]
count = 300
features = 4
[edges.cites]
from = "paper"
to = "paper"
count = 2000
out_degrees = {exponent = 3.5, min = 0, max = 40}
in_degrees = {exponent = 2.2, min = 0, max = 200}
[edges.writes]
from = "author"
to = "paper"
count = 900
outside = 0.5
out_degrees = {exponent = 2.5, min = 1, max = 100}
in_degrees = {exponent = 3.0, min = 0, max = 30}
"""


def config(*words: str) -> Config:
    return load_config(None, ["graph.store=none", "run.dir=none", "model.hidden=8", *words])


def written(folder: Path, degrees: np.ndarray, **values: float) -> Shape:
    known = {"classes": 3, "training": 0.3, "features": 4, "outside": 1.0}
    write_shape(folder / "shape.toml", "drawn", known | values, degrees)
    return Shape.read(folder / "shape.toml")


def read(folder: Path, text: str) -> Shape:
    path = folder / "typed.toml"
    path.write_text(text, encoding="utf-8")
    return Shape.read(path)


def figures(traffic: Traffic) -> list[int]:
    """Return the rows of all ranks, of the busiest sender and of the busiest receiver."""
    sides = sum(np.array(rows) for rows, _ in traffic.moved.values())
    sent, received = np.sum(sides, axis=1)
    return [int(sent.sum()), int(sent.max()), int(received.max())]


@pytest.mark.parametrize(
    ("method", "blocks"),
    [*product(("aware", "push", "joint"), (3, 32)), ("joint", 256)],
)
def test_rows_are_those_of_random_parts(tmp_path: Path, method: str, blocks: int) -> None:
    """R-MAT: nodes of degree 1,000 and more, and many of degree zero."""
    matrix = gallery.rmat(12, 8, 3, undirected=True).to_scipy().tocsr()
    count = matrix.shape[0]
    degrees = np.diff(matrix.indptr).astype(np.int64)
    order = np.random.default_rng(5).permutation(count)
    mixed = matrix[order][:, order].tocsr()
    mixed.sort_indices()
    whole = DistCSR.from_rows(
        RowMap(np.array([0, count], np.int64), 0), mixed.indptr.astype(np.int64), mixed.indices
    )
    graph = DegreeGraph(config("exchange.active_sets=false"), written(tmp_path, degrees))
    assert graph.facts.num_edges == matrix.nnz
    ranks = Ranks(graph.row_starts(blocks), ExchangeConfig(method=method))
    found, right = (
        survey.traffic(ranks)
        for survey in (graph.survey(ALL, ranks), StoredSurvey.of(whole, ranks))
    )
    assert (found.num_rows, found.num_columns) == (count, count)
    assert found.entries.sum() == pytest.approx(matrix.nnz, abs=blocks)
    total, sender, receiver = np.array(figures(found)) / figures(right)
    # The savings of covers are those of drawn block rows.
    slack = 0.15 if method == "joint" else 0.01
    assert total == pytest.approx(1, abs=slack)
    assert sender == pytest.approx(1, abs=slack + 0.12)
    assert receiver == pytest.approx(1, abs=slack + 0.12)


@pytest.mark.parametrize("method", ["oblivious", "aware", "push", "joint"])
def test_pieces_are_of_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    degrees = np.random.default_rng(2).integers(0, 40, 2000)
    shape, blocks = written(tmp_path, degrees), 7
    found = []
    for pairs in (1 << 20, 2 * blocks, 1):
        monkeypatch.setattr("hpcgnn.plan.degree_graph._PAIRS", pairs)
        graph = DegreeGraph(config("exchange.active_sets=false"), shape)
        ranks = Ranks(graph.row_starts(blocks), ExchangeConfig(method=method), per_host=3)
        whole = graph.survey(ALL, ranks).traffic(ranks)
        away = between_hosts({ALL: whole}, ranks)[ALL]
        sums = [side for each in (whole, away) for kind in each.moved.values() for side in kind]
        found.append(np.array(sums))
        assert 0 < away.num_moved < whole.num_moved
    assert len(list(whole.pieces())) == blocks
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert found[0].max() > np.iinfo(np.uint8).max


def test_outside_is_what_gives_the_rows_of_parts(tmp_path: Path) -> None:
    degrees = np.random.default_rng(1).integers(0, 30, 3000)
    rows = 0.4 * outside_of(degrees, 16, 0)[1]
    outside, _ = outside_of(degrees, 16, rows)
    assert 0 < outside < 0.4
    shape = written(tmp_path, degrees, outside=outside)
    graph = DegreeGraph(config("exchange.active_sets=false"), shape)
    ranks = Ranks(graph.row_starts(16), ExchangeConfig(method="aware"))
    found = graph.surveys(ranks)[ALL].traffic(ranks)
    assert found.num_moved == pytest.approx(rows, rel=0.01)
    # The drawn rank reads as much, and has as many neighbours, as before.
    row = graph.block_row(16, 3).pattern(ALL)
    assert len(row.ghosts) == pytest.approx(rows / 16, rel=0.1)
    assert row.nnz == pytest.approx(degrees.sum() / 16, rel=0.1)


def test_active_sets_are_those_of_random_training_nodes(tmp_path: Path) -> None:
    matrix = gallery.rmat(12, 8, 3, undirected=True).to_scipy().tocsr()
    degrees = np.diff(matrix.indptr).astype(np.int64)
    shape = written(tmp_path, degrees, training=0.01)
    graph = DegreeGraph(config("model.name=sage", "exchange.active_sets=true"), shape)
    trained = np.random.default_rng(2).random((20, len(degrees))) < 0.01
    reached = [trained, (trained @ matrix > 0) | trained]
    ranks = Ranks(graph.row_starts(4), ExchangeConfig(method="aware"))
    found = graph.surveys(ranks)
    assert list(found) == [ALL, (0, "in"), (1, "in")]
    traffic = found[1, "in"].traffic(ranks)
    assert traffic.num_rows == pytest.approx(reached[0].sum() / 20, rel=0.1)
    assert traffic.num_columns == pytest.approx(reached[1].sum() / 20, rel=0.15)
    assert traffic.entries.sum() == pytest.approx((trained @ degrees).mean(), rel=0.25)


@pytest.mark.parametrize("method", ["oblivious", "aware", "push", "joint"])
@pytest.mark.parametrize(
    "words",
    [
        ("model.name=sage", "graph.undirected=true", "exchange.active_sets=true"),
        ("model.name=gcn", "graph.undirected=true", "exchange.schedule=sequential"),
        ("model.name=gat", "model.heads=2", "graph.undirected=true"),
        ("model.name=rgcn", "exchange.active_sets=true", "model.num_bases=2"),
        ("model.name=rgcn", "graph.undirected=true", "exchange.schedule=sequential"),
    ],
)
def test_drawn_ranks_rehearse(tmp_path: Path, words: tuple[str, ...], method: str) -> None:
    run = config(*words, f"exchange.method={method}", "run.threads=1")
    graph = DegreeGraph(run, read(tmp_path, TYPED))
    ranks = Ranks(graph.row_starts(5), run.exchange)
    surveys = graph.surveys(ranks)
    share = graph.share(run, ranks, surveys, 2)
    with ProcessGrid.of_this_process() as alone:
        found = rehearse(alone, share, 2)
    assert found.epoch[0]
    assert found.ghost_bytes > 0
    for key, survey in surveys.items():
        traffic = survey.traffic(ranks)
        assert share.patterns[key].block.nnz == pytest.approx(traffic.entries[2], rel=0.2, abs=20)
        if method == "push":
            left = share.patterns[key].pushed
            assert left is not None
            by_owner, _ = traffic.moved["pushed"][0]
            expected = by_owner[0, 2]
            assert len(left.targets) == pytest.approx(expected, rel=0.2, abs=35)


def test_seconds_that_others_had_the_core_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcgnn.plan.rehearsal.waited_for_core", lambda: 1e6)
    run = config("model.name=sage", "graph.undirected=true", "exchange.method=aware")
    graph = DegreeGraph(run, read(tmp_path, TYPED))
    ranks = Ranks(graph.row_starts(5), run.exchange)
    share = graph.share(run, ranks, graph.surveys(ranks), 2)
    with ProcessGrid.of_this_process() as alone:
        found = rehearse(alone, share, 2)
    # It was the same before and after.
    assert 0 < found.epoch_s < 600
    assert 0 < found.evaluate_s < 600


def test_stores_are_as_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rmat.h5"
    words = ("generate", "rmat", "--scale", "12", "--undirected", "--features", "7", "-o", path)
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    find_command("generate").call()
    with GraphStore.open(path) as store:
        degrees = np.diff(store.read_indptr(0, store.num_nodes))
    shape = written(tmp_path, degrees, features=7)
    assert shape.store_bytes == pytest.approx(path.stat().st_size, rel=0.05)


def test_laws_have_the_mean_of_their_counts(tmp_path: Path) -> None:
    cites, writes = read(tmp_path, TYPED).edges
    for ends, count, nodes in (
        (cites.sources, 2000, 400), (cites.targets, 2000, 400), (writes.sources, 900, 300),
    ):  # fmt: skip
        assert ends.counts.sum() == nodes
        assert ends.total == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("count = 400\nfeatures = 5", "count = 0", "count must be from 1"),
        ("training = 0.2", "training = 0.0", "must be above 0"),
        ("training = 0.2", "training = true", "must be a int or float"),
        ("classes = 3", "", "classes must be a int, not None"),
        ('to = "paper"\ncount = 900', 'to = "reader"\ncount = 900', "is no node type"),
        ("outside = 0.5", "outside = 1.5", "must be above 0 and at most 1"),
        ("outside = 0.5", "inside = 0.5", "inside is unknown"),
        ("max = 200", "max = 3", "no law of exponent"),
        ("count = 2000", "", "needs the count of edges"),
        ("out_degrees = {exponent = 3.5, min = 0, max = 40}", 'out_degrees = "no.csv"', "no.csv"),
        ("out_degrees = {exponent = 3.5, min = 0, max = 40}", "degrees = 1", "both ways"),
        ("[nodes.paper]", "[nodes.paper", "not valid TOML"),
        ("training = 0.2", "training = " + "[" * 3000, "not valid TOML"),
        ("features = 5", "features = -1", "features must be from 0"),
        (
            "out_degrees = {exponent = 3.5, min = 0, max = 40}",
            'out_degrees = "/dev/zero"',
            "/dev/zero: is a pipe or a device",
        ),
    ],
)
def test_refuses_faulty_shapes(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in TYPED
    with pytest.raises(InputError, match=fault):
        read(tmp_path, TYPED.replace(old, new))


def test_a_quote_in_a_name_reads_back(tmp_path: Path) -> None:
    path, name = tmp_path / 'a "b".toml', 'c:\\graphs\\"mine"'
    values = {"classes": 2, "training": 0.5, "features": 3, "outside": 1.0}
    write_shape(path, name, values, np.array([1, 1, 2]))
    found = Shape.read(path)
    assert (found.name, found.edges[0].targets.total) == (name, 4)


def test_a_store_has_the_bytes_of_its_arrays(tmp_path: Path) -> None:
    """Offsets, columns, features, labels, splits, ids; of several types, types and their rows."""
    labels, splits, ids, types, rows = "<i4", "u1", "<i8", "u1", "<i8"
    shape = read(tmp_path, TYPED)
    num_edges = round(sum(edges.targets.total for edges in shape.edges))
    arrays = [np.empty((2, 701), "<i8"), np.empty(num_edges, "<i4"), np.empty(3200, "<f4")]
    arrays += [np.empty(700, kind) for kind in (labels, splits, ids, types, rows)]
    assert shape.store_bytes == sum(array.nbytes for array in arrays)
    values = {"classes": 2, "training": 0.5, "features": 6, "outside": 1.0}
    write_shape(tmp_path / "one.toml", "one", values, np.array([1, 1, 2]))
    arrays = [np.empty(4, "<i8"), np.empty(4, "<i4"), np.empty((3, 6), "<f4")]
    arrays += [np.empty(3, kind) for kind in (labels, splits, ids)]
    found = Shape.read(tmp_path / "one.toml").store_bytes
    assert found == sum(array.nbytes for array in arrays)


def test_refuses_what_degrees_do_not_tell(tmp_path: Path) -> None:
    shape = read(tmp_path, TYPED)
    with pytest.raises(InputError, match=r"graph\.undirected=true"):
        DegreeGraph(config("model.name=sage"), shape)


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    common = ("model.hidden=8", "train.epochs=10", "run.threads=1")
    monkeypatch.setattr(sys, "argv", ["hpcgnn plan", *common, *map(str, words)])
    return COMMAND.call()


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_store(MPI.COMM_WORLD, tmp_path, make_graph(), parts=4)
    shape, stored = tmp_path / "shape.toml", (f"graph.store={store}", "graph.undirected=true")
    assert command(monkeypatch, *stored, "--ranks", 4, "--write-shape", shape) == 0
    assert "outside = " in capsys.readouterr().err
    both = make_graph().adjacency != 0
    both = (both + both.T).tolil()
    both.setdiag(False)
    assert [edges.targets.total for edges in Shape.read(shape).edges] == [both.nnz]
    words = ("--shape", shape, "--ranks", "4", "--exchange", "aware", "--schedule", "resident")
    assert command(monkeypatch, *words, "--epochs", "2", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert 0 < found["rows_max_send"] <= found["rows_total"] <= 3 * len(make_graph().split)
    assert 0 < found["idle_bytes"] < found["peak_bytes"]
    assert found["store_bytes"] == Shape.read(shape).store_bytes
    # With several ranks on several hosts, hierarchical exchanges would be candidates.
    words = ("--shape", shape, "--ranks", "4", "--ranks-per-host", 2, "--schedule", "resident")
    words = (*words, "--exchange", "oblivious,aware,push,joint,auto", "--bandwidth", "0.001")
    assert command(monkeypatch, *words, "--epochs", "2", "--json") == 0
    *others, chosen = json.loads(capsys.readouterr().out)
    assert chosen["is_auto"]
    assert chosen["rows_total"] == min(each["rows_total"] for each in others)
    for more, fault in (
        (("--exchange", "hierarchical"), "--shape does not work with exchange.method = 'hier"),
        (("--replication", "2"), "--shape does not work with exchange.replication = 2"),
        (("train.task=links",), "--shape does not work with train.task = 'links'"),
    ):
        with pytest.raises(InputError, match=fault):
            command(monkeypatch, "--shape", shape, "--ranks", 4, *more)
    with pytest.raises(InputError, match="one node type and one relation both ways"):
        command(monkeypatch, stored[0], "--ranks", 4, "--write-shape", shape)
    with pytest.raises(InputError, match="give one number of --ranks"):
        command(monkeypatch, *stored, "--ranks", "2,4", "--write-shape", shape)
    missing = tmp_path / "missing" / "shape.toml"
    with pytest.raises(InputError, match=r"missing/shape\.csv: cannot be written \(No such file"):
        command(monkeypatch, *stored, "--ranks", 4, "--write-shape", missing)
    with pytest.raises(InputError, match=r"\.csv is for the degrees beside it; name it \.toml"):
        command(monkeypatch, *stored, "--ranks", 4, "--write-shape", tmp_path / "shape.csv")
