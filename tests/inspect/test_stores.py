"""The output of inspect for stores, compared with their contents."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.inspect import exchange_volume, inspect_path
from hpcgnn.inspect.show import show
from hpcgnn.storage import GraphArrays, SortedRows, StoreHeader, StoreWriter, store_from_arrays
from tests.support.run_here import run_here

COMMAND = find_command("inspect")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six nodes, of which 4 has only out-edges and 5 has none."""
    path = tmp_path / "six.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="six",
            num_nodes=6,
            edges={"reads": ([0, 1, 4, 2], [1, 2, 0, 0]), "likes": ([3], [3], [0.5])},
            features=np.ones((6, 2), np.float16),
            labels=[0, 1, 1, -1, 1, 0],
            split=[1, 1, 2, 3, 0, 0],
            class_names=("a", "[b]"),
            provenance={"command": "test"},
        ),
    )
    return path


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """A directed ring of 8 nodes in 4 parts, the second of them empty."""
    path = tmp_path / "ring.h5"
    columns = (np.arange(8) - 1) % 8
    with StoreWriter(path, StoreHeader(name="ring", num_nodes=8)) as writer:
        writer.append_rows(SortedRows(np.arange(9), columns))
        writer.set_partition([0, 2, 2, 4, 8], "block", 5, {"total_rows": 3})
    return path


def test_many_graphs(tmp_path: Path) -> None:
    path = tmp_path / "many.h5"
    # The largest is first and the smallest last: neither may be left out.
    graph = [0, 0, 0, 1, 1, 2]
    edges = {"": ([0, 1, 3], [1, 2, 4])}
    store_from_arrays(path, GraphArrays(name="many", num_nodes=6, edges=edges, graph=graph))
    assert inspect_path(path)["graphs"] == {"count": 3, "nodes": {"min": 1, "max": 3}}


def test_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect_path(store, verify=True, quiet=True)
    json.dumps(found)
    show(found)
    assert re.search(r"made by\W+test\b", capsys.readouterr().out)
    assert (found["kind"], found["name"], found["verified"]) == ("store", "six", True)
    assert (found["num_nodes"], found["num_edges"], found["isolated_nodes"]) == (6, 5, 1)
    assert found["bytes_on_disk"] == store.stat().st_size
    assert found["features"] == {
        "columns": 2,
        "names": [],
        "dtype": "float16",
        "sparse": False,
        "density": 1.0,
        "density_of_rows": 6,
    }
    assert found["classes"] == [{"name": "a", "nodes": 2}, {"name": "[b]", "nodes": 3}]
    assert found["unlabelled_nodes"] == 1
    assert found["split"] == {"none": 2, "train": 2, "valid": 1, "test": 1}
    assert found["provenance"] == {"command": "test"}
    reads, likes = found["relations"]
    assert (reads["name"], reads["weighted"], likes["weighted"]) == ("reads", False, True)
    assert reads["row_degree"] == {"min": 0, "median": 0.5, "mean": 4 / 6, "max": 2, "empty": 3}


def test_isolated_nodes_of_an_undirected_graph(tmp_path: Path) -> None:
    path = tmp_path / "u.h5"
    edges = {"": ([0, 1], [2, 2])}
    store_from_arrays(path, GraphArrays(name="u", num_nodes=5, edges=edges, undirected=True))
    found = inspect_path(path)
    assert (found["undirected"], found["isolated_nodes"]) == (True, 2)
    assert (found["features"], found["classes"], found["split"]) == (None, [], None)
    assert found["unlabelled_nodes"] is None
    assert (found["parts"]["count"], found["partition"]) == (1, {})


def test_node_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="t",
            num_nodes=3,
            edges={"r": ([0], [1])},
            types=[1, 0, 1],
            type_features={"a": None, "bb": np.ones((2, 7), np.float16)},
        ),
    )
    found = inspect_path(path)
    assert found["features"] is None
    assert found["node_types"] == [
        {"name": "a", "nodes": 1, "columns": 0, "dtype": None, "names": []},
        {"name": "bb", "nodes": 2, "columns": 7, "dtype": "float16", "names": []},
    ]
    show(found)
    shown = capsys.readouterr().out
    assert "by node type" in shown
    assert "7 x float16" in shown


