"""Parts over ranks: contiguous, at least one for each rank, and no split is better."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hpcgnn.errors import InputError
from hpcgnn.storage import assign_parts


def best_by_trying(weights: list[int], ranks: int) -> int:
    parts = len(weights)
    return min(
        max(sum(weights[a:b]) for a, b in itertools.pairwise((0, *cut, parts)))
        for cut in itertools.combinations(range(1, parts), ranks - 1)
    )


@given(weights=st.lists(st.integers(0, 9), min_size=1, max_size=8), data=st.data())
def test_is_optimal(weights: list[int], data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, len(weights)))
    # One row in each part, so that row boundaries are part boundaries.
    bounds = assign_parts(np.arange(len(weights) + 1), weights, ranks)
    assert bounds.dtype == np.int64
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(weights), ranks + 1)
    assert np.all(np.diff(bounds) >= 1)
    heaviest = max(sum(weights[a:b]) for a, b in itertools.pairwise(bounds))
    assert heaviest == best_by_trying(weights, ranks)


def test_returns_row_boundaries() -> None:
    assert assign_parts([0, 10, 10, 25, 40], [5, 0, 5, 5], 2).tolist() == [0, 25, 40]
    assert assign_parts([0, 10, 10, 25, 40], [5, 0, 5, 5], 4).tolist() == [0, 10, 10, 25, 40]


def test_weights_past_int32() -> None:
    weights = np.full(3, 2**40)
    assert assign_parts([0, 1, 2, 3], weights, 2).tolist() == [0, 2, 3]


def test_more_ranks_than_parts() -> None:
    with pytest.raises(
        InputError, match=r"has 2 parts, too few for 3 ranks.*hpcgnn partition .*--parts 3"
    ):
        assign_parts([0, 1, 2], [1, 1], 3)


@pytest.mark.parametrize(
    ("row_starts", "weights", "ranks"), [([0, 1], [1, 1], 1), ([0], [], 1), ([0, 1], [1], 0)]
)
def test_arguments_that_do_not_fit(row_starts: list[int], weights: list[int], ranks: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        assign_parts(row_starts, weights, ranks)
