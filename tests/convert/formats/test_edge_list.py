"""Edge lists, plain and typed, against slow oracles."""

import gzip
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from hpcgnn.convert import ConvertOptions, convert
from hpcgnn.errors import InputError
from tests.support.graph_files import contents, convert_to

EDGES = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(-8, 8)), min_size=1, max_size=40
)


def edge_file(tmp_path: Path, text: str, name: str = "graph.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@hypothesis.given(
    edges=EDGES, undirected=st.booleans(), duplicates=st.sampled_from(["first", "sum"])
)
def test_weighted_edges_equal_a_dense_oracle(
    tmp_path: Path, edges: list[tuple[int, int, int]], undirected: bool, duplicates: str
) -> None:
    hypothesis.assume(any(w for _, _, w in edges))
    n = 1 + max(max(i, j) for i, j, _ in edges)
    expected = np.zeros((n, n))
    given = np.zeros((n, n), bool)
    for src, dst, weight in edges:
        if weight == 0:
            continue
        ends = {(dst, src), (src, dst)} if undirected else {(dst, src)}
        for row, column in ends:
            if duplicates == "sum" or not given[row, column]:
                expected[row, column] += weight / 4
            given[row, column] = True
    text = "".join(f"{i} {j} {w / 4}\n" for i, j, w in edges)
    found = convert_to(
        tmp_path / "out.h5",
        edge_file(tmp_path, text),
        "edge-list",
        undirected=undirected,
        duplicates=duplicates,
        num_nodes=n,
    )
    np.testing.assert_array_equal(found.matrix, expected)
    assert found.store.undirected >= undirected


@hypothesis.given(
    edges=st.lists(st.tuples(st.integers(-(10**15), 10**15), st.integers(0, 3)), min_size=1)
)
def test_relabelled_edges_keep_their_ids(tmp_path: Path, edges: list[tuple[int, int]]) -> None:
    path = edge_file(tmp_path, "".join(f"{i},{j}\n" for i, j in edges), "graph.csv")
    found = convert_to(tmp_path / "out.h5", path, "edge-list", relabel=True)
    ids = found.nodes.original_id
    assert ids.tolist() == sorted({i for edge in edges for i in edge})
    rows, columns = found.matrix.nonzero()
    pairs = set(zip(ids[columns].tolist(), ids[rows].tolist(), strict=True))
    assert pairs == set(edges)


@pytest.mark.parametrize("name", ["g.txt", "g.tsv.gz", "g.csv", "g.csv.gz"])
def test_an_edge_goes_to_the_row_of_its_target(tmp_path: Path, name: str) -> None:
    gap = "," if "csv" in name else "\t"
    text = f"# SNAP\n% KONECT\nsource{gap}target\n0{gap}2\n2{gap}1\n"
    result = convert(edge_file(tmp_path, text, name), tmp_path / "o.h5", format_name="edge-list")
    assert result.ignored == ("header in line 3",)
    found = contents(tmp_path / "o.h5")
    assert np.argwhere(found.matrix).tolist() == [[1, 2], [2, 0]]
    assert found.store.name == "g"
    assert not found.store.undirected


def test_reverse_swaps_the_ends(tmp_path: Path) -> None:
    path = edge_file(tmp_path, "0 2\n2 1\n")
    found = convert_to(tmp_path / "out.h5", path, "edge-list", reverse=True)
    assert np.argwhere(found.matrix).tolist() == [[0, 2], [2, 1]]


def test_columns_say_what_the_fields_are(tmp_path: Path) -> None:
    path = edge_file(tmp_path, "0.5 x 1 0 9\n2.5 y 0 2 9\n")
    columns = ("weight", "skip", "dst", "src", "skip")
    found = convert_to(tmp_path / "out.h5", path, "edge-list", columns=columns)
    assert found.matrix.tolist() == [[0, 0, 2.5], [0.5, 0, 0], [0, 0, 0]]


def test_edges_without_weight_are_left_out(tmp_path: Path) -> None:
    path = edge_file(tmp_path, "0 1 0\n1 2 0.5\n")
    result = convert(path, tmp_path / "out.h5", format_name="edge-list")
    assert (result.input_edges, result.zero_edges, dict(result.edges)) == (2, 1, {"": 1})


