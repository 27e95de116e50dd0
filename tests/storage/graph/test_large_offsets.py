"""Rows that begin beyond 2^32 non-zeros: the file claims them, but holds only a few."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcgnn.storage import GraphArrays, GraphStore, members, store_from_arrays


def test_rows_beyond_2_to_the_33(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.h5"
    rows = np.repeat([2, 5, 6], [3, 1, 2])
    columns = np.array([0, 4, 6, 1, 2, 3])
    store_from_arrays(path, GraphArrays(name="small", num_nodes=8, edges={"": (columns, rows)}))
    with GraphStore.open(path) as store:
        recorded = store.fingerprint
    gap = 1 << 33
    with h5py.File(path, "r+") as file:
        adjacency = file["adjacency"]
        indptr, indices = adjacency["indptr"], adjacency["indices"]
        # Row 4 seems to contain the gap; chunks that are never written take no space.
        indptr[5:] = indptr[5:] + gap
        attributes = dict(indices.attrs)
        kept, kind = indices[:], indices.dtype
        del adjacency["indices"]
        options = {"chunks": (1 << 17,), "fletcher32": True, "maxshape": (None,)}
        wide = adjacency.create_dataset("indices", (gap + 6,), kind, **options)
        wide.attrs.update(attributes)
        wide[:3], wide[gap + 3 :] = kept[:3], kept[3:]
    assert path.stat().st_size < 1 << 26
    monkeypatch.setattr(members, "fingerprint", lambda *_: recorded)
    monkeypatch.setattr(members, "is_stored", lambda _: True)
    with GraphStore.open(path) as store:
        assert store.num_edges() == gap + 6
        assert [store.num_edges_before(row) for row in (4, 5, 8)] == [3, gap + 3, gap + 6]
        block = store.read_adjacency(5, 8)
        np.testing.assert_array_equal(block.indptr, [0, 1, 3, 3])
        np.testing.assert_array_equal(block.indices, [1, 2, 3])
        np.testing.assert_array_equal(store.read_indptr(2, 4), [0, 3, 3])
