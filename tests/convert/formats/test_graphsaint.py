"""GraphSAINT folders: several labels, direction, inconsistent files."""

import json
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse

from hpcgnn.convert.formats import graphsaint
from hpcgnn.convert.formats.graphsaint import read_class_map
from hpcgnn.errors import InputError
from tests.support.graph_files import Little, convert_to, csr_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Little().write_graphsaint(tmp_path / "in")


def test_several_labels_a_node(folder: Path, tmp_path: Path) -> None:
    labels = np.random.default_rng(53).integers(0, 2, (12, 4))
    entries = {str(i): row.tolist() for i, row in reversed(list(enumerate(labels)))}
    (folder / "class_map.json").write_text(json.dumps(entries, indent=1))
    found = convert_to(tmp_path / "out.h5", folder, "graphsaint")
    assert (found.store.multi_label, found.store.num_classes) == (True, 4)
    np.testing.assert_array_equal(found.nodes.labels, labels)


def test_a_row_aggregates_from_its_columns(folder: Path, tmp_path: Path) -> None:
    matrix = scipy.sparse.coo_matrix(([1.0], ([3], [7])), shape=(12, 12)).tocsr()
    np.savez(folder / "adj_full.npz", **csr_files(matrix))
    found = convert_to(tmp_path / "out.h5", folder, "graphsaint")
    assert np.argwhere(found.matrix).tolist() == [[3, 7]]


def test_the_training_part_may_be_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "adj_train.npz").unlink()
    convert_to(tmp_path / "out.h5", folder, "graphsaint")


@hypothesis.given(
    labels=st.one_of(
        st.lists(st.integers(0, 9), min_size=1, max_size=20),
        st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=20),
    ),
    indent=st.sampled_from([None, 2]),
    piece=st.integers(1, 40),
)
def test_class_maps_equal_those_of_json(
    tmp_path: Path, labels: list[Any], indent: int | None, piece: int
) -> None:
    path = tmp_path / "class_map.json"
    path.write_text(json.dumps({str(i): label for i, label in enumerate(labels)}, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphsaint, "_PIECE_BYTES", piece)
        assert read_class_map(path, len(labels)).tolist() == labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"0": 1, "1": 2', "or is truncated"),
        ('{"0": 1, "1": ', "or is truncated"),
        ('["0", 1]', "is no object of node ids and labels"),
        ("{}", "is no object of node ids"),
        ("", "is no object of node ids"),
        ('{"0": 1} more', "is no object of node ids"),
        ('{"0": 1, "a": 2}', "the key 'a' is no node id in 0..2"),
        ('{"0": 1, "3": 2}', "the key '3' is no node id in 0..2"),
        ('{"0": 1, "0": 2}', "node 0 occurs twice"),
        ('{"0": -1}', "node 0 has the label '-1'"),
        ('{"0": "1"}', "node 0 has the label"),
        ('{"0": 1.5}', "node 0 has the label '1.5'"),
        ('{"0": NaN}', "node 0 has the label 'NaN'"),
        ('{"0": true}', "node 0 has the label 'true'"),
        ('{"0": [0, 2]}', "node 0 has the label '\\[0, 2\\]'"),
        ('{"0": []}', "node 0 has the label '\\[\\]'"),
        ('{"0": [0, 1], "1": [1]}', "node 1 has labels of shape \\(1,\\) where the first has"),
        ('{"0": [0, 1], "1": 1}', "node 1 has labels of shape"),
        ('{"0": [0, 1], "2": [0, 0]}', "has no entry for node 1"),
    ],
)
def test_faulty_class_maps_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "class_map.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_class_map(path, 3)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (None, "must hold the lists tr, va, "),
        ([0, 1], "'va': node 1 is in train and in valid"),
        ([12], "'tr': 12 is no node id in 0..11"),
        ([-1], "'tr': -1 is no node id in 0..11"),
        ([0.5], "'tr': 0.5 is no node id"),
        ([2**70], "'tr': 1180591620717411303424 is no node id"),
        (0, "'tr' must be a list of node ids"),
        ([3], r"adj_train.npz: has an edge at a node that role.json"),
    ],
)
def test_faulty_roles_are_named(folder: Path, tmp_path: Path, training: Any, message: str) -> None:
    roles = {"tr": training, "va": [1], "te": []}  # codespell:ignore te
    if training is None:
        del roles["tr"]
    (folder / "role.json").write_text(json.dumps(roles))
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "out.h5", folder, "graphsaint")


def test_files_that_do_not_fit_are_named(folder: Path, tmp_path: Path) -> None:
    small = scipy.sparse.csr_matrix((5, 5))
    np.savez(folder / "adj_train.npz", **csr_files(small))
    with pytest.raises(InputError, match=r"adj_train\.npz: has 5 rows and adj_full\.npz has 12"):
        convert_to(tmp_path / "out.h5", folder, "graphsaint")
    (folder / "adj_train.npz").unlink()
    np.save(folder / "feats.npy", np.ones((11, 2)))
    with pytest.raises(InputError, match=r"feats\.npy, row 11: there are only 11 feature rows"):
        convert_to(tmp_path / "out.h5", folder, "graphsaint")
    (folder / "role.json").write_text("{")
    with pytest.raises(InputError, match=r"role\.json: is not valid JSON text"):
        convert_to(tmp_path / "out.h5", folder, "graphsaint")
