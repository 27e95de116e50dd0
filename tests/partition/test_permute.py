import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.partition import measure, permute, read_pattern
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from tests.support.run_here import run_here

COMMAND = find_command("partition")

NUM_NODES = 47


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    generator = np.random.default_rng(617)
    draw = lambda: generator.integers(0, NUM_NODES - 3, 150)  # noqa: E731
    weights = generator.random(150, np.float32)
    path = tmp_path / "in.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="small",
            num_nodes=NUM_NODES,
            edges={"cites": (draw(), draw()), "likes": (draw(), draw(), weights)},
            features=generator.standard_normal((NUM_NODES, 5), np.float32),
            labels=generator.integers(-1, 4, NUM_NODES),
            split=generator.integers(0, 4, NUM_NODES),
            original_id=np.arange(NUM_NODES)[::-1] * 3,
            positions=generator.standard_normal((NUM_NODES, 3)),
            class_names=("a", "b", "c", "d"),
        ),
    )
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["partition", *map(str, arguments)])
    COMMAND.call()


def whole(store: GraphStore, relation: str) -> np.ndarray:
    rows = store.read_adjacency(0, store.num_nodes, relation).to_scipy(store.num_nodes)
    return rows.toarray()


def parts_by_id(path: Path) -> dict[int, int]:
    with GraphStore.open(path) as store:
        ids = store.read_original_id(0, store.num_nodes)
        parts = np.repeat(np.arange(store.num_parts), np.diff(store.row_starts))
        return dict(zip(ids.tolist(), parts.tolist(), strict=True))


@pytest.mark.parametrize("name", ["parts.txt", "parts.npy"])
def test_parts_of_a_file_are_by_original_id(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wanted = np.random.default_rng(7).permutation(np.arange(NUM_NODES) % 4)
    file, out, again = tmp_path / name, tmp_path / "out.h5", tmp_path / "again.h5"
    if file.suffix == ".npy":
        np.save(file, wanted)
    else:
        file.write_text("\n".join(map(str, wanted)))
    run(monkeypatch, store_path, "-o", out, "--method", f"file:{file}")
    expected = dict(zip(range(0, 3 * NUM_NODES, 3), wanted.tolist(), strict=True))
    assert parts_by_id(out) == expected
    # The order of the rows has changed; the file still means the same nodes.
    run(monkeypatch, out, "-o", again, "--method", f"file:{file}", "--parts", 6)
    assert parts_by_id(again) == expected
    with GraphStore.open(again) as store:
        assert store.num_parts == 6
        assert store.partition_info["method"] == f"file:{file}"


def test_present_parts_are_refined(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, out = tmp_path / "first.h5", tmp_path / "out.h5"
    run(monkeypatch, store_path, "-o", first, "--method", "random", "--parts", 3)
    volume = ("--method", "volume", "--objective", "total", "--refine", "present")
    run(monkeypatch, first, "-o", out, *volume)
    with GraphStore.open(first) as before, GraphStore.open(out) as after:
        assert after.num_parts == 3
        totals = [each.partition_info["metrics"]["total_rows"] for each in (before, after)]
    assert totals[1] < totals[0]


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("0\n" * 3, (), "has 3 part numbers"),
        ("5\n" * NUM_NODES, ("--parts", 5), "in part 5 of 5; give the number of parts as --parts"),
        ("-1\n" * NUM_NODES, ("--parts", 5), "in part -1 of 5"),
    ],
)
def test_wrong_parts_of_a_file(
    store_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    words: tuple[object, ...],
    message: str,
) -> None:
    file = tmp_path / "parts.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        run(monkeypatch, store_path, "-o", tmp_path / "o.h5", "--method", f"file:{file}", *words)
    assert not (tmp_path / "o.h5").exists()


def test_number_of_parts_is_asked_for(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="--parts K is missing"):
        run(monkeypatch, store_path, "-o", tmp_path / "o.h5")


