"""Edge data other than weights: sorted and permuted with the edges; names of any characters."""

from pathlib import Path

import numpy as np
import pytest

from hpcgnn.errors import InputError
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import (
    EdgeBuilder,
    EdgeColumns,
    EdgeData,
    GraphArrays,
    GraphStore,
    SeriesArrays,
    StoreHeader,
    StoreWriter,
    store_from_arrays,
)

NODES = 60
NAMES = (
    "/people/person/nationality",
    "a%2Fb",
    "a/b",
    "100%",
    "indptr",
    "..",
    "größe\u00a0von",
    "%41",
)


def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, EdgeData]:
    src, dst = rng.integers(0, NODES, (2, count))
    features = rng.random((count, 3)).astype(np.float32)
    split, labels = rng.integers(0, 4, count).astype(np.uint8), rng.integers(-1, 3, (count, 1))
    return src, dst, EdgeData(features, split, labels=labels.astype(np.int32))


def entries(store: GraphStore, relation: str = "") -> dict[tuple[int, int], tuple[float, ...]]:
    """The values of each edge by the original ids of its nodes."""
    ids = store.read_original_id(0, NODES)
    block = store.read_adjacency(0, NODES, relation)
    # In two pieces, with their border in the middle of the rows.
    data = [store.read_edge_data(0, 23, relation), store.read_edge_data(23, NODES, relation)]
    features = np.concatenate([each.features for each in data])
    split = np.concatenate([each.split for each in data])
    labels = np.concatenate([each.labels for each in data])
    rows = np.repeat(np.arange(NODES), np.diff(block.indptr))
    weights = np.zeros(len(split)) if block.weights is None else block.weights
    keys = zip(ids[block.indices].tolist(), ids[rows].tolist(), strict=True)
    values = np.column_stack([weights, split, labels, features]).tolist()
    return {key: tuple(each) for key, each in zip(keys, values, strict=True)}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_data_stay_with_their_edges(tmp_path: Path, memory: int, *, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    src, dst, data = draw(rng, 900)
    weights = rng.random(900).astype(np.float32) if weighted else None
    path = tmp_path / "g.h5"
    columns = EdgeColumns.of(data, weighted=weighted)
    names = ("a", "b", "c")
    header = StoreHeader(name="g", num_nodes=NODES, undirected=True, edge_labels=names)
    with (
        StoreWriter(path, header) as writer,
        EdgeBuilder(
            NODES, undirected=True, self_loops="add", columns=columns, memory_bytes=memory
        ) as builder,
    ):
        for part in (slice(0, 400), slice(400, 900)):
            some = None if weights is None else weights[part]
            builder.add(src[part], dst[part], some, data.take(part))
        builder.write(writer)
    expected: dict[tuple[int, int], tuple[float, ...]] = {}
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        weight = 0.0 if weights is None else float(weights[i])
        value = (weight, float(data.split[i]), float(data.labels[i, 0]), *data.features[i].tolist())
        expected.setdefault((a, b), value)
        expected.setdefault((b, a), value)
    for i in range(NODES):
        expected.setdefault((i, i), (float(weighted), 0.0, -1.0, 0.0, 0.0, 0.0))
    with GraphStore.open(path) as store:
        assert entries(store) == expected
        assert store.edge_features() == (3, np.dtype(np.float32))
        assert store.has_edge_split()
        assert store.labels_of_edges() == (1, np.dtype(np.int32))
        assert store.edge_labels == names
        part = Partition(rng.integers(0, 4, NODES).astype(np.int32), 4)
        write_partitioned(store, tmp_path / "p.h5", part, method="random", seed=0)
    with GraphStore.open(tmp_path / "p.h5") as store:
        assert entries(store) == expected
        store.verify()


def test_sums_of_duplicates_are_refused_for_data() -> None:
    with pytest.raises(InputError, match="a split or labels cannot be summed"):
        EdgeBuilder(3, duplicates="sum", columns=EdgeColumns(split=True))


def test_names_have_any_characters(tmp_path: Path) -> None:
    path = tmp_path / "g.h5"
    edges = {name: (np.array([i]), np.array([i + 1])) for i, name in enumerate(NAMES)}
    types = {name: np.full((1, 2), i) / 2 for i, name in enumerate(NAMES)}
    store_from_arrays(
        path,
        GraphArrays(
            name="g",
            num_nodes=len(NAMES) + 1,
            edges=edges,
            types=[*range(len(NAMES)), 0],
            type_features={**types, NAMES[0]: np.zeros((2, 2))},
        ),
    )
    with GraphStore.open(path) as store:
        assert store.relations == NAMES
        assert tuple(each.name for each in store.node_types) == NAMES
        for i, name in enumerate(NAMES):
            assert store.read_adjacency(0, store.num_nodes, name).indices.tolist() == [i]
        features = store.read_nodes(0, store.num_nodes).type_features
        assert [each[0, 0] for each in features[1:]] == [i / 2 for i in range(1, len(NAMES))]
        store.verify()


def test_damaged_data_are_named(tmp_path: Path) -> None:
    split = np.array([1, 4], np.uint8)
    features = np.array([[1.0], [np.nan]])
    for data, message in (
        (EdgeData(split=split), r"/adjacency/split: edge 1 has the split value 4"),
        (EdgeData(features), r"/adjacency/features: edge 1 has the value nan"),
    ):
        with pytest.raises(InputError, match=message):
            store_from_arrays(
                tmp_path / "g.h5",
                GraphArrays(
                    name="g",
                    num_nodes=3,
                    edges={"": (np.array([0, 1]), np.array([1, 2]))},
                    edge_data={"": data},
                ),
            )


@pytest.mark.parametrize(
    ("relation", "data", "message"),
    [
        ("", EdgeData(np.ones((9, 2))), r"\[''\].features: has shape \(9, 2\); .* \(4, columns\)"),
        ("", EdgeData(np.ones((4, 2)), labels=np.ones((1, 1), np.int32)), r"labels: .* \(1, 1\)"),
        ("", EdgeData(labels=np.ones(4, np.int32)), r"labels: has shape \(4,\); .* \(4, columns\)"),
        ("", EdgeData(split=np.ones(5, np.uint8)), r"split: has shape \(5,\); .* need \(4,\)"),
        ("owes", EdgeData(np.ones((4, 1))), r"\['owes'\].features: there is no such relation"),
    ],
)
def test_data_of_other_edges_are_refused(
    tmp_path: Path, relation: str, data: EdgeData, message: str
) -> None:
    # More rows than edges were cut off, and one row was the data of all edges.
    edges = {"": ([0, 1, 2, 0], [1, 2, 0, 2])}
    graph = GraphArrays(name="g", num_nodes=3, edges=edges, edge_data={relation: data})
    with pytest.raises(InputError, match=message):
        store_from_arrays(tmp_path / "g.h5", graph)


def test_values_of_other_edges_are_refused(tmp_path: Path) -> None:
    series = SeriesArrays([0.0], [0, 1], {}, {"flow": np.ones((1, 3, 1))})
    graph = GraphArrays(name="g", num_nodes=2, edges={"": ([0, 1], [1, 0])}, series=series)
    with pytest.raises(InputError, match=r"edge_values\['flow'\]: has shape \(3, 1\)"):
        store_from_arrays(tmp_path / "g.h5", graph)
