"""Which ranks a plan rehearses."""

import numpy as np
import pytest

from hpcgnn.errors import InputError
from hpcgnn.plan.candidates import _largest
from hpcgnn.plan.traffic import ALL, Traffic


def traffic(entries: list[int]) -> dict[tuple[int | None, str], Traffic]:
    none = np.zeros((len(entries), len(entries)), np.int64)
    sums = np.zeros((2, 2, len(entries), 1, 1), np.int64)
    return {ALL: Traffic(none, none, sums, np.array(entries), 40, 40)}


@pytest.mark.parametrize(
    ("starts", "entries", "expected"),
    [
        ([0, 10, 40], [90, 10], [0, 1]),
        ([0, 10, 40], [10, 90], [1]),
        # The largest ones of those that train.
        ([0, 10, 12, 40], [5, 50, 90], [1, 0]),
        ([0, 12, 12, 40], [5, 50, 90], [0]),
    ],
)
def test_the_busiest_by_products_and_by_rows(
    starts: list[int], entries: list[int], expected: list[int]
) -> None:
    trains = np.minimum(np.diff(starts), [12, 2, 0][: len(entries)] if len(starts) == 4 else 40)
    assert _largest(traffic(entries), trains, np.diff(starts)) == expected


def test_no_rank_trains() -> None:
    with pytest.raises(InputError, match="no labelled node is in the training split"):
        _largest(traffic([1, 2]), np.zeros(2, np.int64), np.array([20, 20]))
