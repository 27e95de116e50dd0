import numpy as np
import pytest

from hpcgnn import gallery
from hpcgnn.storage import Split


def test_edges_join_the_types_of_their_relation() -> None:
    graph = gallery.planted_types(300, 4, 6, 17)
    names = list(graph.type_features)
    ends = {
        relation: {(names[graph.types[i]], names[graph.types[j]]) for i, j in zip(*edges)}  # noqa: B905
        for relation, edges in graph.edges.items()
    }
    assert ends == {
        "follows": {("item", "item")},
        "rates": {("user", "item")},
        "tagged": {("item", "tag")},
        "knows": {("user", "user")},
    }
    pairs = {(i, j) for edges in graph.edges.values() for i, j in zip(*edges)}  # noqa: B905
    assert len(pairs) == graph.src.size
    assert not pairs & {(j, i) for i, j in pairs}


def test_items_alone_have_labels_and_a_split() -> None:
    graph = gallery.planted_types(300, 4, 6, 17)
    items = graph.types == 0
    assert set(graph.labels[items]) == {0, 1, 2, 3}
    assert set(graph.labels[~items]) == {-1}
    assert np.all(graph.split[items] != Split.NONE)
    assert np.all(graph.split[~items] == Split.NONE)
    shapes = {k: None if x is None else x.shape for k, x in graph.type_features.items()}
    assert shapes == {"item": (150, 6), "user": (105, 4), "tag": None}


def test_seeds_decide() -> None:
    first, second = gallery.planted_types(90, 3, 5, 4), gallery.planted_types(90, 3, 5, 4)
    other = gallery.planted_types(90, 3, 5, 6)
    assert np.array_equal(first.src, second.src)
    assert np.array_equal(first.type_features["user"], second.type_features["user"])
    assert not np.array_equal(first.type_features["user"], other.type_features["user"])


@pytest.mark.parametrize("num_nodes", [1, 2, 7])
def test_few_nodes(num_nodes: int) -> None:
    graph = gallery.planted_types(num_nodes, 3, 2, 1)
    assert graph.types.size == num_nodes
    assert graph.labels[0] == 0


def test_users_and_tags_tell_of_items() -> None:
    graph = gallery.planted_types(4000, 8, 16, 5)
    A = graph.to_scipy() + graph.to_scipy().T
    train = graph.split == Split.TRAIN
    known = np.zeros((4000, 8))
    known[train, graph.labels[train]] = 1
    through = A @ (A @ known)
    test = graph.split == Split.TEST
    assert np.mean(through.argmax(axis=1)[test] == graph.labels[test]) > 0.7
