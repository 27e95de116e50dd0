"""OGB folders: directions, missing parts, and refused folders."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.convert import convert
from hpcgnn.errors import InputError
from tests.support.graph_files import Little, convert_to, write_gz


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Little().write_ogb(tmp_path / "in")


def test_an_edge_goes_to_the_row_of_its_target(folder: Path, tmp_path: Path) -> None:
    write_gz(folder / "raw" / "edge.csv.gz", "0,5\n5,11\n")
    found = convert_to(tmp_path / "out.h5", folder, "ogb")
    assert np.argwhere(found.matrix).tolist() == [[5, 0], [11, 5]]
    both = convert_to(tmp_path / "out.h5", folder, "ogb", undirected=True)
    assert np.argwhere(both.matrix).tolist() == [[0, 5], [5, 0], [5, 11], [11, 5]]


def test_edges_alone_are_a_graph(folder: Path, tmp_path: Path) -> None:
    for name in ("node-feat.csv.gz", "node-label.csv.gz"):
        (folder / "raw" / name).unlink()
    for file in (folder / "split" / "time").iterdir():
        file.unlink()
    (folder / "split" / "time").rmdir()
    (folder / "split").rmdir()
    found = convert_to(tmp_path / "out.h5", folder, "ogb")
    assert (found.nodes.features, found.nodes.labels, found.nodes.split) == (None, None, None)


def test_what_is_not_stored_is_said(folder: Path, tmp_path: Path) -> None:
    write_gz(folder / "raw" / "node_year.csv.gz", "1\n" * 12)
    result = convert(folder, tmp_path / "out.h5", format_name="ogb")
    assert result.ignored == ("node_year.csv.gz",)


def test_a_split_is_chosen(folder: Path, tmp_path: Path) -> None:
    little = Little()
    little.split = little.split[::-1]
    little.write_ogb_split(folder, "random")
    found = convert_to(tmp_path / "out.h5", folder, "ogb", split="random")
    np.testing.assert_array_equal(found.nodes.split, little.split)
    with pytest.raises(InputError, match="holds the splits random, time; choose one with --split"):
        convert_to(tmp_path / "out.h5", folder, "ogb", split="none")
    assert convert_to(tmp_path / "out.h5", folder, "ogb").store.splits == ("random", "time")


def test_labels_of_several_columns(folder: Path, tmp_path: Path) -> None:
    write_gz(folder / "raw" / "node-label.csv.gz", "1,0\n0,1\n" * 6)
    found = convert_to(tmp_path / "out.h5", folder, "ogb")
    assert found.nodes.labels.tolist() == [[1, 0], [0, 1]] * 6


def test_unlabelled_nodes(folder: Path, tmp_path: Path) -> None:
    write_gz(folder / "raw" / "node-label.csv.gz", "1\n" * 11 + "nan\n")
    write_gz(folder / "split" / "time" / "test.csv.gz", "8\n9\n")
    found = convert_to(tmp_path / "out.h5", folder, "ogb")
    assert found.nodes.labels.tolist() == [1] * 11 + [-1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


SPOILS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no edges": (
        lambda p: (p / "raw" / "edge.csv.gz").unlink(),
        r"edge\.csv\.gz: no such file; give the folder that holds raw/edge\.csv\.gz",
    ),
    "no count": (
        lambda p: (p / "raw" / "num-node-list.csv.gz").unlink(),
        r"num-node-list\.csv\.gz: no such file",
    ),
    "two graphs": (
        lambda p: write_gz(p / "raw" / "num-node-list.csv.gz", "7\n5\n"),
        "graph-property collections are not read",
    ),
    "cut": (lambda p: cut(p / "raw" / "edge.csv.gz"), r"edge\.csv\.gz: the compressed file is tr"),
    "cut features": (
        lambda p: cut(p / "raw" / "node-feat.csv.gz"),
        r"node-feat\.csv\.gz: the",
    ),
    "outside": (
        lambda p: write_gz(p / "raw" / "edge.csv.gz", "0,1\n0,12\n"),
        r"edge\.csv\.gz: line 2: target id 12 is outside 0\.\.11",
    ),
    "negative": (
        lambda p: write_gz(p / "raw" / "edge.csv.gz", "0,1\n-3,1\n"),
        r"edge\.csv\.gz: line 2: source id -3",
    ),
    "ragged": (
        lambda p: write_gz(p / "raw" / "node-feat.csv.gz", "1,2\n1\n"),
        r"node-feat\.csv\.gz: line 2 has 1 fields where 2 are expected",
    ),
    "few features": (
        lambda p: write_gz(p / "raw" / "node-feat.csv.gz", "1,2\n" * 11),
        r"node-feat\.csv\.gz: line 12: there are only 11 feature rows for 12 nodes",
    ),
    "many features": (
        lambda p: write_gz(p / "raw" / "node-feat.csv.gz", "1,2\n" * 13),
        r"node-feat\.csv\.gz: line 13: there are more feature rows for 12 nodes",
    ),
    "nan": (
        lambda p: write_gz(p / "raw" / "node-feat.csv.gz", "1,2\n" * 11 + "1,nan\n"),
        r"node-feat\.csv\.gz: line 12: the feature in column 2 is nan",
    ),
    "text": (
        lambda p: write_gz(p / "raw" / "node-feat.csv.gz", "1,2\n" * 11 + "1,two\n"),
        r"node-feat\.csv\.gz: line 12, column 2 holds 'two' where a number is expected",
    ),
    "few labels": (
        lambda p: write_gz(p / "raw" / "node-label.csv.gz", "1\n" * 11),
        r"labels has 11 rows for 12 nodes",
    ),
    "labels": (
        lambda p: write_gz(p / "raw" / "node-label.csv.gz", "1\n" * 11 + "1.5\n"),
        r"node-label\.csv\.gz: node 11 has label 1\.5",
    ),
    "unlabelled": (
        lambda p: write_gz(p / "raw" / "node-label.csv.gz", "nan\n" * 12),
        "node 0 is in the train split but has no label",
    ),
    "overlap": (
        lambda p: write_gz(p / "split" / "time" / "valid.csv.gz", "2\n"),
        r"valid\.csv\.gz: node 2 is in train and in valid",
    ),
    "split outside": (
        lambda p: write_gz(p / "split" / "time" / "test.csv.gz", "99\n"),
        r"test\.csv\.gz: node id 99 is outside 0\.\.11",
    ),
    "torch": (
        lambda p: (p / "split" / "time" / "split_dict.pt").write_bytes(b""),
        r"split_dict\.pt: is a torch pickle, which is not read",
    ),
    "types": (
        lambda p: (p / "raw" / "relations").mkdir(),
        r"num-node-dict\.csv\.gz: no such file; give the folder that holds raw/num-node-dict",
    ),
    "empty": (
        lambda p: (p / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"")),
        "the graph has no edges",
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_spoiled_folders_are_named(folder: Path, tmp_path: Path, spoil: str) -> None:
    act, message = SPOILS[spoil]
    act(folder)
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "out.h5", folder, "ogb")
    assert not (tmp_path / "out.h5").exists()


def test_binary_labels_under_no_known_name(tmp_path: Path) -> None:
    folder = Little().write_ogb_binary(tmp_path / "in")
    np.savez(folder / "raw" / "node-label.npz", other=np.zeros(12))
    with pytest.raises(InputError, match=r"node-label\.npz: holds no array node_label"):
        convert_to(tmp_path / "out.h5", folder, "ogb")
