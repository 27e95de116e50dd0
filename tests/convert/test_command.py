"""The command as users see it: detection, output, exit status, and earlier stores kept whole."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert import detect
from hpcgnn.convert.send_edges import SymmetryCheck
from hpcgnn.errors import InputError
from tests.support.graph_files import Little, contents, write_gz
from tests.support.run_here import run_here

CONVERT = find_command("convert")


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    path = tmp_path / "ring.txt"
    path.write_text("0 1\n1 2\n2 0\n")
    return path


def test_json_is_one_object_and_all_of_the_output(edges: Path, tmp_path: Path) -> None:
    result = run_here(
        "convert", edges, "-o", tmp_path / "out.h5", "--json", "--undirected", "--self-loops", "add"
    )
    assert result.returncode == 0
    assert result.stderr == "format: edge-list (line 1 has 2 fields)\n"
    summary = json.loads(result.stdout)
    assert summary["num_edges"] == 9
    assert (summary["num_nodes"], summary["undirected"], summary["name"]) == (3, True, "ring")


def test_an_error_is_one_line_and_an_earlier_store_stays(edges: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    assert run_here("convert", edges, "-o", out).returncode == 0
    before = out.read_bytes()
    edges.write_text("0 1\n1 -2\n")
    result = run_here("convert", edges, "-o", out)
    assert (result.returncode, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[0].startswith("format: ")
    assert lines[1].startswith(f"hpcgnn convert: error: {edges}: line 2: target id -2 is outside")
    assert len(lines) == 2
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.h5", "ring.txt"]


def test_an_unreadable_file_is_named(edges: Path, tmp_path: Path) -> None:
    edges.unlink()
    # Root may read every file, but no process the memory at address 0.
    edges.symlink_to("/proc/self/mem")
    with pytest.raises(InputError, match=r"ring\.txt: cannot be read"):
        CONVERT.call([str(edges), "-o", str(tmp_path / "out.h5")])


@pytest.mark.parametrize("where", ["missing/out.h5", ""])
def test_an_impossible_output_is_named_first(tmp_path: Path, where: str) -> None:
    with pytest.raises(InputError, match=r"cannot be written|is a directory"):
        CONVERT.call([str(tmp_path / "none"), "--format", "npz", "-o", str(tmp_path / where)])


def test_the_input_is_not_overwritten(edges: Path) -> None:
    with pytest.raises(InputError, match=r"ring\.txt: is the input itself"):
        CONVERT.call([str(edges), "-o", str(edges)])
    assert edges.read_text() == "0 1\n1 2\n2 0\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-nodes", "0"], "--num-nodes 0: give at least 1"),
        (["--split", "x"], r"--split: has no effect on .*ring\.txt; leave it out"),
        (
            ["--graphs", "g.csv"],
            "--graphs: has no effect on .*; give --nodes with a column graph, or",
        ),
        (["--dtype", "float16"], "--dtype: has no effect on"),
        (["--split-seed", "3"], "--split-seed: has no effect on"),
        (["--per-class", "3"], "--per-class: has no effect on"),
        (["--random-split", "a,b"], "--random-split a,b: give three percentages such as"),
        (["--random-split", "60,20"], "--random-split 60,20: give three percentages such as"),
        (["--random-split", "60,30,20"], "sum to 110; give at most 100"),
        (["--random-split", "0,0,0"], "sum to 0; give at most 100"),
        (["--random-split=-5,50,50"], "give three percentages"),
        (["--random-split=1,50,49"], "3 nodes with labels leave none for training"),
        (["--format", "npz"], r"ring\.txt: the compressed file is truncated or damaged"),
        (["--format", "ogb"], r"edge\.csv\.gz: no such file"),
        (["--format", "graphsaint"], r"adj_full\.npz: no such file"),
        (["--format", "planetoid"], r"test\.index: no such file"),
        (["--random-split", "60,20,20", "--split-seed=-1"], "--split-seed -1: give at least 0"),
        (["--num-nodes", "2"], r"line 2: target id 2 is outside 0\.\.1"),
        (["--name", "a\nb"], "graph name .* has unprintable characters"),
    ],
)
def test_faulty_arguments_are_named(
    edges: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        CONVERT.call([str(edges), "-o", str(tmp_path / "out.h5"), *arguments])
    assert not (tmp_path / "out.h5").exists()


def test_ids_far_above_their_number_ask_for_a_choice(tmp_path: Path) -> None:
    path, out = tmp_path / "triples.txt", tmp_path / "out.h5"
    path.write_text("0 3122748\n7 5\n")
    with pytest.raises(InputError, match=r"largest id is 3122748 in 2 edges.* give --relabel"):
        CONVERT.call([str(path), "-o", str(out)])
    CONVERT.call([str(path), "-o", str(out), "--relabel"])
    assert contents(out).nodes.original_id.tolist() == [0, 5, 7, 3122748]
    # 13 bytes that would need a store of 69 GB.
    path.write_text("0 4294967295\n")
    with pytest.raises(InputError, match=r"largest id is 4294967295 in 1 edges.* give --relabel"):
        CONVERT.call([str(path), "-o", str(out)])


def test_the_summary_ends_with_what_is_missing(edges: Path, tmp_path: Path, capsys: Any) -> None:
    edges.write_text("0 1\n1 1\n2 2\n")
    CONVERT.call([str(edges), "-o", str(tmp_path / "out.h5")])
    text = capsys.readouterr().out
    assert "for predicting classes the store lacks features, labels, split; supply" in text
    assert "--random-split 60,20,20" in text.splitlines()[-1]
    assert "graph.targets=FILE" in text
    assert re.search(r"self loops +│ +2 ", text)
    CONVERT.call([str(edges), "-o", str(tmp_path / "out.h5"), "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["self_loops"] == 2
    assert sorted(summary["missing"]) == ["features", "labels", "split"]
    path = Little().write_npz(tmp_path / "g.npz")
    CONVERT.call([str(path), "-o", str(tmp_path / "out.h5")])
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == f"ready for training: graph.store={tmp_path / 'out.h5'}"
    )


def test_a_random_split_replaces_that_of_the_input(tmp_path: Path, capsys: Any) -> None:
    path, out = Little().write_npz(tmp_path / "g.npz"), tmp_path / "out.h5"
    splits = []
    for seed in ("3", "3", "4"):
        CONVERT.call(
            [str(path), "-o", str(out), "--random-split", "50,25,25", "--split-seed", seed]
        )
        splits.append(contents(out).nodes.split.tolist())
    assert splits[0] == splits[1] != splits[2]
    assert "the split of the input, replaced" in capsys.readouterr().out


def test_a_small_memory_gives_the_same_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(37)
    pairs = rng.integers(0, 300, (90_000, 2)).tolist()
    path = write_gz(tmp_path / "e.tsv.gz", "".join(f"{i}\t{j}\n" for i, j in pairs))
    prints = set()
    for memory in ("1", "512"):
        CONVERT.call([str(path), "-o", str(tmp_path / "out.h5"), "--memory", memory, "--json"])
        prints.add(contents(tmp_path / "out.h5").store.fingerprint)
    assert len(prints) == 1


def test_formats_are_told_from_the_input(tmp_path: Path) -> None:
    little = Little()
    samples = {
        "planetoid": little.write_planetoid(tmp_path / "planetoid"),
        "graphsaint": little.write_graphsaint(tmp_path / "saint"),
        "ogb": little.write_ogb(tmp_path / "ogb"),
        "npz": little.write_npz(tmp_path / "g.npz"),
        "metis": little.write_metis(tmp_path / "g.graph"),
        "matrix-market": little.write_matrix_market(tmp_path / "matrix.txt"),
    }
    for name, path in samples.items():
        assert detect(path)[0] == name
    for text, name in (
        ("0 1\n", "edge-list"),
        ("0 1 2.5\n", "edge-list"),
        ("src,dst\n0,1\n", "edge-list"),
        ("a 1 b\n", "edge-list"),
        ("0 1 cites\n", "typed-edge-list"),
    ):
        (tmp_path / "g.csv").write_text(text)
        assert detect(tmp_path / "g.csv")[0] == name
    assert detect(tmp_path / "g.csv")[1] == "line 1 has a word in it"
    (tmp_path / "g.csv").write_text("# SNAP\n\n0 1 cites\n")
    assert detect(tmp_path / "g.csv")[1] == "line 3 has a word in it"
    with pytest.raises(
        InputError, match="--label-separator: is empty; give the text that separates"
    ):
        CONVERT.call(
            [str(tmp_path / "g.csv"), "--label-separator", "", "-o", str(tmp_path / "o.h5")]
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.txt", "no such file or folder"),
        ("folder", r"holds none of graph\.toml, meta\.yaml, .*, ind\.NAME\.graph and train"),
        ("g.pkl", "could execute code: save the arrays as .npz"),
        ("g.h5", "a store needs no conversion"),
        ("g.pvtu", "parts of a mesh are not read: merge them"),
        ("g.xyz", "its name tells no format; choose one with --format: npz, ogb"),
    ],
)
def test_what_is_no_known_input_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    for each in ("g.pkl", "g.h5", "g.pvtu", "g.xyz"):
        (tmp_path / each).write_text("")
    with pytest.raises(InputError, match=message):
        detect(tmp_path / name)


def test_symmetry_is_that_of_the_multiset() -> None:
    rng = np.random.default_rng(43)
    src, dst = rng.integers(0, 9, (2, 60))
    weights = rng.integers(1, 4, 60).astype(np.float32)
    check = SymmetryCheck()
    check.update(src, dst, weights)
    assert not check.symmetric
    check.update(dst[::-1], src[::-1], weights[::-1])
    assert check.symmetric
    check.update(src[:1], src[:1], None, "loops")
    assert check.symmetric
    check.update(np.array([1, 2]), np.array([2, 1]), np.array([1.0, 2.0]), "weights")
    assert not check.symmetric
