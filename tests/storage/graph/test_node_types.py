"""Node types are read as they were written, in any blocks; invalid ones are refused."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage import (
    GraphArrays,
    GraphStore,
    NodeType,
    SortedRows,
    StoreHeader,
    StoreWriter,
    store_from_arrays,
)
from hpcgnn.storage import format as store_format
from hpcgnn.storage.graph import schema
from tests.support.store_changes import assign, remove, replace

TYPES = np.array([2, 0, 0, 2, 0, 3, 2])
NAMES = ("paper", "author", "field", "ü.x")


def write_small(path: Path) -> None:
    """Seven nodes of four types: one without nodes, one without features, one of a single node."""
    store_from_arrays(
        path,
        GraphArrays(
            name="small",
            num_nodes=7,
            edges={"writes": ([0, 1], [2, 3]), "cites": ([3], [2])},
            types=TYPES,
            type_features={
                "paper": np.arange(6, dtype=np.float32).reshape(3, 2),
                "author": np.empty((0, 5), np.float64),
                "field": None,
                "ü.x": np.array([[7, 8, 9]], np.float16),
            },
            labels=[-1, 0, 1, -1, 1, -1, -1],
        ),
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.h5"
    write_small(path)
    return path


def test_properties(small: Path) -> None:
    with GraphStore.open(small) as store:
        assert store.node_types == (
            NodeType("paper", 3, 2, np.dtype("<f4")),
            NodeType("author", 0, 5, np.dtype("<f8")),
            NodeType("field", 3, 0, None),
            NodeType("ü.x", 1, 3, np.dtype("<f2")),
        )
        assert store.has_features
        assert (store.num_features, store.feature_dtype) == (0, None)
        store.verify()
        nodes = store.read_nodes(1, 6)
        assert nodes.features is None
        assert nodes.types.dtype == np.uint8
        assert nodes.types.tolist() == store.read_types(1, 6).tolist() == [0, 0, 2, 0, 3]
        assert [each.shape for each in nodes.type_features] == [(3, 2), (0, 5), (1, 0), (1, 3)]
        assert nodes.type_features[0].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert store.read_nodes(5, 6).type_features[0].shape == (0, 2)
        assert store.read_nodes(4, 5).type_features[0].tolist() == [[4, 5]]
        assert [len(each) for each in store.read_nodes(3, 3).type_features] == [0, 0, 0, 0]


def test_a_graph_without_types(plain_store: Path) -> None:
    with h5py.File(plain_store) as file:
        assert file.attrs["format_version"] == 1
    with GraphStore.open(plain_store) as store:
        assert store.node_types == ()
        assert store.read_types(0, 5) is None
        nodes = store.read_nodes(0, 5)
        assert nodes.types is None
        assert nodes.type_features == ()


def test_no_type_has_features(tmp_path: Path) -> None:
    path = tmp_path / "bare.h5"
    store_from_arrays(
        path, GraphArrays(name="bare", num_nodes=3, edges={"": ([0], [1])}, types=[0, 0, 0],
        type_features={"only": None},
    ))  # fmt: skip
    with GraphStore.open(path) as store:
        assert not store.has_features
        assert store.node_types == (NodeType("only", 3, 0, None),)
        assert store.read_nodes(0, 3).type_features[0].shape == (3, 0)


@given(data=st.data(), chunk_bytes=st.sampled_from([8, 24, 1 << 20]))
def test_round_trip(
    data: st.DataObject, chunk_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("types") / "g.h5"
    n, num_types = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    types = rng.integers(0, num_types, n)
    names = tuple(f"t{number}" for number in range(num_types))
    widths = [data.draw(st.integers(0, 3)) for _ in names]
    dtypes = [data.draw(st.sampled_from(schema.FEATURE_DTYPES)) for _ in names]
    matrices = [
        rng.random((np.count_nonzero(types == t), widths[t])).astype(dtypes[t])
        for t in range(num_types)
    ]
    rows = st.integers(0, n)
    cuts = sorted([0, n, *data.draw(st.lists(rows, max_size=3))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_format, "CHUNK_BYTES", chunk_bytes)
        with StoreWriter(path, StoreHeader(name="g", num_nodes=n, node_types=names)) as writer:
            writer.append_rows(SortedRows(np.zeros(n + 1, int), np.empty(0, np.int64)))
            for low, high in itertools.pairwise(cuts):
                writer.append_types(types[low:high])
                for t, name in enumerate(names):
                    before, after = (int(np.count_nonzero(types[:end] == t)) for end in (low, high))
                    if widths[t]:
                        writer.append_type_features(name, matrices[t][before:after])
    low, high = sorted([data.draw(rows), data.draw(rows)])
    with GraphStore.open(path) as store:
        store.verify()
        for each, matrix, dtype in zip(store.node_types, matrices, dtypes, strict=True):
            assert (each.num_nodes, each.num_features) == matrix.shape
            assert each.dtype == (dtype if matrix.shape[1] else None)
        nodes = store.read_nodes(low, high)
        np.testing.assert_array_equal(nodes.types, types[low:high])
        for t, block in enumerate(nodes.type_features):
            expected = matrices[t][np.count_nonzero(types[:low] == t) :][: len(block)]
            assert len(block) == np.count_nonzero(types[low:high] == t)
            np.testing.assert_array_equal(block, expected)


def test_fingerprint_tells_types_apart(tmp_path: Path) -> None:
    def fingerprint(types: list[int], features: dict[str, Any]) -> str:
        path = tmp_path / "g.h5"
        store_from_arrays(
            path,
            GraphArrays(
                name="g", num_nodes=3, edges={"": ([0], [1])}, types=types, type_features=features
            ),
        )
        with GraphStore.open(path) as store:
            return store.fingerprint

    eye = np.eye(2)
    base = fingerprint([0, 1, 0], {"a": eye, "b": None})
    assert fingerprint([0, 1, 0], {"a": eye, "b": None}) == base
    assert fingerprint([0, 0, 1], {"a": eye, "b": None}) != base
    assert fingerprint([0, 1, 0], {"a": eye, "c": None}) != base
    assert fingerprint([0, 1, 0], {"a": eye[::-1], "b": None}) != base
    assert fingerprint([0, 1, 0], {"a": eye, "b": None, "c": None}) != base


def test_as_many_types_as_can_be_stored(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(257)]
    with pytest.raises(InputError, match="has 257 node types; at most 256 can be stored"):
        StoreHeader(name="g", num_nodes=3, node_types=tuple(names))
    path = tmp_path / "g.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="g",
            num_nodes=256,
            edges={"": ([0], [1])},
            types=np.arange(256)[::-1],
            type_features={name: np.full((1, 1), 0.5) for name in names[:256]},
        ),
    )
    with GraphStore.open(path) as store:
        assert store.read_nodes(255, 256).types.tolist() == [0]
        assert len(store.node_types) == 256


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a"), "a node type is named twice"),
        (("",), "node type '' is empty"),
        (("a\n",), "unprintable"),
        (("x" * 1001,), "cannot be stored"),
    ],
)
def test_refused_names(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StoreHeader(name="g", num_nodes=3, node_types=names)


Step = Callable[[StoreWriter], None]


def types(block: Any) -> Step:
    return lambda writer: writer.append_types(block)


def features(name: str, block: Any) -> Step:
    return lambda writer: writer.append_type_features(name, block)


REFUSED: list[tuple[tuple[str, ...], list[Step], str]] = [
    (("a", "b"), [], "/nodes/type: is missing, but the graph has node types"),
    (("a", "b"), [types([0, 1])], "/nodes/type: has 2 rows for 3 nodes"),
    (("a", "b"), [types([0, 1, 0, 1])], "/nodes/type: has at least 4 rows for 3 nodes"),
    (("a", "b"), [types([0, 1, 2])], "node 2 has the type 2, outside 0..1"),
    (("a", "b"), [types([0, -1, 2])], "node 1 has the type -1, outside 0..1"),
    (("a", "b"), [types([0, 256, 0])], "node 1 has the type 256, outside 0..1"),
    (("a", "b"), [types([0.0, 1.0, 0.0])], "/nodes/type: has shape (3,) and type float64"),
    ((), [types([0, 0, 0])], "/nodes/type: is given for a graph without node types"),
    ((), [features("a", np.eye(3))], "there is no node type 'a'; known: none"),
    (("a", "b"), [features("c", np.eye(3))], "there is no node type 'c'; known: 'a', 'b'"),
    (
        ("a", "b"),
        [types([0, 1, 0]), features("a", np.eye(3))],
        "/nodes/features/a: has 3 rows for 2 nodes of type 'a'",
    ),
    (("a", "b"), [features("b", np.ones((2, 0)))], "/nodes/features/b: has shape (2, 0)"),
    (("a", "b"), [features("b", [[np.nan]])], "/nodes/features/b: node 0 has the value nan"),
    (("a",), [lambda w: w.append_features(np.eye(3))], "the graph has node types; give each"),
]


@pytest.mark.parametrize(("names", "steps", "message"), REFUSED)
def test_refused(names: tuple[str, ...], steps: list[Step], message: str, tmp_path: Path) -> None:
    path = tmp_path / "g.h5"

    def write() -> None:
        header = StoreHeader(name="g", num_nodes=3, node_types=names)
        with StoreWriter(path, header) as writer:
            writer.append_rows(SortedRows(np.array([0, 0, 0, 0]), np.empty(0, np.int64)))
            for step in steps:
                step(writer)

    with pytest.raises(InputError) as caught:
        write()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def untyped(file: h5py.File) -> None:
    file.attrs["format_version"] = 1


FORGERIES: list[tuple[Callable[[h5py.File], None], str]] = [
    (remove("node_types"), "/node_types: is missing"),
    (remove("node_types/names"), "/node_types/names: is missing"),
    (remove("node_types/counts"), "/node_types/counts: is missing"),
    (remove("nodes/type"), "/nodes/type: is missing"),
    (remove("nodes/type_row"), "/nodes/type_row: is missing"),
    (assign("node_types/counts", 0, 4), "/node_types/counts: does not add up to the 7 nodes"),
    (assign("node_types/counts", slice(0, 2), [-1, 4]), "/node_types/counts: does not add up"),
    (assign("node_types/names", 1, b"paper"), "/node_types/names: are not different names"),
    (assign("nodes/type", 3, 4), "/nodes/type: node 3 has the type 4, outside 0..3"),
    (assign("nodes/type", 3, 0), "/nodes/type_row: node "),
    (assign("nodes/type_row", 3, 0), "node 3 is not in the row after its type's previous node"),
    (assign("nodes/type_row", 5, 1), "node 5 has row 1, which its type does not have"),
    (assign("nodes/type_row", 1, -1), "node 1 has row -1, which its type does not have"),
    (assign("nodes/features/paper", (1, 1), np.inf), "node 1 has the value inf in column 1"),
    (replace("nodes/features/paper", np.ones((4, 2), "<f4")), "/nodes/features/paper: has shape"),
    (replace("nodes/features/paper", np.ones((3, 2), int)), "paper: has type int64"),
    (replace("nodes/features", np.ones((7, 2), "<f4")), "/nodes/features: is not a group"),
    (replace("nodes/type", np.zeros(7, int)), "/nodes/type: has type int64, not uint8"),
    (untyped, "/nodes/features: is not a dataset"),
]


@pytest.mark.parametrize(("change", "message"), FORGERIES, ids=[case[1] for case in FORGERIES])
def test_forged(
    change: Callable[[h5py.File], None],
    message: str,
    small: Path,
    forge: Callable[..., None],
    read_all: Callable[[Path], None],
) -> None:
    forge(small, change)
    with pytest.raises(StorageFormatError) as caught:
        read_all(small)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_of_another_type_break_the_fingerprint(small: Path) -> None:
    with h5py.File(small, "r+") as file:
        del file["nodes/features/author"]
    with pytest.raises(StorageFormatError, match="fingerprint"):
        GraphStore.open(small)