def test_multi_label(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    labels = np.array([[1, 1], [0, 0], [0, 1]])
    store_from_arrays(path, GraphArrays(name="m", num_nodes=3, edges={"": ([], [])}, labels=labels))
    found = inspect_path(path)
    assert found["classes"] == [{"name": "0", "nodes": 1}, {"name": "1", "nodes": 2}]
    assert found["unlabelled_nodes"] == 1
    assert found["parts"]["edges"] == {"min": 0, "mean": 0.0, "max": 0, "imbalance": 0.0}


def test_parts(ring: Path) -> None:
    found = inspect_path(ring)
    assert found["parts"]["count"] == 4
    assert found["parts"]["rows"] == {"min": 0, "max": 4}
    assert found["parts"]["edges"] == {"min": 0, "mean": 2.0, "max": 4, "imbalance": 1.0}
    assert found["partition"] == {"method": "block", "seed": 5, "metrics": {"total_rows": 3}}


def test_imbalance_forgives_a_heavy_row(tmp_path: Path) -> None:
    path = tmp_path / "star.h5"
    with StoreWriter(path, StoreHeader(name="star", num_nodes=5)) as writer:
        writer.append_rows(SortedRows(np.array([0, 4, 5, 5, 5, 5]), np.array([1, 2, 3, 4, 0])))
        writer.set_partition([0, 1, 5], "block", 0, {})
    assert inspect_path(path)["parts"]["edges"]["imbalance"] == 0.0


def test_exchange_volume(ring: Path) -> None:
    one_each = exchange_volume(ring)
    assert (one_each["ranks"], one_each["rows_total"]) == (4, 3)
    two = exchange_volume(ring, 2)
    assert {key: two[key] for key in ("rows_total", "rows_max_send", "rows_max_recv")} == {
        "rows_total": 2,
        "rows_max_send": 1,
        "rows_max_recv": 1,
    }
    assert exchange_volume(ring, 1)["rows_total"] == 0
    assert exchange_volume(ring, 2, undirected=True)["rows_total"] == 4


def test_exchange_volume_of_chosen_relations(store: Path) -> None:
    assert exchange_volume(store, None, ("likes",))["edge_cut"] == 0
    with pytest.raises(InputError, match="no relation 'x'"):
        exchange_volume(store, None, ("x",))


@pytest.mark.parametrize(("ranks", "message"), [(5, "4 part.* 5 ranks"), (0, "--ranks 0")])
def test_ranks_that_do_not_fit(ring: Path, ranks: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        exchange_volume(ring, ranks)


def test_damage_is_reported(store: Path) -> None:
    data = bytearray(store.read_bytes())
    # Inside the features: two bytes of every four-byte number are 0x3c00.
    position = data.find(np.ones(12, np.float16).tobytes())
    data[position] ^= 4
    store.write_bytes(data)
    with pytest.raises(StorageFormatError, match="/nodes/features: cannot be read"):
        inspect_path(store, verify=True, quiet=True)


def test_command(store: Path, ring: Path) -> None:
    done = run_here("inspect", store, "--json", "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == inspect_path(store, verify=True, quiet=True)
    for exchange in ("aware", "push", "joint"):
        done = run_here("inspect", ring, "--exchange", exchange, "--ranks", 2, "--json")
        found = json.loads(done.stdout)
        assert (found["exchange"], found["rows_total"], found["lower_bound"]) == (exchange, 2, 2)
    done = run_here("inspect", store.with_name("missing.h5"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("hpcgnn inspect: error: ")
    assert "missing.h5" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tables(
    store: Path, ring: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        ([store], ["six", "float16", "(--verify)", "reads", "likes", "test"]),
        ([ring], ["(untyped)", "block", "0 to 4"]),
        ([ring, "--exchange", "aware"], ["rows max send"]),
    ):
        monkeypatch.setattr(sys, "argv", ["inspect", *map(str, arguments)])
        COMMAND.call()
        output = capsys.readouterr().out
        for word in words:
            assert word in output


@pytest.mark.parametrize(
    "arguments", [["--ranks", "2"], ["--undirected"], ["--exchange", "aware", "--verify"]]
)
def test_options_that_do_not_go_together(
    arguments: list[str], ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["inspect", str(ring), *arguments])
    with pytest.raises(InputError, match="--exchange"):
        COMMAND.call()
