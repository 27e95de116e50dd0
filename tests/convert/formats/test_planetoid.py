"""Planetoid files: isolated test nodes, the public split, inconsistent files."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.errors import InputError
from tests.support.graph_files import Little, convert_to


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Little().write_planetoid(tmp_path / "in")


def replace(folder: Path, suffix: str, value: Any) -> None:
    (folder / f"ind.lit.{suffix}").write_bytes(pickle.dumps(value, 2))


def test_test_nodes_that_are_missing_have_zero_features_and_no_label(
    folder: Path, tmp_path: Path
) -> None:
    little = Little()
    rows = [11, 8]
    replace(folder, "tx", scipy.sparse.csr_matrix(little.features[rows]))
    replace(folder, "ty", np.eye(3, dtype=np.int32)[little.labels[rows]])
    (folder / "ind.lit.test.index").write_text("11\n8\n")
    found = convert_to(tmp_path / "out.h5", folder, "planetoid")
    assert found.store.num_nodes == 12
    assert found.nodes.labels.tolist() == [*little.labels[:9].tolist(), -1, -1, little.labels[11]]
    assert found.nodes.split.tolist() == [1] * 3 + [2] * 5 + [3, 0, 0, 3]
    np.testing.assert_array_equal(found.nodes.features[[8, 11]], little.features[[8, 11]])
    assert not found.nodes.features[9:11].any()


def test_validation_is_at_most_five_hundred_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    x = scipy.sparse.csr_matrix(np.ones((600, 2), np.float32))
    one_hot = np.tile([1, 0], (600, 1))
    parts = {"x": x[:4], "y": one_hot[:4], "allx": x, "ally": one_hot}
    parts |= {"tx": x[:1], "ty": one_hot[:1], "graph": {0: [600], 600: [0]}}
    for suffix, value in parts.items():
        replace(folder, suffix, value)
    (folder / "ind.lit.test.index").write_text("600\n")
    found = convert_to(tmp_path / "out.h5", folder, "planetoid")
    assert np.bincount(found.nodes.split).tolist() == [96, 4, 500, 1]


@pytest.mark.parametrize("name", ["", "ind.lit", "ind.lit.allx", "ind.lit.test.index"])
def test_folder_prefix_and_any_file_are_the_same_input(
    folder: Path, tmp_path: Path, name: str
) -> None:
    found = convert_to(tmp_path / "out.h5", folder / name, "planetoid")
    assert found.store.num_edges() == Little().matrix.nnz


def test_a_folder_with_two_graphs_asks_which(folder: Path, tmp_path: Path) -> None:
    Little().write_planetoid(folder, name="other")
    with pytest.raises(InputError, match=r"2 Planetoid graphs; choose .*ind\.lit or .*ind\.other"):
        convert_to(tmp_path / "out.h5", folder, "planetoid")


@pytest.mark.parametrize(
    ("suffix", "value", "message"),
    [
        ("allx", np.ones((8, 5)), r"allx: holds array, not a CSR matrix"),
        ("tx", scipy.sparse.csr_matrix((4, 6)), r"tx: has 6 columns and allx has 5"),
        ("tx", scipy.sparse.csr_matrix((3, 5)), r"lists 4 nodes for the 3 rows of tx"),
        ("x", scipy.sparse.csr_matrix((9, 5)), r"ind\.lit\.x: has more rows than allx"),
        ("ty", np.eye(3)[[0, 1]], r"ty: has shape \(2, 3\)"),
        ("y", np.eye(4)[[0, 1, 2]], r"ind\.lit\.y: has shape \(3, 4\)"),
        ("ally", np.ones((8, 3)), r"ally: row 0 does not mark one class"),
        ("ally", np.full((8, 3), np.nan), r"ally: row 0 does not mark one class"),
        ("graph", {0: [1], 3: [-1]}, r"graph: the list of node 3 has an id outside 0\.\.11"),
        ("graph", {0: [1], -2: [1]}, r"graph: the list of node -2"),
        ("graph", {}, r"the graph has no edges"),
    ],
)
def test_files_that_do_not_fit_are_named(
    folder: Path, tmp_path: Path, suffix: str, value: Any, message: str
) -> None:
    replace(folder, suffix, value)
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "out.h5", folder, "planetoid")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10\n8\n11\n7\n", "line 4: node 7 belongs to the 8 rows of allx"),
        ("10\n8\n11\n8\n", "lists a node twice"),
        ("10\n8\nx\n9\n", "line 3, column 1 holds 'x'"),
        ("10\n8\n9\n", "lists 3 nodes for the 4 rows of tx"),
    ],
)
def test_a_faulty_test_index_is_named(
    folder: Path, tmp_path: Path, text: str, message: str
) -> None:
    (folder / "ind.lit.test.index").write_text(text)
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "out.h5", folder, "planetoid")


def test_a_broken_csr_matrix_is_named(folder: Path, tmp_path: Path) -> None:
    matrix = scipy.sparse.csr_matrix(Little().features[:8])
    matrix.indices = matrix.indices + 3
    replace(folder, "allx", matrix)
    with pytest.raises(InputError, match=r"allx is no valid CSR matrix"):
        convert_to(tmp_path / "out.h5", folder, "planetoid")


def test_infinite_features_are_named(folder: Path, tmp_path: Path) -> None:
    features = Little().features[:8]
    features[6, 2] = np.inf
    replace(folder, "allx", scipy.sparse.csr_matrix(features))
    with pytest.raises(InputError, match=r"allx, row 6: the feature in column 3 is inf"):
        convert_to(tmp_path / "out.h5", folder, "planetoid")


def write_words(folder: Path, value: float = 1) -> np.ndarray:
    """Give the nodes 400 words, two for each node."""
    words = scipy.sparse.lil_matrix((12, 400), dtype=np.float64)
    for node in range(12):
        words[node, [node, 399 - 5 * node]] = 1
    words[6, 6] = value
    rows = words.tocsr()
    for suffix, chosen in (("x", slice(3)), ("allx", slice(8)), ("tx", slice(8, 12))):
        replace(folder, suffix, rows[chosen])
    return rows.toarray()


def test_few_words_of_many_are_stored_sparse(folder: Path, tmp_path: Path) -> None:
    dense = write_words(folder)
    (folder / "ind.lit.test.index").write_text("8\n9\n10\n11\n")
    by_default, never = (
        convert_to(tmp_path / f"{how}.h5", folder, "planetoid", sparse_features=how)
        for how in ("auto", "never")
    )
    assert (by_default.store.sparse_columns, never.store.sparse_columns) == (400, 0)
    np.testing.assert_array_equal(by_default.nodes.features, dense)
    np.testing.assert_array_equal(never.nodes.features, dense)


def test_a_word_that_is_no_number_is_named(folder: Path, tmp_path: Path) -> None:
    write_words(folder, np.inf)
    (folder / "ind.lit.test.index").write_text("8\n9\n10\n11\n")
    with pytest.raises(InputError, match=r"allx, row 6: the feature in column 7 is inf as float64"):
        convert_to(tmp_path / "out.h5", folder, "planetoid")
