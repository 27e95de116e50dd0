"""``hpcgnn.split``: the same nodes in a store and in its partition, everything else unchanged."""

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert.splits import random_split
from hpcgnn.errors import InputError
from hpcgnn.partition.parts import random
from hpcgnn.partition.pattern import read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays

N = 40
LABELS = np.arange(N) % 4
NAMES = tuple(sorted(f"node {number}" for number in range(N)))


def write(path: Path, **more: object) -> Path:
    rng = np.random.default_rng(1)
    edges = {"": tuple(rng.integers(0, N, (2, 90)))}
    features = rng.random((N, 3), dtype=np.float32)
    store_from_arrays(
        path,
        GraphArrays(name="g", num_nodes=N, edges=edges, labels=LABELS, features=features, **more),
    )
    return path


def partitioned(path: Path) -> Path:
    out = path.with_name(f"parts-{path.name}")
    with GraphStore.open(path) as store:
        partition = random(5)(read_pattern(store), 3)
        write_partitioned(store, out, partition, method="random", seed=5)
    return out


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["hpcgnn split", *map(str, words)])
    find_command("split").call()


def by_id(path: Path, name: str) -> list[int]:
    with GraphStore.open(path) as store:
        store.verify()
        split = store.read_split(0, N, name)
        assert split is not None
        found = np.empty_like(split)
        found[store.read_original_id(0, N)] = split
        return found.tolist()


def test_a_partition_gets_the_same_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write(tmp_path / "g.h5")
    parts = partitioned(plain)
    for path in (plain, parts):
        words = ("--random-split", "50,25,25", "--split-seed", 3)
        run(monkeypatch, path, *words)
        run(monkeypatch, path, *words, "--count", 1, "--name", "one")
    expected = random_split(LABELS, N, (50, 25, 25), seed=3).tolist()
    assert by_id(plain, "random") == by_id(parts, "random") == by_id(plain, "one-3") == expected


def test_ten_splits_are_those_of_a_store_written_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, first = write(tmp_path / "g.h5", split=LABELS), tmp_path / "out.h5"
    words = ("--random-split", "40,30,30", "--count", 10, "--name", "s", "--json")
    run(monkeypatch, path, *words, "-o", first)
    names = ["default", *(f"s-{number}" for number in range(10))]
    assert json.loads(capsys.readouterr().out)["splits"] == names
    splits = {f"s-{seed}": random_split(LABELS, N, (40, 30, 30), seed=seed) for seed in range(10)}
    whole = write(tmp_path / "whole.h5", splits={"default": LABELS, **splits})
    with GraphStore.open(first) as found, GraphStore.open(whole) as expected:
        assert found.fingerprint == expected.fingerprint
        assert found.splits == tuple(names)
    with GraphStore.open(path) as store:
        assert store.splits == ("default",)


