"""The layouts of .npz graphs, and errors of faulty ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.convert import convert
from hpcgnn.convert.read.edges import rows_of
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore
from tests.support.graph_files import contents, convert_to, csr_files

SRC, DST = np.array([0, 2, 2, 4]), np.array([1, 0, 3, 4])
EXPECTED = np.zeros((5, 5), np.float32)
EXPECTED[DST, SRC] = 1
WEIGHTS = np.array([1, 2, 0.5, -3])
WEIGHTED = np.zeros((5, 5), np.float32)
WEIGHTED[DST, SRC] = WEIGHTS


def matrix(values: Any = None) -> Any:
    data = np.ones(4) if values is None else values
    return scipy.sparse.coo_matrix((data, (SRC, DST)), shape=(5, 5))


def save(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "graph.npz"
    np.savez(path, **arrays)
    return path


def plain(**more: Any) -> dict[str, Any]:
    return {"src": SRC, "dst": DST, **more}


def adjacency_of(csr: Any) -> dict[str, Any]:
    files = csr_files(csr)
    return {f"adj_{name}": files[name] for name in ("indptr", "indices", "data", "shape")}


LAYOUTS = {
    "csr": lambda m: {n: csr_files(m.tocsr())[n] for n in ("indptr", "indices", "data")},
    "adj": lambda m: adjacency_of(m.tocsr()),
    "edge_index": lambda m: {"edge_index": np.stack([m.row, m.col]), "edge_weight": m.data},
    "fortran edge_index": lambda m: {
        "edge_index": np.asfortranarray(np.stack([m.row, m.col])),
        "weights": m.data,
    },
    "src dst": lambda m: {"src": m.row.astype(np.uint8), "dst": m.col, "weight": m.data},
    "row col": lambda m: {"row": m.row.astype(">i4"), "col": m.col, "data": m.data},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weighted", [True, False])
def test_layouts(tmp_path: Path, layout: str, weighted: bool) -> None:
    path = save(tmp_path, **LAYOUTS[layout](matrix(WEIGHTS if weighted else None)))
    found = convert_to(tmp_path / "out.h5", path, "npz")
    np.testing.assert_array_equal(found.matrix, WEIGHTED if weighted else EXPECTED)
    assert found.store.weighted("") == weighted


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("packed", [True, False])
def test_scipy_files(tmp_path: Path, form: str, packed: bool) -> None:
    path = tmp_path / "graph.npz"
    scipy.sparse.save_npz(path, matrix(WEIGHTS).asformat(form), compressed=packed)
    result = convert(path, tmp_path / "out.h5", format_name="npz")
    np.testing.assert_array_equal(contents(tmp_path / "out.h5").matrix, WEIGHTED)
    assert set(result.ignored) <= {"_is_array"}


def test_a_typed_graph_has_relations(tmp_path: Path) -> None:
    etype = np.array([1, 0, 1, 1], np.uint64)
    names = np.array(["likes", "cites", "unused"])
    path = save(tmp_path, **plain(etype=etype, etypes=names, names=np.array(["a", "b"])))
    result = convert(path, tmp_path / "out.h5", format_name="npz")
    assert dict(result.edges) == {"likes": 1, "cites": 3, "unused": 0}
    assert result.ignored == ("names",)
    found = contents(tmp_path / "out.h5")
    np.testing.assert_array_equal(sum(found.adjacency.values()), EXPECTED)
    assert np.argwhere(found.adjacency["likes"]).tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("name", "near"), [("features_", "features"), ("train_maks", "train_mask"), ("Y", "y")]
)
def test_a_misspelt_name_is_an_error(tmp_path: Path, name: str, near: str) -> None:
    path = save(tmp_path, **plain(**{name: np.ones((5, 2))}))
    with pytest.raises(InputError, match=f"array {name} is not known; is it {near}"):
        convert(path, tmp_path / "out.h5", format_name="npz")


def test_options_without_effect_are_errors(tmp_path: Path) -> None:
    path = save(tmp_path, **plain())
    for options in ({"split": "random"}, {"relabel": True}, {"columns": ("src", "dst")}):
        with pytest.raises(InputError, match=rf"--{next(iter(options))}: has no effect on"):
            convert_to(tmp_path / "out.h5", path, "npz", **options)


def test_relations_without_names_are_numbered(tmp_path: Path) -> None:
    path = save(tmp_path, **plain(etype=np.array([2, 0, 2, 0])))
    assert convert_to(tmp_path / "out.h5", path, "npz").store.relations == ("0", "1", "2")


def test_names_of_classes_are_kept_and_pickles_left_alone(tmp_path: Path) -> None:
    labels = np.array([0, 2, -1, 1, 0])
    path = save(tmp_path, **plain(y=labels, classes=np.array(["a", "b", "ç", "d"])))
    found = convert_to(tmp_path / "out.h5", path, "npz")
    assert found.store.class_names == ("a", "b", "ç", "d")
    path = save(tmp_path, **plain(y=labels, classes=np.array(["a", None], dtype=object)))
    result = convert(path, tmp_path / "out.h5", format_name="npz")
    assert result.ignored == ("classes",)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i2", "?"])
def test_features_keep_their_type_where_the_store_has_it(tmp_path: Path, dtype: str) -> None:
    values = np.arange(15).reshape(5, 3).astype(dtype)
    for array in (values, np.asfortranarray(values)):
        found = convert_to(tmp_path / "out.h5", save(tmp_path, **plain(x=array)), "npz")
        kept = dtype[-2:] if "f" in dtype else "f4"
        assert found.nodes.features.dtype == np.dtype(kept)
        np.testing.assert_array_equal(found.nodes.features, values.astype(kept))


def test_sparse_features_become_dense(tmp_path: Path) -> None:
    values = scipy.sparse.random_array((5, 7), density=0.4, rng=np.random.default_rng(17)).tocsr()
    files = {f"attr_{n}": a for n, a in csr_files(values).items() if n != "format"}
    path = save(tmp_path, **adjacency_of(matrix().tocsr()), **files, labels=np.arange(5))
    found = convert_to(tmp_path / "out.h5", path, "npz")
    np.testing.assert_array_equal(found.nodes.features, values.toarray())


@pytest.mark.parametrize(
    "split",
    [
        {"train_mask": [1, 0, 0, 0, 0], "val_mask": [0, 1, 0, 0, 1], "test_mask": [0, 0, 1, 0, 0]},
        {"train_idx": [0], "valid_idx": [[4], [1]], "test_index": [2], "num_nodes": 5},
        {"split": [1, 2, 3, 0, 2]},
    ],
)
def test_splits(tmp_path: Path, split: dict[str, Any]) -> None:
    path = save(tmp_path, **plain(**{name: np.array(v) for name, v in split.items()}))
    found = convert_to(tmp_path / "out.h5", path, "npz")
    assert found.nodes.split.tolist() == [1, 2, 3, 0, 2]


def test_a_graph_may_be_one_node(tmp_path: Path) -> None:
    loop = {"indptr": np.array([0, 1]), "indices": np.array([0]), "num_nodes": np.array(1)}
    found = convert_to(tmp_path / "out.h5", save(tmp_path, **loop, y=np.array([0])), "npz")
    assert found.nodes.labels.tolist() == [0]


def test_one_of_several_masks_is_chosen(tmp_path: Path) -> None:
    mask = np.array([[1, 0], [0, 0], [0, 1], [0, 1], [0, 0]], bool)
    path = save(tmp_path, **plain(train_mask=mask))
    found = convert_to(tmp_path / "out.h5", path, "npz", split="1")
    assert found.nodes.split.tolist() == [0, 0, 1, 1, 0]
    with pytest.raises(
        InputError, match=r"train_mask: holds the splits 0, 1; choose one with --split"
    ):
        convert_to(tmp_path / "out.h5", path, "npz", split="2")
    store = convert_to(tmp_path / "out.h5", path, "npz").store
    assert store.splits == ("0", "1")
    with GraphStore.open(tmp_path / "out.h5") as opened:
        assert opened.read_split(0, 5, "1").tolist() == [0, 0, 1, 1, 0]
    path = save(tmp_path, **plain(train_mask=mask, test_mask=~mask[:, :1]))
    with pytest.raises(InputError, match=r"test_mask holds 1 splits and .*train_mask 2"):
        convert_to(tmp_path / "out.h5", path, "npz")


def test_several_labels_a_node(tmp_path: Path) -> None:
    labels = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0]], float)
    found = convert_to(tmp_path / "out.h5", save(tmp_path, **plain(y=labels)), "npz")
    assert (found.store.multi_label, found.store.num_classes) == (True, 3)
    np.testing.assert_array_equal(found.nodes.labels, labels)


def test_nan_and_minus_one_mean_no_label(tmp_path: Path) -> None:
    labels = np.array([[0], [np.nan], [2], [-1], [1]])
    found = convert_to(tmp_path / "out.h5", save(tmp_path, **plain(y=labels)), "npz")
    assert found.nodes.labels.tolist() == [0, -1, 2, -1, 1]


FAULTY: list[tuple[dict[str, Any], str]] = [
    ({"x": np.ones((5, 2))}, r"holds no edges; name the arrays indptr and indices"),
    (plain(dst=DST[:3]), r"dst has 3 values and src has 4"),
    (plain(dst=DST + 0.5), r"dst has shape \(4,\) and dtype float64; expected a vector of whole"),
    (plain(src=SRC - 1), r"src, entry 0: source id -1 is outside"),
    (plain(x=np.ones((4, 2))), r"src, entry 3: source id 4 is outside 0\.\.3"),
    (plain(x=np.ones((5, 2)), y=np.zeros(6, int)), r"y implies 6 nodes and .* x implies 5"),
    (plain(num_nodes=np.array(5), y=np.zeros(4, int)), r"num_nodes implies 5 nodes"),
    (plain(num_nodes=np.array([1, 2])), r"num_nodes must be one whole number"),
    (plain(x=np.ones(5)), r"x has shape \(5,\) and dtype float64; expected features"),
    (plain(x=np.full((5, 2), None)), r"x holds Python objects, which could execute code"),
    (plain(x=np.array([["a"]] * 5)), r"x has shape \(5, 1\) and dtype <U1"),
    (plain(x=np.array([[1, 2], [3, np.nan]] + [[0, 0]] * 3)), r"x, row 1: the feature in column 2"),
    (plain(y=np.array([0, 1, 2, -2, 0])), r"y: node 3 has label -2"),
    (plain(y=np.array([0, 1, 2.5, 0, 0])), r"y: node 2 has label 2\.5"),
    (plain(y=np.array([0, 1, np.inf, 0, 0])), r"y: node 2 has label inf"),
    (plain(y=np.array([0, 3, 1, 0, 0]), classes=np.array(["a", "b"])), r"node 1 has label 3"),
    (plain(y=np.full((5, 3), 2)), r"y: node 0 has 2 in column 0"),
    (plain(y=np.full((5, 3), np.nan)), r"y: node 0 has nan in column 0"),
    (plain(y=np.eye(5, 3), classes=np.array(["a"])), r"y has 3 columns for 1 class names"),
    (plain(y=np.array([0, 1, 0, 0, 0]), classes=np.array(["a", "a"])), r"classes are called 'a'"),
    (
        plain(edge_label=np.array([0, 1, 0, 0]), edge_classes=np.array(["a", "a"])),
        r"edge_label: two classes are called 'a'",
    ),
    (plain(train_mask=np.ones(5), test_mask=np.eye(1, 5)[0]), r"node 0 is in train and in test"),
    (plain(train_mask=np.ones(5), test_mask=np.zeros(4)), r"test mask implies 4 nodes"),
    (plain(train_mask=np.array(1)), r"train_mask is a single value; give a vector"),
    (plain(train_mask=np.full(5, 7)), r"the train mask must be a vector of 0 and 1"),
    (plain(train_idx=np.array([0])), r"needs the array num_nodes"),
    (plain(train_idx=np.array([9]), num_nodes=np.array(5)), r"train_idx: node id 9 is outside 0"),
    (plain(train_idx=np.array([0.0]), num_nodes=np.array(5)), r"train_idx has shape .* float64"),
    (
        plain(train_mask=np.ones(5), y=np.array([0, 1, -1, 0, 1])),
        r"node 2 is in the train split",
    ),
    (plain(split=np.array([0, 4, 0, 0, 0])), r"split must be a vector of 0 \(none\)"),
    (plain(weights=np.ones(3)), r"weights has 3 values for the 4 edges of src"),
    (plain(weights=np.array([1, np.nan, 1, 1])), r"src, entry 1: weight nan is not"),
    (
        plain(etype=np.array([0, 1, 2, 0]), etypes=np.array(["a", "b"])),
        r"entry 2: relation 2 is",
    ),
    (plain(etype=np.array([0, -1, 2, 0])), r"entry 1: relation -1 is outside"),
    (
        plain(etype=np.zeros(4, int), etypes=np.array(["a", "a"])),
        r"must name at least one relation, each once",
    ),
    ({"edge_index": np.ones((3, 2), int)}, r"edge_index has shape \(3, 2\)"),
    ({"src": SRC[:0], "dst": DST[:0]}, r"the graph has no edges"),
    ({"indptr": np.array([0, 2, 1, 3]), "indices": np.zeros(3, int)}, r"decreases after row 1"),
    (
        {"indptr": np.array([0, 2]), "indices": np.zeros(3, int)},
        r"must run from 0 to 3, the length of",
    ),
    ({"indptr": np.array([0, 1]), "indices": np.array([4])}, r"indices, entry 0: target id 4"),
    (
        {"indptr": np.array([0, 1]), "indices": np.array([0]), "shape": np.array([1, 2])},
        r"shape is \[1, 2\]; an adjacency is square",
    ),
    (plain(shape=np.array([5, 6])), r"shape is \[5, 6\]; an adjacency is square"),
    (
        {"format": np.array(b"dia"), "shape": np.array([5, 5]), "data": np.ones(5)},
        r"format is 'dia'; save the matrix as csr, csc or coo",
    ),
]


@pytest.mark.parametrize(("arrays", "message"), FAULTY)
def test_faulty_arrays_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = save(tmp_path, **arrays)
    with pytest.raises(InputError, match=message) as caught:
        convert_to(tmp_path / "out.h5", path, "npz")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


def test_rows_of_any_range_of_a_compressed_matrix() -> None:
    counts = np.array([0, 3, 0, 0, 1, 4, 0])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(7), counts)
    for start in range(8):
        for stop in range(start + 1, 9):
            assert rows_of(indptr, start, stop).tolist() == rows[start:stop].tolist()


def test_features_of_edges(tmp_path: Path) -> None:
    arrays = {
        "edge_index": np.array([[0, 1, 2, 0], [1, 2, 0, 2]]),
        "etype": np.array([0, 1, 0, 1]),
        "edge_attr": np.arange(8.0).reshape(4, 2),
    }
    np.savez(tmp_path / "g.npz", **arrays)
    convert(tmp_path / "g.npz", tmp_path / "out.h5", format_name="npz")
    with GraphStore.open(tmp_path / "out.h5") as store:
        # Rows are targets: 2 -> 0 and 0 -> 1 of relation 0; 0 -> 2 and 1 -> 2 of relation 1.
        for relation, expected in (("0", [[4, 5], [0, 1]]), ("1", [[6, 7], [2, 3]])):
            features = store.read_edge_data(0, 3, relation).features
            np.testing.assert_array_equal(features, expected)
    np.savez(tmp_path / "bad.npz", **arrays | {"edge_attr": np.ones((3, 2))})
    with pytest.raises(InputError, match="edge_attr has 3 rows for the 4 edges of edge_index"):
        convert(tmp_path / "bad.npz", tmp_path / "bad.h5", format_name="npz")


@pytest.mark.parametrize("columns", [1, 2])
def test_numbers_of_edges_keep_the_dtype_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, columns: int
) -> None:
    # Seconds since 1970, which float32 rounds to multiples of 128.
    times = 1607664516 + np.arange(2 * columns).reshape(2, columns).squeeze()
    data = {"edge_attr": times, "edge_targets": times}
    path = save(tmp_path, src=[0, 1], dst=[1, 0], **data)
    kinds: dict[Any, Any] = {"float64": np.float64, None: np.float32}
    for dtype, kind in kinds.items():
        caplog.clear()
        convert_to(tmp_path / "out.h5", path, "npz", dtype=dtype)
        with GraphStore.open(tmp_path / "out.h5") as store:
            features = store.read_edge_data(0, 2).features
        # Rows are targets.
        np.testing.assert_array_equal(features, times.reshape(2, -1)[::-1].astype(kind))
        told = "feature 1 of the edge is rounded from 1607664516 to 1607664512" in caplog.text
        assert told == (dtype is None)
        assert "number 1 of the edge is rounded from 1607664516" in caplog.text