def test_given_nodes_may_be_isolated(tmp_path: Path) -> None:
    path = edge_file(tmp_path, "0 1\n")
    found = convert_to(tmp_path / "out.h5", path, "edge-list", num_nodes=7)
    assert found.store.num_nodes == 7


@pytest.mark.parametrize(
    ("names", "order"),
    [(["cites", "by", "über"], ["by", "cites", "über"]), (["10", "9", "0"], ["0", "9", "10"])],
)
def test_typed_edges_become_relations(tmp_path: Path, names: list[str], order: list[str]) -> None:
    rows = [(i % 5, (3 * i + 1) % 5, names[i % 3]) for i in range(11)]
    text = "".join(f"{i}\t{j}\t{name}\n" for i, j, name in rows)
    found = convert_to(tmp_path / "out.h5", edge_file(tmp_path, text), "typed-edge-list")
    assert list(found.store.relations) == order
    for name in names:
        expected = {(j, i) for i, j, relation in rows if relation == name}
        assert {tuple(e) for e in np.argwhere(found.adjacency[name]).tolist()} == expected


def test_typed_edges_with_weights_and_strange_ids(tmp_path: Path) -> None:
    text = "head relation tail weight\n700 likes 5 0.5\n5 likes 700 0.25\n5 knows -3 2\n"
    found = convert_to(
        tmp_path / "out.h5",
        edge_file(tmp_path, text),
        "typed-edge-list",
        columns=("src", "relation", "dst", "weight"),
        relabel=True,
    )
    assert found.nodes.original_id.tolist() == [-3, 5, 700]
    assert found.adjacency["likes"].tolist() == [[0, 0, 0], [0, 0, 0.5], [0, 0.25, 0]]
    assert found.adjacency["knows"].tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 0]]


def test_many_blocks_give_the_graph_of_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(29)
    edges = rng.integers(0, 900, (250_000, 2))
    path = tmp_path / "big.txt.gz"
    text = "\n".join(f"{i:<9} {j:9}" for i, j in edges.tolist())
    path.write_bytes(gzip.compress(text.encode(), 1))
    out = tmp_path / "out.h5"
    small = convert(
        path, out, format_name="edge-list", options=ConvertOptions(memory_bytes=1 << 20)
    )
    first = contents(out)
    expected = {(j, i) for i, j in edges.tolist()}
    assert sum(small.edges.values()) == len(expected)
    assert {tuple(e) for e in np.argwhere(first.matrix).tolist()} == expected
    convert(path, out, format_name="edge-list")
    assert contents(out).store.fingerprint == first.store.fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"holds nothing but comments"),
        ("# only\n", r"holds nothing but comments"),
        ("src dst\n", r"the graph has no edges"),
        ("0 1\n1 -2\n", r"graph\.txt: line 2: target id -2 is outside"),
        ("0 1\n\n4294967296 2\n", r"line 3: source id 4294967296 is outside .* --relabel"),
        ("0 1\n1\n", r"line 2 has 1 fields where 2 are expected"),
        ("0 1\na 2\n", r"line 2, column 1 holds 'a'"),
        ("1 b\n2\n", r"line 2 has 1 fields where 2 are expected"),
        (
            "0|1\n",
            r"line 1 has 1 field \(tabs, commas, semicolons or blanks separate fields\); say",
        ),
        ("0 1 2 3\n", r"line 1 has 4 fields; say what they are with --columns"),
        ("0 1 .5\n1 0 nan\n", r"line 2: weight nan is not a finite float32 number"),
        ("0 1 {}\n", "end with dictionaries in braces; .* data=False"),
        ("0 1 {'w': 2, 'a': 'b'}\n1 2 {}\n", "end with dictionaries in braces"),
        ("0 1 .5\n1 0 1e39\n", r"line 2: weight 1e\+39 is not a finite float32 number"),
    ],
)
def test_faulty_edge_lists_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "out.h5", edge_file(tmp_path, text), "edge-list")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("src", "dst", "colour"), "'colour' is none of src, dst"),
        (("src", "weight", "skip"), "dst occurs 0 times"),
        (("src", "dst", "src"), "src occurs 2 times"),
        (("src", "dst", "relation"), "use --format typed-edge-list"),
    ],
)
def test_faulty_columns_are_named(tmp_path: Path, columns: tuple[str, ...], message: str) -> None:
    path = edge_file(tmp_path, "0 1 2\n")
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "out.h5", path, "edge-list", columns=columns)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1 a\x01b\n", "relation 'a.x01b' is empty or has unprintable"),
        ("0 1 \xff\xfe\n", "the relation column holds text that is not UTF-8"),
        (f"0 1 {'9' * 5000}\n", "relation '9+'... cannot be stored"),
        ("src dst relation\n", "has no edges"),
        ("0 1\n", "line 1 has 2 fields; say what they are"),
    ],
)
def test_faulty_relations_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "out.h5", path, "typed-edge-list")


