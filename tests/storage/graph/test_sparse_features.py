"""Sparse features: the rows as given, for any blocks, ranks and order of the nodes."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import (
    GraphArrays,
    GraphStore,
    SortedRows,
    SparseRows,
    StoreHeader,
    StoreWriter,
    store_from_arrays,
)
from tests.storage.conftest import sign

N, F = 23, 300


def words(dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(31)
    rows = sp.random(N, F, 0.03, "csr", np.float64, rng).toarray().astype(dtype)
    # One node has no word, and one has all.
    rows[4], rows[9] = 0, 1
    return rows


def write(path: Path, features: np.ndarray, *, ones: bool = False) -> None:
    arrays = GraphArrays(
        name="words",
        num_nodes=len(features),
        edges={"": ([0, 1, 5], [1, 2, 0])},
        features=features,
        sparse_features=True,
        labels=np.arange(len(features)) % 3,
        original_id=np.arange(len(features))[::-1] * 2,
    )
    if not ones:
        store_from_arrays(path, arrays)
        return
    header = StoreHeader(name="words", num_nodes=len(features), sparse_columns=F)
    with StoreWriter(path, header) as writer:
        indptr = np.zeros(len(features) + 1, np.int64)
        writer.append_rows(SortedRows(indptr, np.empty(0, np.int64)))
        for low in range(0, len(features), 7):
            rows = SparseRows.of(features[low : low + 7]).to_store(ones=True)
            writer.append_sparse_features(rows)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_written_is_read(tmp_path: Path, dtype: str) -> None:
    features = words(dtype)
    write(tmp_path / "s.h5", features)
    with GraphStore.open(tmp_path / "s.h5") as store:
        store.verify()
        assert store.has_features
        assert (store.num_features, store.sparse_columns, store.feature_dtype) == (F, F, dtype)
        for start, stop in ((0, N), (0, 0), (3, 11), (N, N)):
            read = store.read_nodes(start, stop).features
            assert read is not None
            assert read.dtype == dtype
            np.testing.assert_array_equal(read, features[start:stop])
            rows = store.read_sparse_features(start, stop)
            assert rows.values.dtype == dtype
            assert len(rows.indices) == np.count_nonzero(features[start:stop])
        assert store.relations == ("",)
        assert store.num_edges() == 3
        assert store.read_nodes(0, N, features=False).features is None


def test_values_that_are_one_are_not_stored(tmp_path: Path) -> None:
    features = (words() != 0).astype(np.float32)
    write(tmp_path / "s.h5", features, ones=True)
    with GraphStore.open(tmp_path / "s.h5") as store:
        np.testing.assert_array_equal(store.read_features(0, N), features)
    with h5py.File(tmp_path / "s.h5") as file:
        assert set(file["/nodes/sparse_features"]) == {"indptr", "indices"}
        assert file.attrs["format_version"] == 5


@pytest.mark.parametrize("ones", [False, True])
def test_they_go_with_their_nodes(tmp_path: Path, ones: bool) -> None:
    features = (words() != 0).astype(np.float32) if ones else words("float16")
    write(tmp_path / "s.h5", features, ones=ones)
    rng = np.random.default_rng(4)
    # Parts 1 and 3 are empty.
    part = Partition((rng.integers(0, 3, N) * 2).astype(np.int32), 5)
    with GraphStore.open(tmp_path / "s.h5") as store:
        write_partitioned(store, tmp_path / "p.h5", part, method="block", seed=0)
        first_ids = store.read_original_id(0, N)
    with GraphStore.open(tmp_path / "p.h5") as store:
        store.verify()
        order = np.argsort(first_ids)[np.searchsorted(np.sort(first_ids), ids_of(store))]
        np.testing.assert_array_equal(store.read_features(0, N), features[order])
        assert not np.array_equal(order, np.arange(N))


def ids_of(store: GraphStore) -> np.ndarray:
    return store.read_original_id(0, store.num_nodes)


def test_wrong_rows_are_refused(tmp_path: Path) -> None:
    header = StoreHeader(name="words", num_nodes=2, sparse_columns=4)
    rows = SparseRows.of(np.array([[0, 1, 0, 0, 2]], np.float32)).to_store()
    with (
        pytest.raises(InputError, match=r"sparse_features/indices: column 4 is outside 0..3"),
        StoreWriter(tmp_path / "s.h5", header) as writer,
    ):
        writer.append_sparse_features(rows)
    nan = SparseRows.of(np.array([[0, np.nan, 0, 0]], np.float32)).to_store()
    with (
        pytest.raises(InputError, match=r"sparse_features/features: edge 0 has the value nan"),
        StoreWriter(tmp_path / "s.h5", header) as writer,
    ):
        writer.append_sparse_features(nan)
    with (
        pytest.raises(InputError, match="features: are dense, but the header declares sparse"),
        StoreWriter(tmp_path / "s.h5", header) as writer,
    ):
        writer.append_features(np.ones((2, 4), np.float32))
    with (
        pytest.raises(InputError, match="/nodes/sparse_features: is missing"),
        StoreWriter(tmp_path / "s.h5", header) as writer,
    ):
        writer.append_rows(SortedRows(np.zeros(3, np.int64), np.empty(0, np.int64)))
    with pytest.raises(InputError, match="features of node types are not stored sparse"):
        StoreHeader(name="words", num_nodes=2, sparse_columns=4, node_types=("a",))
    assert not (tmp_path / "s.h5").exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [(0, "attribute columns: is out of range"), (1 << 40, "is out of range")],
)
def test_a_wrong_number_of_columns_is_damage(tmp_path: Path, columns: int, message: str) -> None:
    write(tmp_path / "s.h5", words())
    with h5py.File(tmp_path / "s.h5", "r+") as file:
        file["/nodes/sparse_features"].attrs["columns"] = columns
        sign(file)
    with pytest.raises(StorageFormatError, match=re.escape(message)):
        GraphStore.open(tmp_path / "s.h5")


def test_columns_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    write(tmp_path / "s.h5", words())
    with h5py.File(tmp_path / "s.h5", "r+") as file:
        file["/nodes/sparse_features"].attrs["columns"] = np.int64(F + 1)
    with pytest.raises(StorageFormatError, match="fingerprint"):
        GraphStore.open(tmp_path / "s.h5")
