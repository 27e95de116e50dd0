import numpy as np
import pytest

from hpcgnn.comm.row_map import distinct, numbered
from hpcgnn.kernels import distinct_numbers, renumber


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("limit", [1, 63, 64, 65, 1000, 10**6])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_numbers_and_their_places(dtype: type, limit: int, size: int) -> None:
    rng = np.random.default_rng(limit + size)
    values = np.append(rng.integers(limit, size=size), [0, limit - 1][: size and 2]).astype(dtype)
    names, places = np.unique(values, return_inverse=True)
    numbers = rng.permutation(len(names)).astype(np.int32)
    # By a bitmap, and by the function that chooses between this and sorting.
    for found in (distinct_numbers(values, limit), distinct(values, limit)):
        assert found.dtype == dtype
        assert np.array_equal(found, names)
    out = np.empty(len(values), np.int32)
    renumber(names, numbers, values, out)
    assert np.array_equal(out, numbers[places])
    assert np.array_equal(numbered(names, numbers, values), numbers[places])


def test_places_may_be_written_over_the_values() -> None:
    values = np.array([40, 7, 40, 9], np.int32)
    names, numbers = np.array([7, 9, 40]), np.array([2, 0, 1], np.int32)
    assert numbered(names, numbers, values, values) is values
    assert values.tolist() == [1, 2, 1, 0]


@pytest.mark.parametrize("value", [-1, 10, 64])
def test_numbers_out_of_range(value: int) -> None:
    values = np.array([3, value])
    with pytest.raises(ValueError, match="out of range"):
        distinct_numbers(values, 10)
    out = np.empty(2, np.int32)
    with pytest.raises(ValueError, match="not among the names"):
        renumber(np.array([3, 9]), np.zeros(2, np.int32), values, out)
    with pytest.raises(ValueError, match="distinct"):
        renumber(np.array([3, 3]), np.zeros(2, np.int32), np.array([3, 3]), out)