@pytest.mark.parametrize("method", ["metis", "streaming", "rcb", "random", "block"])
@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_a_partitioned_store_is_the_same_graph(
    store_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    method: str,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(permute, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(permute, "STEP_BYTES", block_bytes)
    out = tmp_path / "out.h5"
    run(monkeypatch, store_path, "--parts", 3, "--method", method, "--json", "-o", out)
    printed = json.loads(capsys.readouterr().out)
    with GraphStore.open(store_path) as old, GraphStore.open(out) as new:
        new.verify()
        before, after = old.read_nodes(0, NUM_NODES), new.read_nodes(0, NUM_NODES)
        order = (NUM_NODES - 1) - after.original_id // 3
        assert sorted(order) == list(range(NUM_NODES))
        assert np.array_equal(after.features, before.features[order])
        assert np.array_equal(after.labels, before.labels[order])
        assert np.array_equal(after.split, before.split[order])
        assert new.relations == old.relations == ("cites", "likes")
        for relation in old.relations:
            expected = whole(old, relation)[np.ix_(order, order)]
            assert np.array_equal(whole(new, relation), expected)
        assert new.num_parts == 3
        assert new.class_names == old.class_names
        assert new.partition_info["metrics"] == printed
        assert printed["method"] == new.partition_info["method"] == method
        part = np.repeat(np.arange(3, dtype=np.int32), np.diff(new.row_starts))
        again = measure(read_pattern(new), part, 3)
    assert {key: printed[key] for key in vars(again)} == vars(again)


@pytest.mark.parametrize("block_bytes", [40, 1 << 20])
def test_node_types_go_with_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(permute, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(permute, "STEP_BYTES", block_bytes)
    generator = np.random.default_rng(71)
    types = generator.integers(0, 3, NUM_NODES) + (generator.random(NUM_NODES) < 0.3)
    types[types == 1] = 4
    widths = {"a": 3, "empty": 2, "bare": None, "c": 1, "d": 4}
    features = {
        name: None if width is None else generator.random((np.count_nonzero(types == t), width))
        for t, (name, width) in enumerate(widths.items())
    }
    features["c"] = features["c"].astype(np.float16)
    path, out = tmp_path / "in.h5", tmp_path / "out.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="typed",
            num_nodes=NUM_NODES,
            edges={"r": tuple(generator.integers(0, NUM_NODES, (2, 90)))},
            types=types,
            type_features=features,
            labels=types - 1,
        ),
    )
    run(monkeypatch, path, "--parts", 4, "--method", "random", "-o", out)
    with GraphStore.open(path) as old, GraphStore.open(out) as new:
        new.verify()
        assert new.node_types == old.node_types
        assert old.node_types[1].num_nodes == 0
        after = new.read_nodes(0, NUM_NODES)
        assert not np.array_equal(after.original_id, np.arange(NUM_NODES))
        assert np.array_equal(after.types, types[after.original_id])
        for t, (name, found) in enumerate(zip(features, after.type_features, strict=True)):
            rows = np.cumsum(types == t)[after.original_id[after.types == t]] - 1
            expected = features[name]
            assert np.array_equal(
                found, np.empty_like(found) if expected is None else expected[rows]
            )


def test_more_parts_than_nodes_are_refused(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=f"--parts 48: .* has {NUM_NODES} nodes"):
        run(monkeypatch, store_path, "--parts", 48, "-o", tmp_path / "out.h5")


def test_partitioning_twice_composes_original_ids(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, twice = tmp_path / "once.h5", tmp_path / "twice.h5"
    run(monkeypatch, store_path, "--parts", 4, "--method", "random", "--seed", 9, "-o", once)
    run(monkeypatch, once, "--parts", 31, "--method", "metis", "-o", twice)
    with GraphStore.open(store_path) as old, GraphStore.open(twice) as new:
        nodes = new.read_nodes(0, NUM_NODES)
        order = (NUM_NODES - 1) - nodes.original_id // 3
        assert np.array_equal(nodes.features, old.read_nodes(0, NUM_NODES).features[order])
        assert new.num_parts == 31


@pytest.mark.parametrize(
    ("relations", "undirected"),
    [((), False), ((), True), (("likes",), False), (("cites",), True), (("likes", "cites"), True)],
)
def test_the_pattern_is_the_union_of_the_chosen_relations(
    store_path: Path, relations: tuple[str, ...], undirected: bool
) -> None:
    with GraphStore.open(store_path) as store:
        expected = sum(whole(store, name) for name in relations or store.relations) != 0
        found = read_pattern(store, relations, undirected).to_scipy().toarray()
    assert np.array_equal(found, expected | expected.T if undirected else expected)


def test_only_the_chosen_relations_are_measured(
    store_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.h5"
    chosen = ("--relations", "likes", "--undirected")
    run(monkeypatch, store_path, "--parts", 4, *chosen, "--json", "-o", out)
    printed = json.loads(capsys.readouterr().out)
    with GraphStore.open(out) as store:
        part = np.repeat(np.arange(4, dtype=np.int32), np.diff(store.row_starts))
        found = measure(read_pattern(store, ("likes",), undirected=True), part, 4)
        assert store.relations == ("cites", "likes")
    assert printed["total_rows"] == found.total_rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "0"], "--parts 0"),
        (["--parts", "2", "--relations", "hates"], "no relation 'hates'; .* cites, likes"),
        (["--parts", "2", "--method", "block", "--imbalance", "0.1"], "--imbalance belongs to"),
        (["--parts", "2", "--seed", "-4"], "--seed -4"),
        (
            ["--parts", "65537", "--method", "volume"],
            "--parts 65537: --method volume makes at most",
        ),
    ],
)
def test_wrong_input_leaves_the_output_alone(
    store_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    out = tmp_path / "out.h5"
    out.write_text("earlier")
    with pytest.raises(InputError, match=message):
        run(monkeypatch, store_path, *arguments, "-o", out)
    assert out.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.h5", "out.h5"]


def test_the_command_ends_with_one_line_and_status_two(tmp_path: Path) -> None:
    words = (tmp_path / "missing.h5", "--parts", "2", "-o", tmp_path / "out.h5")
    done = run_here("partition", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("hpcgnn partition: error: ")
    assert len(done.stderr.splitlines()) == 1
    assert "missing.h5" in done.stderr
    assert done.stdout == ""


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    file = permute.Scratch(tmp_path, np.int64)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(InputError, match="No space left on device"):
        file.scatter(np.arange(4), [(0, 4)])


def test_a_missing_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        permute.Scratch(tmp_path / "nowhere", np.int64)


def test_scratch_returns_items_at_their_places(tmp_path: Path) -> None:
    file = permute.Scratch(tmp_path, (np.float32, (2,)))
    file.scatter(np.arange(8).reshape(4, 2), [(3, 1), (0, 3)])
    assert file.read(0, 4).tolist() == [[2, 3], [4, 5], [6, 7], [0, 1]]
    assert file.read(2, 2).shape == (0, 2)
