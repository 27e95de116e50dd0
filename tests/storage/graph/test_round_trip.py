"""Graphs of any shape are read as they were written, for any division into blocks."""

import itertools
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis.extra import numpy as hnp

from hpcgnn.storage import (
    GraphStore,
    SortedRows,
    StoreHeader,
    StoreWriter,
)
from hpcgnn.storage import format as store_format


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """A random typed or untyped graph with any selection of node data."""
    n = draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    names = draw(st.sampled_from([("",), ("b", "a"), ("zitiert ü", "index", "x.y")]))
    relations = {}
    for name in names:
        density = draw(st.sampled_from([0.0, 0.2, 1.0]))
        matrix = sp.random(n, n, density, "csr", np.float32, rng, None)
        matrix.sort_indices()
        relations[name] = (matrix, draw(st.booleans()))
    classes = draw(st.integers(0, 3))
    multi = classes > 0 and draw(st.booleans())
    labels: Any = None
    if classes:
        labels = rng.integers(0, 2, (n, classes)) if multi else rng.integers(-1, classes, n)
    dtype = draw(st.sampled_from([None, np.float16, np.float32, np.float64]))
    return {
        "n": n,
        "relations": relations,
        "classes": classes,
        "multi": multi,
        "labels": labels,
        "features": None
        if dtype is None
        else rng.random((n, draw(st.integers(1, 4)))).astype(dtype),
        "split": rng.integers(0, 4, n) if draw(st.booleans()) else None,
        "ids": rng.permutation(n) + 100 if draw(st.booleans()) else None,
        "row_starts": draw(st.none() | st.just([0, n // 2, n // 2, n])),
    }


def write(path: Path, graph: dict[str, Any], cuts: list[int]) -> None:
    header = StoreHeader(
        name="g",
        num_nodes=graph["n"],
        num_classes=graph["classes"],
        multi_label=graph["multi"],
        provenance={"cuts": cuts},
    )
    with StoreWriter(path, header) as writer:
        for low, high in itertools.pairwise(cuts):
            for name, (matrix, weighted) in graph["relations"].items():
                rows = matrix[low:high]
                weights = rows.data if weighted else None
                writer.append_rows(SortedRows(rows.indptr, rows.indices, weights), name)
            for append, array in (
                (writer.append_features, graph["features"]),
                (writer.append_labels, graph["labels"]),
                (writer.append_split, graph["split"]),
                (writer.append_original_id, graph["ids"]),
            ):
                if array is not None:
                    append(array[low:high])
        if graph["row_starts"] is not None:
            writer.set_partition(graph["row_starts"], "random", 7, {"edge_cut": 2})


def assert_equal_or_none(actual: Any, expected: Any) -> None:
    if expected is None:
        assert actual is None
    else:
        np.testing.assert_array_equal(actual, expected)


@given(graph=graphs(), data=st.data(), chunk_bytes=st.sampled_from([8, 24, 1 << 20]))
def test_round_trip(
    graph: dict[str, Any],
    data: st.DataObject,
    chunk_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("trip") / "g.h5"
    n = graph["n"]
    rows = st.integers(0, n)
    cuts = sorted([0, n, *data.draw(st.lists(rows, max_size=3))])
    low, high = sorted([data.draw(rows), data.draw(rows)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_format, "CHUNK_BYTES", chunk_bytes)
        write(path, graph, cuts)
    with GraphStore.open(path) as store:
        assert store.relations == tuple(graph["relations"])
        assert store.provenance == {"cuts": cuts}
        for name, (matrix, weighted) in graph["relations"].items():
            block = store.read_adjacency(low, high, name)
            expected = matrix[low:high]
            np.testing.assert_array_equal(block.indptr, expected.indptr)
            np.testing.assert_array_equal(block.indices, expected.indices)
            assert_equal_or_none(block.weights, expected.data if weighted else None)
            np.testing.assert_array_equal(store.read_indptr(low, high, name), expected.indptr)
            assert store.weighted(name) == weighted
            assert store.num_edges(name) == matrix.nnz
        nodes = store.read_nodes(low, high)
        for found, key in ((nodes.features, "features"), (nodes.labels, "labels")):
            assert_equal_or_none(found, None if graph[key] is None else graph[key][low:high])
        assert_equal_or_none(
            nodes.split, None if graph["split"] is None else graph["split"][low:high]
        )
        ids = np.arange(n) if graph["ids"] is None else graph["ids"]
        np.testing.assert_array_equal(nodes.original_id, ids[low:high])
        np.testing.assert_array_equal(store.row_starts, graph["row_starts"] or [0, n])
        store.verify()


def test_properties(plain_store: Path, typed_store: Path) -> None:
    with GraphStore.open(plain_store) as store:
        assert (store.name, store.num_nodes) == ("plain", 5)
        assert (store.num_features, store.num_classes) == (3, 3)
        assert store.class_names == ("red", "green", "blue")
        assert store.feature_dtype == np.float32
        assert store.has_features
        assert store.has_labels
        assert store.has_split
        assert not store.undirected
        assert (store.num_parts, store.partition_info) == (1, {})
        dense = store.read_adjacency(0, 5).to_scipy(5).toarray()
        assert dense[1, 0] == 0.5
        assert dense[2].tolist() == [0, 1.0, 0, 4.0, 0]
    with GraphStore.open(typed_store) as store:
        assert store.relations == ("writes", "cites", "empty")
        assert store.num_edges() == 3
        assert store.num_edges("empty") == 0
        assert (store.num_features, store.feature_dtype) == (0, None)
        assert not any((store.has_features, store.has_labels, store.has_split))
        assert store.read_adjacency(2, 4, "writes").to_scipy(4).toarray().tolist() == [
            [1, 0, 0, 0],
            [0, 1, 0, 0],
        ]
        with pytest.raises(KeyError, match="no relation 'x'; it has 'writes', 'cites', 'empty'"):
            store.read_adjacency(0, 4, "x")
        with pytest.raises(ValueError, match="rows 2 to 5 are not within 0 to 4"):
            store.read_nodes(2, 5)


def test_fingerprint_tells_contents_apart(tmp_path: Path) -> None:
    def fingerprint(name: str, columns: list[int], **fields: Any) -> str:
        path = tmp_path / f"{name}.h5"
        with StoreWriter(path, StoreHeader(name=name, num_nodes=2, **fields)) as writer:
            writer.append_rows(SortedRows(np.array([0, 1, 2]), columns))
        with GraphStore.open(path) as store:
            return store.fingerprint

    base = fingerprint("a", [0, 1])
    assert fingerprint("b", [0, 1], provenance={"command": "x"}) == base
    assert fingerprint("c", [1, 1]) != base
    assert fingerprint("d", [0, 1], undirected=True) != base


def test_part_edges(tmp_path: Path) -> None:
    path = tmp_path / "parts.h5"
    with StoreWriter(path, StoreHeader(name="p", num_nodes=4)) as writer:
        writer.append_rows(SortedRows(np.array([0, 2, 2, 3, 4]), np.array([0, 1, 2, 3])), "a")
        writer.append_rows(SortedRows(np.array([0, 0, 1, 1, 1]), np.array([3])), "b")
        writer.set_partition([0, 1, 1, 4], "block", 0, {})
    with GraphStore.open(path) as store:
        assert store.part_edges().tolist() == [2, 0, 3]
        assert store.part_edges(("a",)).tolist() == [2, 0, 2]


@given(array=hnp.arrays(np.int64, hnp.array_shapes(max_dims=1, max_side=40)))
def test_rows_in_any_pieces(array: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ids") / "ids.h5"
    n = len(array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_format, "CHUNK_BYTES", 56)
        with StoreWriter(path, StoreHeader(name="ids", num_nodes=n)) as writer:
            writer.append_rows(SortedRows(np.zeros(n + 1, int), np.empty(0, np.int64)))
            for low in range(0, n, 9):
                writer.append_original_id(array[low : low + 9])
    with GraphStore.open(path) as store:
        np.testing.assert_array_equal(store.read_nodes(0, n).original_id, array)