@pytest.mark.parametrize(
    ("text", "told"),
    [("0 1 1609459200\n", True), ("u v w\n0 1 5\n", False), ("src dst time\n0 1 5\n", False)],
)
def test_a_weight_that_no_header_names_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: bool
) -> None:
    convert_to(tmp_path / "out.h5", edge_file(tmp_path, text), "edge-list")
    line = "column 3 (first value 1609459200) is read as edge weights; if it is a time"
    assert (line in capsys.readouterr().err) == told


def test_duplicates_can_be_an_error(tmp_path: Path) -> None:
    path = edge_file(tmp_path, "0 1\n1 0\n0 1\n")
    with pytest.raises(InputError, match=r"graph\.txt: edge 0 -> 1 is given more than once"):
        convert_to(tmp_path / "out.h5", path, "edge-list", duplicates="error")


def test_ids_of_edges_without_weight_are_nodes(tmp_path: Path) -> None:
    path = edge_file(tmp_path, "0 1 1\n1 9 0\n")
    assert convert_to(tmp_path / "out.h5", path, "edge-list").store.num_nodes == 10
    with pytest.raises(InputError, match="no edges but those of weight 0"):
        convert_to(tmp_path / "out.h5", edge_file(tmp_path, "0 1 0\n"), "edge-list")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_floating_point_ids_are_refused(tmp_path: Path, name: str) -> None:
    # Arrow writes them as 5 and 1e+10; as names, 1e+10 and 10000000000 would be two nodes.
    table = pa.table({"src": [0, 5, 10**10], "dst": [5.0, 1e10, 0.0]})
    path = tmp_path / name
    (pq.write_table if name.endswith(".parquet") else csv.write_csv)(table, path)
    with pytest.raises(InputError, match="dst has floating-point numbers as ids, such as"):
        convert(path, tmp_path / "out.h5", format_name="edge-list", options=ConvertOptions())


def test_a_file_without_header_has_the_order_of_the_others(tmp_path: Path) -> None:
    first = edge_file(tmp_path, "dst,src\n1,0\n", "a.csv")
    more = {"more_inputs": (str(edge_file(tmp_path, "2,1\n", "b.csv")),)}
    with pytest.raises(InputError, match=r"b\.csv: has no header, .* have the src in another"):
        convert_to(tmp_path / "out.h5", first, "edge-list", **more)
    found = convert_to(tmp_path / "out.h5", first, "edge-list", columns=("dst", "src"), **more)
    np.testing.assert_array_equal(np.argwhere(found.matrix), [[1, 0], [2, 1]])


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_files_that_alone_have_weights_are_refused(tmp_path: Path, names: str) -> None:
    texts = {"a": "src,dst,weight\n0,1,2.5\n", "b": "src,dst\n1,2\n"}
    first, second = (edge_file(tmp_path, texts[name], f"{name}.csv") for name in names)
    more = {"more_inputs": (str(second),)}
    with pytest.raises(InputError, match=r"b\.csv: has no weights, and other files"):
        convert_to(tmp_path / "out.h5", first, "edge-list", **more)
    if names == "ba":
        return
    found = convert_to(
        tmp_path / "out.h5", first, "edge-list", columns=("src=src", "dst=dst"), **more
    )
    np.testing.assert_array_equal(np.argwhere(found.matrix), [[1, 0], [2, 1]])
