import numpy as np
import pytest

from hpcgnn.comm import RowMap


def test_owner_skips_empty_blocks() -> None:
    row_map = RowMap(np.array([0, 3, 3, 7], np.int64), 2)
    np.testing.assert_array_equal(row_map.owner(np.arange(7)), [0, 0, 0, 2, 2, 2, 2])
    assert (row_map.num_local, row_map.size_of(1), row_map.num_rows) == (4, 0, 7)


def test_local_and_global_are_inverse() -> None:
    row_map = RowMap(np.array([0, 3, 7], np.int64), 1)
    rows = np.array([3, 6], np.int64)
    local = row_map.to_local(rows)
    assert local.dtype == np.int32
    np.testing.assert_array_equal(row_map.to_global(local), rows)


@pytest.mark.parametrize("starts", [[0], [1, 2], [0, 2, 1]])
def test_bad_starts(starts: list[int]) -> None:
    with pytest.raises(ValueError, match="starts"):
        RowMap(np.array(starts, np.int64), 0)
