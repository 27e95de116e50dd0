"""Labels of edges, as classes or numbers, and their split from tables and arrays."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore

CONVERT = find_command("convert")
ROWS = (
    # source, target, amount, kind, odd, late, speed, set
    (0, 1, 0.5, "card", 1, 0, "2.5", "train"),
    (2, 1, 1.5, "", 0, 0, "", "none"),
    (3, 0, 2.5, "cash", 1, 1, "-1", "valid"),
    (3, 2, 3.5, "cash", 0, 1, "4", "test"),
)
HEAD = "source,target,amount,kind,odd,late,speed,set"


def convert(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *words: str) -> GraphStore:
    """Convert a file with the command; return the open store."""
    path = folder / "out.h5"
    monkeypatch.setattr(sys, "argv", ["convert", str(folder / name), *words, "-o", str(path)])
    assert CONVERT.call() == 0
    return GraphStore.open(path)


def found(store: GraphStore) -> dict[tuple[int, int], list[float]]:
    """Return the labels of each edge, source and target."""
    block, data = store.read_adjacency(0, 4), store.read_edge_data(0, 4)
    rows = np.repeat(np.arange(4), np.diff(block.indptr))
    keys = zip(block.indices.tolist(), rows.tolist(), strict=True)
    return dict(zip(keys, data.labels.tolist(), strict=True))


@pytest.mark.parametrize(
    ("words", "names", "labels"),
    [
        (("--edge-labels", "kind"), ("card", "cash"), [[0], [-1], [1], [1]]),
        (("--edge-labels", "odd"), ("0", "1"), [[1], [0], [1], [0]]),
        (("--edge-labels", "odd,late"), ("odd", "late"), [[1, 0], [0, 0], [1, 1], [0, 1]]),
        (("--edge-targets", "speed"), ("speed",), [[2.5], [np.nan], [-1], [4]]),
        (
            ("--edge-targets", "amount,speed"),
            ("amount", "speed"),
            [[0.5, 2.5], [1.5, np.nan], [2.5, -1], [3.5, 4]],
        ),
    ],
)
@pytest.mark.parametrize("undirected", [False, True])
def test_columns_of_tables(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    names: tuple[str, ...],
    labels: list[list[float]],
    undirected: bool,
) -> None:
    lines = [",".join(map(str, row)) for row in ROWS]
    (tmp_path / "pay.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    more = ("--undirected",) if undirected else ()
    with convert(monkeypatch, tmp_path, "pay.csv", *words, "--edge-split", "set", *more) as store:
        assert store.edge_labels == names
        expected = {(row[0], row[1]): each for row, each in zip(ROWS, labels, strict=True)}
        if undirected:
            expected |= {(v, u): each for (u, v), each in expected.items()}
        np.testing.assert_equal(found(store), expected)
        roles = store.read_edge_data(0, 4).split
        assert sorted(roles.tolist()) == sorted([1, 0, 2, 3] * (1 + undirected))


@pytest.mark.parametrize(
    ("arrays", "names", "labels"),
    [
        ({"edge_label": [2, -1, 0, 1]}, ("0", "1", "2"), [[2], [-1], [0], [1]]),
        (
            {"edge_label": [1, 0, 0, 1], "edge_classes": ["no", "yes", "?"]},
            ("no", "yes", "?"),
            [[1], [0], [0], [1]],
        ),
        (
            {"edge_label": [[1, 0], [0, 0], [1, 1], [0, 1]]},
            ("0", "1"),
            [[1, 0], [0, 0], [1, 1], [0, 1]],
        ),
        ({"edge_targets": [0.5, np.nan, 2, 3]}, ("0",), [[0.5], [np.nan], [2], [3]]),
    ],
)
def test_arrays_of_npz(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrays: dict[str, list[float]],
    names: tuple[str, ...],
    labels: list[list[float]],
) -> None:
    src, dst = np.array([row[:2] for row in ROWS]).T
    of_edges = {name: np.array(values) for name, values in arrays.items()}
    split = np.array([1, 0, 2, 3])
    np.savez(tmp_path / "g.npz", src=src, dst=dst, edge_split=split, num_nodes=4, **of_edges)
    with convert(monkeypatch, tmp_path, "g.npz") as store:
        assert store.edge_labels == names
        pairs = zip(src.tolist(), dst.tolist(), strict=True)
        np.testing.assert_equal(found(store), dict(zip(pairs, labels, strict=True)))
        assert not store.undirected


@pytest.mark.parametrize(("labels", "told"), [([1, -1, 1, -1], True), ([1, -1, 0, 1], False)])
def test_signs_of_npz_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    labels: list[int],
    *,
    told: bool,
) -> None:
    src, dst = np.array([row[:2] for row in ROWS]).T
    np.savez(tmp_path / "g.npz", src=src, dst=dst, edge_label=np.array(labels), num_nodes=4)
    with convert(monkeypatch, tmp_path, "g.npz"):
        pass
    said = "edge_label: edges with -1 or nan have no label, and all others are of class 1"
    assert (said in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--edge-labels", "kind", "--edge-targets", "speed"), "give edges classes or numbers"),
        (("--edge-labels", "amount,odd"), "line 2: several labels of an edge must be 0 or 1"),
        (("--edge-labels", "nothing"), "has no column 'nothing'"),
        (("--edge-split", "kind"), "none is expected"),
        (
            ("--columns", "src=source,dst=target,weight=speed", "--edge-targets", "speed"),
            "speed is the weight of edges, and a model would read what",
        ),
        (
            ("--columns", "src=source,dst=target,relation=kind", "--edge-labels", "kind"),
            "kind is the relation of edges, and a model would read what",
        ),
    ],
)
def test_faults_name_the_column(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    lines = [",".join(map(str, row)) for row in ROWS]
    (tmp_path / "pay.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    with pytest.raises(InputError, match=message):
        convert(monkeypatch, tmp_path, "pay.csv", *words)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("source,target,weight", ("--edge-targets", "weight")),
        ("source,target,w", ("--edge-labels", "w")),
        ("source,target,relation", ("--edge-targets", "relation", "--format", "edge-list")),
        ("u,v,x", ("--edge-targets", "x")),
        ("x,u,v", ("--edge-targets", "x")),
        ("u,x,v", ("--edge-features", "x")),
    ],
)
def test_columns_of_edge_data_are_no_ends_and_no_weights_to_predict_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, words: tuple[str, ...]
) -> None:
    places = [name not in {"source", "target", "u", "v"} for name in head.split(",")]
    lines = [head]
    for source, target, value in ((0, 1, 0), (2, 1, 3), (3, 0, 2)):
        ends = iter((source, target))
        lines.append(",".join(str(value if is_value else next(ends)) for is_value in places))
    (tmp_path / "e.csv").write_text("\n".join(lines) + "\n")
    with convert(monkeypatch, tmp_path, "e.csv", *words) as store:
        block, data = store.read_adjacency(0, 4), store.read_edge_data(0, 4)
    # An edge of value 0 is not one of weight 0.
    assert block.indices.tolist() == [3, 0, 2]
    assert np.diff(block.indptr).tolist() == [1, 2, 0, 0]
    assert block.weights is None
    values = data.features if data.labels is None else data.labels
    assert values.ravel().tolist() == [2, 0, 3]


@pytest.mark.parametrize(
    ("words", "column", "message"),
    [
        (("--edge-labels", "c"), "-2,-1,0,2", "-1 is no label, but -2 would be a class"),
        (("--edge-targets", "c"), "1 2,3 4,5 6,7 8", "c to predict for edges: a column has vec"),
        (("--edge-labels", "c,dst"), "1 0,0 1,1 1,0 0", "c and dst to predict for edges"),
    ],
)
def test_columns_that_lose_labels_or_have_several_numbers_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    column: str,
    message: str,
) -> None:
    lines = [f'{n},{n % 2},"{each}"' for n, each in enumerate(column.split(","))]
    (tmp_path / "e.csv").write_text("\n".join(["src,dst,c", *lines]) + "\n")
    with pytest.raises(InputError, match=message):
        convert(monkeypatch, tmp_path, "e.csv", *words)


@pytest.mark.parametrize(
    ("classes", "told"), [((2019, 2020), True), ((0, 8), True), ((0, 7), False)]
)
def test_numbers_of_classes_with_gaps_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    classes: tuple[int, int],
    *,
    told: bool,
) -> None:
    (tmp_path / "e.csv").write_text("src,dst,c\n0,1,{}\n1,2,{}\n2,0,-1\n".format(*classes))
    with convert(monkeypatch, tmp_path, "e.csv", "--edge-labels", "c") as store:
        assert len(store.edge_labels) == classes[1] + 1
    assert ("only 2 of the" in capsys.readouterr().err) == told


def test_words_for_missing_labels_of_edges_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.csv").write_text("src,dst,kind\n0,1,NA\n1,2,x\n3,0,\n")
    with convert(monkeypatch, tmp_path, "e.csv", "--edge-labels", "kind") as store:
        assert store.edge_labels == ("NA", "x")
    assert "'NA' is read as a class; leave missing" in capsys.readouterr().err
