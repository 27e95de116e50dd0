"""METIS graphs: every fmt, isolated nodes, and contradictory lists."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.convert.formats import metis
from hpcgnn.convert.read import files
from hpcgnn.errors import InputError
from tests.support.graph_files import convert_to

# Node 2 is isolated; the weights are those of the edges {0, 1}, {0, 3}, {1, 3}.
LISTS = [[1, 3], [0, 3], [], [0, 1]]
WEIGHT = {(0, 1): 4, (0, 3): 7, (1, 3): 1}


def expected(weighted: bool) -> Any:
    matrix = np.zeros((4, 4))
    for (i, j), weight in WEIGHT.items():
        matrix[i, j] = matrix[j, i] = weight if weighted else 1
    return matrix


def written(tmp_path: Path, fmt: str, constraints: int = 1) -> Path:
    flags = fmt.rjust(3, "0")
    head = f"4 3 {fmt}".rstrip() + (f" {constraints}" if constraints > 1 else "")
    lines = []
    for i, neighbours in enumerate(LISTS):
        words = ["9"] * (flags[0] == "1") + ["5"] * (constraints * (flags[1] == "1"))
        for j in neighbours:
            words += [str(j + 1)] + [str(WEIGHT[min(i, j), max(i, j)])] * (flags[2] == "1")
        lines.append(" ".join(words))
    path = tmp_path / "graph.graph"
    path.write_text("% before\n" + head + "\n" + "\n% inside\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("fmt", ["", "0", "1", "01", "10", "11", "100", "001", "111"])
@pytest.mark.parametrize("duplicates", ["first", "sum", "error"])
def test_every_fmt(tmp_path: Path, fmt: str, duplicates: Any) -> None:
    path = written(tmp_path, fmt)
    found = convert_to(tmp_path / "out.h5", path, "metis", duplicates=duplicates)
    np.testing.assert_array_equal(found.matrix, expected(fmt.endswith("1")))
    assert found.store.undirected


def test_several_constraints(tmp_path: Path) -> None:
    found = convert_to(tmp_path / "out.h5", written(tmp_path, "011", 3), "metis")
    np.testing.assert_array_equal(found.matrix, expected(True))


def test_many_blocks_give_the_graph_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "11")
    for size in (1, 5, 17):
        monkeypatch.setattr(
            metis, "read_blocks", lambda path, size=size: files.read_blocks(path, size)
        )
        found = convert_to(tmp_path / "out.h5", path, "metis")
        np.testing.assert_array_equal(found.matrix, expected(True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds nothing but comments"),
        ("4\n", "line 1 must hold 'nodes edges"),
        (f"2 1 010 {'1' * 5000}\n2\n1\n", "line 1 must hold 'nodes edges"),
        ("2 1 2\n2\n1\n", "line 1: fmt is '2'; give up to three digits"),
        ("2 1 0011\n2\n1\n", "line 1: fmt is '0011'"),
        ("0 0\n", "line 1: the graph has no nodes"),
        ("2 0\n\n\n", "the graph has no edges"),
        ("3 1\n2\n1\n", r"lists 2 neighbours of 2 nodes where line 1 promises 2 .* of 3"),
        ("2 2\n2\n1\n", r"lists 2 neighbours of 2 nodes where line 1 promises 4"),
        ("2 1\n2\n1\n\n% end\n1\n", "line 6 comes after the lists of all 2 nodes"),
        ("3 1\n2\n\n2\n", "an edge is not listed at both of its nodes"),
        ("2 1 1\n2 3\n1 4\n", "an edge is not listed at both of its nodes with the same weight"),
        ("2 1\n3\n1\n", r"line 2: neighbour 3 is outside 1\.\.2"),
        ("2 1\n% c\n0\n1\n", r"line 3: neighbour 0 is outside 1\.\.2"),
        ("2 1\n2\nx\n", "line 3, column 1 holds 'x'"),
        ("2 1 1\n2 3\n1\n", "line 3 has 1 fields where neighbours each with a weight are expected"),
        ("2 1 10\n5 2\n\n", "line 3 has 0 fields where 1 leading fields and then neighbours"),
    ],
)
def test_faulty_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "graph.graph"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        convert_to(tmp_path / "out.h5", path, "metis")
    assert str(path) in str(caught.value)


def test_blank_lines_at_the_end_are_no_nodes(tmp_path: Path) -> None:
    path = tmp_path / "graph.graph"
    path.write_text("2 1\n2\n1\n\n\n")
    assert convert_to(tmp_path / "out.h5", path, "metis").store.num_nodes == 2