@pytest.mark.parametrize("named", [False, True])
def test_files_of_nodes(named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = partitioned(write(tmp_path / "g.h5", names=NAMES if named else ()))
    with h5py.File(path, "r") as file:
        before = file.attrs["fingerprint"]
    sets = {"train": range(20), "valid": range(20, 30), "test": [39, 31]}
    for name, nodes in sets.items():
        lines = [NAMES[each] if named else str(each) for each in nodes]
        (tmp_path / name).write_text("# nodes\n" + "\n".join(lines) + "\n\n")
    text = "mine=" + ",".join(str(tmp_path / name) for name in sets)
    run(monkeypatch, path, "--split-file", text)
    expected = np.zeros(N, int)
    for value, nodes in enumerate(sets.values(), start=1):
        expected[list(nodes)] = value
    assert by_id(path, "mine") == expected.tolist()
    with GraphStore.open(path) as store:
        assert store.fingerprint != before
        assert store.num_parts == 3
        assert store.has_names == named


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to add"),
        (("--name", "x", "--split-file", "a=b,c,d"), "--name belongs to --random-split"),
        (("--random-split", "60,20"), "give three percentages"),
        (("--random-split", "a,b,c"), "give three percentages"),
        (("--random-split", "60,20,20", "--count", "0"), "--count at least 1"),
        (("--random-split", "60,20,20", "--split-seed", "-1"), "--split-seed is at least 0"),
        (("--random-split", "60,20,20", "--name", "default"), "has a split 'default' already"),
        (("--random-split", "60,20,20", "--name", "a/b"), "cannot be stored"),
        (("--random-split", "60,20,20", "--per-class", "11"), "--per-class 11"),
        (("--split-file", "a=b,c"), "give NAME=TRAIN.txt,VALID.txt,TEST.txt"),
        (("--split-file", "a=b,c,d"), "b: cannot be read"),
        (("--split-file", "a={bad},{two},{two}"), "bad, line 2: 'x' is not a node id"),
        (("--split-file", "a={far},{two},{two}"), "far, line 1: no such node"),
        (("--split-file", "a={two},{two},{bad}"), "two, line 1: the node is in another set too"),
    ],
)
def test_faults(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "g.h5", split=LABELS)
    before = path.read_bytes()
    files = {"bad": "1\nx\n", "far": "40\n", "two": "2\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    places = {name: tmp_path / name for name in files}
    filled = [word.format(**places) for word in words]
    with pytest.raises(InputError, match=message):
        run(monkeypatch, path, *filled)
    assert path.read_bytes() == before


def test_many_graphs_are_split_as_wholes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = np.arange(N) // 4 * 3
    path = tmp_path / "g.h5"
    ring = (np.arange(N), graph // 3 * 4 + (np.arange(N) + 1) % 4)
    store_from_arrays(
        path, GraphArrays(name="g", num_nodes=N, edges={"": ring}, labels=graph % 2, graph=graph)
    )
    parts = partitioned(path)
    lists = [tmp_path / name for name in ("train", "valid", "test")]
    for file, text in zip(lists, ("0\n3 # the second\n", "6\n", "27\n"), strict=True):
        file.write_text(text)
    for each in (path, parts):
        run(monkeypatch, each, "--random-split", "50,30,20")
        run(monkeypatch, each, "--split-file", f"mine={','.join(map(str, lists))}")
    drawn = np.array(by_id(path, "random"))
    assert drawn.tolist() == by_id(parts, "random")
    assert np.bincount(drawn[::4]).tolist() == [0, 5, 3, 2]
    np.testing.assert_array_equal(drawn, np.repeat(drawn[::4], 4))
    assert by_id(parts, "mine") == [1] * 8 + [2] * 4 + [0] * 24 + [3] * 4


def test_an_edge_between_graphs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="joins nodes of two graphs"):
        write(tmp_path / "g.h5", graph=np.arange(N))


def test_a_store_that_was_edited_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write(tmp_path / "g.h5")
    with h5py.File(store, "r+") as file:
        file["nodes/features"][3, 1] += 1
    out = tmp_path / "out.h5"
    with pytest.raises(InputError, match="nodes/features: does not match its checksum"):
        run(monkeypatch, store, "--random-split", "50,25,25", "-o", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("files", "more", "called"),
    [
        ("1,2,7", {}, "node 7"),
        ("7,2,1", {}, "node 7"),
        ("1,2,7", {"names": [f"{i:02}" for i in range(N)]}, "node '07'"),
        ("1,2,7", {"graph": np.minimum(np.arange(N), np.arange(N)[::-1])}, "graph 7"),
    ],
)
def test_nodes_without_labels_are_in_no_set(
    files: str, more: dict[str, Any], called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.where(np.isin(np.arange(N), (7, N - 8)), -1, LABELS)
    path = tmp_path / "g.h5"
    edges = {"": (np.arange(N), np.arange(N)[::-1])}
    graph = GraphArrays(name="g", num_nodes=N, edges=edges, labels=labels, **more)
    store_from_arrays(path, graph)
    for node in (1, 2, 7):
        (tmp_path / str(node)).write_text(f"0{node}\n" if "names" in more else f"{node}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"split 'a': {called} has no label; take it out"):
        run(monkeypatch, path, "--split-file", f"a={files}")
    with GraphStore.open(path) as store:
        assert "a" not in store.splits
