import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcgnn import gallery
from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.gallery import shapes
from hpcgnn.inspect import inspect_path
from hpcgnn.inspect.show import show
from hpcgnn.storage import GraphStore
from tests.support.run_here import run_here


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["generate", *map(str, arguments), "-o", str(out)])
    find_command("generate").call()


@pytest.mark.parametrize("undirected", [False, True])
def test_streamed_rmat_is_the_gallery_graph(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    undirected: bool,
) -> None:
    out = tmp_path / "rmat.h5"
    options = ["--scale", 9, "--edge-factor", 6, "--seed", 37, "--memory", "0.001K", "--json"]
    run(monkeypatch, out, "rmat", *options, *["--undirected"] * undirected)
    printed = json.loads(capsys.readouterr().out)
    expected = gallery.rmat(9, 6, 37, undirected=undirected).to_scipy()
    with GraphStore.open(out) as store:
        store.verify()
        rows = store.read_adjacency(0, 512).to_scipy(512)
        nodes = store.read_nodes(0, 512)
        assert store.undirected == undirected
    assert (rows != expected).nnz == 0
    assert nodes.features.shape == (512, 64)
    assert set(np.unique(nodes.split)) == {1, 2, 3}
    assert printed["num_edges"] == expected.nnz
    assert printed["num_classes"] == 16
    assert [path.name for path in tmp_path.iterdir()] == ["rmat.h5"]


def test_streamed_grid_is_the_gallery_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "GRID_CHUNK", 11)
    out = tmp_path / "grid.h5"
    run(monkeypatch, out, "grid3d", "--shape", "3,5,4", "--features", 0, "--classes", 0)
    with GraphStore.open(out) as store:
        rows = store.read_adjacency(0, 60).to_scipy(60)
        assert (store.has_features, store.has_labels, store.has_split) == (False, False, False)
    assert (rows != gallery.grid_graph((3, 5, 4)).to_scipy()).nnz == 0


def test_edges_of_a_moved_grid_have_their_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "grid.h5"
    run(monkeypatch, out, "grid3d", "--shape", "4,4,4", "--edge-features")
    with GraphStore.open(out) as store:
        block, ways = store.read_adjacency(0, 64), store.read_edge_data(0, 64).features
        assert store.edge_feature_names == ("x", "y", "z")
    assert ways is not None
    assert ways.dtype == np.float16
    ends = np.repeat(np.arange(64), np.diff(block.indptr)), block.indices
    places = np.stack(np.unravel_index(ends, (4, 4, 4)), axis=-1)
    moved = ways - (places[1] - places[0])
    assert 0.01 < np.abs(moved).max() < 0.31
    back = np.lexsort(ends)
    np.testing.assert_array_equal(ways[back], -ways)


def test_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "planted.h5"
    run(monkeypatch, out, "planted", "--nodes", 101, "--classes", 3, "--features", 4, "--seed", 9)
    expected = gallery.planted(101, 3, 4, 9)
    with GraphStore.open(out) as store:
        nodes = store.read_nodes(0, 101)
        assert store.class_names == ("block0", "block1", "block2")
    assert np.array_equal(nodes.features, expected.features)
    assert np.array_equal(nodes.labels, expected.labels)
    assert np.array_equal(nodes.split, expected.split)


def test_planted_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "types.h5"
    chosen = ["--nodes", 101, "--classes", 3, "--features", 4, "--seed", 9]
    run(monkeypatch, out, "planted-types", *chosen, "--json")
    assert json.loads(capsys.readouterr().out)["node_types"] == {"item": 51, "user": 35, "tag": 15}
    expected = gallery.planted_types(101, 3, 4, 9)
    with GraphStore.open(out) as store:
        nodes = store.read_nodes(0, 101)
        assert [each.num_features for each in store.node_types] == [4, 3, 0]
    assert np.array_equal(nodes.types, expected.types)
    assert np.array_equal(nodes.type_features[1], expected.type_features["user"])


def test_debian_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, out = tmp_path / "names.txt", tmp_path / "debian.h5"
    chosen = ["--split-seed", 5, "--names", names, "--virtual"]
    run(monkeypatch, out, "debian-packages", *chosen, "--json")
    printed = json.loads(capsys.readouterr().out)
    assert printed["node_types"] == {"package": 63_436, "virtual": 4_823}
    assert len(printed["relations"]) == 12
    packages = names.read_text().splitlines()
    assert packages[:2] == ["0ad", "0ad-data"]
    assert len(packages) == 68_259
    with GraphStore.open(out) as store:
        split = store.read_nodes(0, 63_436).split
    assert np.array_equal(split, gallery.random_split(63_436, 5))


def test_fields_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["heat", "--shape", "3,4,3", "--trajectories", "2", "--steps", "3", "--json"]
    run(monkeypatch, tmp_path / "heat.h5", *words)
    assert json.loads(capsys.readouterr().out)["fields"] == {"T": 1}
    with GraphStore.open(tmp_path / "heat.h5") as store:
        np.testing.assert_allclose(store.times, 2 * [0, 0.05, 0.1])
        assert store.trajectory_starts.tolist() == [0, 3, 6]
    report = show_of(tmp_path / "heat.h5", capsys)
    assert ": inside, wall" in report
    assert ", 4 features: x, y, z, length" in report


def show_of(store: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what ``hpcgnn inspect`` prints, as one line."""
    show(inspect_path(store))
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rmat", "--scale", "50"], "a scale of 50"),
        (["rmat", "--scale", "4", "--a", "0.9"], "no probabilities"),
        (["rmat", "--scale", "4", "--a", "nan"], "no probabilities"),
        (["communities", "--nodes", "9", "--mean-degree", "nan"], "mean degree nan must be"),
        (["communities", "--nodes", "9", "--exponent", "inf"], "exponent inf above 2; all finite"),
        (["planted", "--nodes", "0"], "--nodes 0"),
        (["flow", "--reynolds", "10,20,30"], "--reynolds 10,20,30: give the least and"),
        (["flow", "--reynolds", "201"], "--reynolds 201: .* at most 10 for each of 20 cells"),
        (["flow", "--nodes", "9"], "--nodes 9: the channel needs at least 100"),
        (["heat", "--shape", "3,3"], "--shape 3,3: is not three lengths"),
        (["heat", "--shape", "3,2,3"], "--shape 3,2,3: is not three lengths"),
    ],
)
def test_wrong_options_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(monkeypatch, tmp_path / "out.h5", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["rmat", "--scale", "4", "-o", "missing/out.h5"],
        ["rmat", "--scale", "-4", "-o", "out.h5"],
        ["grid3d", "--shape", "3,x,5", "-o", "out.h5"],
        [],
    ],
)
def test_the_command_exits_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_here("generate", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_no_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, tmp_path / "out.h5", "rmat", "--scale", 4, "--memory", 0)
    assert ended.value.code == 2
    assert "--memory: '0': write a size such as 4GiB" in capsys.readouterr().err


def test_tables_are_written_into_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, tmp_path / "a" / "b", "tables", "--seed", 3, "--json")
    written = json.loads(capsys.readouterr().out)["files"]
    expected = gallery.tables(3)
    assert written == [str(tmp_path / "a" / "b" / name) for name in sorted(expected)]
    for name, content in expected.items():
        assert (tmp_path / "a" / "b" / name).read_bytes() == content
    with pytest.raises(InputError, match=r"people\.csv: File exists; name a folder"):
        run(monkeypatch, tmp_path / "a" / "b" / "people.csv", "tables")
