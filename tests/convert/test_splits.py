"""Random splits: sizes, classes, and impossible requests."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from hpcgnn.convert.splits import parse_shares, random_split
from hpcgnn.errors import InputError
from hpcgnn.storage import Split


@hypothesis.given(
    labels=st.lists(st.integers(-1, 3), min_size=8, max_size=60),
    shares=st.tuples(st.integers(30, 60), st.integers(0, 20), st.integers(0, 20)),
    seed=st.integers(0, 9),
)
def test_shares_are_those_of_the_nodes_with_labels(
    labels: list[int], shares: tuple[int, int, int], seed: int
) -> None:
    known = sum(label >= 0 for label in labels)
    hypothesis.assume(known >= 4)
    split = random_split(np.array(labels), len(labels), shares, seed=seed)
    assert (split[np.array(labels) < 0] == Split.NONE).all()
    for part, share in zip((Split.TRAIN, Split.VALID, Split.TEST), shares, strict=True):
        assert abs((split == part).sum() - share * known / 100) <= 1
    assert abs((split > 0).sum() - sum(shares) * known / 100) <= 0.5
    np.testing.assert_array_equal(
        split, random_split(np.array(labels), len(labels), shares, seed=seed)
    )


def test_percentages_of_100_are_not_refused_for_their_rounding() -> None:
    shares = parse_shares("0.2,83.9,15.9")
    assert sum(shares) > 100
    assert (random_split(None, 1000, shares) != Split.NONE).all()


def test_each_class_trains_with_as_many_nodes() -> None:
    labels = np.repeat([0, 1, 2, -1], [5, 9, 20, 6])
    split = random_split(labels, 40, (0, 20, 30), seed=2, per_class=4)
    assert np.bincount(labels[split == Split.TRAIN]).tolist() == [4, 4, 4]
    assert np.bincount(split).tolist() == [40 - 12 - 17, 12, 7, 10]


def test_of_several_labels_a_node_needs_one() -> None:
    labels = np.array([[0, 0], [1, 0], [1, 1], [0, 0], [0, 1], [1, 0]], np.uint8)
    split = random_split(labels, 6, (50, 25, 25))
    assert split[[0, 3]].tolist() == [Split.NONE, Split.NONE]
    assert np.bincount(split).tolist() == [2, 2, 1, 1]


def test_a_graph_without_labels_is_split_as_a_whole() -> None:
    assert np.bincount(random_split(None, 10, (50, 30, 20))).tolist() == [0, 5, 3, 2]


@pytest.mark.parametrize(
    ("labels", "per_class", "message"),
    [
        (None, 2, "needs one label a node"),
        (np.eye(4, dtype=np.uint8), 2, "needs one label a node"),
        (np.array([0, 0, 0, 1]), 2, "class 1 has 1 nodes with labels"),
        (np.array([0, 0, 1, 1]), 0, "--per-class 0: give at least 1"),
        (np.array([0, 0, 1, 1]), 2, "leaves 0 nodes, and validation and test need 2"),
    ],
)
def test_what_cannot_be_drawn_is_named(labels: object, per_class: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_split(labels, 4, (50, 25, 25), per_class=per_class)  # type: ignore[arg-type]
