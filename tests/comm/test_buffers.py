"""Lent memory returns by itself, and is counted while it is lent."""

import numpy as np
import pytest

from hpcgnn.comm.buffers import BufferPool


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (7, 0), (1000, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
def test_arrays_are_as_asked_for(shape: tuple[int, int], dtype: type) -> None:
    pool = BufferPool()
    for _ in range(3):
        rows = pool.take(shape, dtype)
        assert (rows.shape, rows.dtype) == (shape, dtype)
        assert rows.flags.c_contiguous
        assert rows.flags.writeable
        assert rows.ctypes.data % 64 == 0 or rows.size == 0
        rows[:] = 1
        size = rows.nbytes
        del rows
    assert pool.num_bytes == size


def test_memory_is_lent_again_when_its_last_view_is_gone() -> None:
    pool = BufferPool()
    rows = pool.take((10, 4), np.float32, ghosts=True)
    rows[:] = 3
    view = rows[2:, :1]
    address = rows.ctypes.data
    del rows
    assert pool.ghosts.now == 160
    other = pool.take((10, 4), np.float32)
    assert other.ctypes.data != address
    other[:] = 7
    assert (view == 3).all()
    del view
    assert pool.ghosts.now == 0
    assert pool.take((10, 4), np.float32).ctypes.data == address


def test_memory_grows_in_place_of_what_is_too_small() -> None:
    pool = BufferPool()
    for rows in (10, 20, 30, 5):
        pool.take((rows, 4), np.float32)
    assert pool.num_bytes == 30 * 16


def test_the_peak_counts_ghosts_only() -> None:
    pool = BufferPool()
    first = pool.take((4, 2), np.float64, ghosts=True)
    second = pool.take((8, 2), np.float64, ghosts=True)
    packed = pool.take((100, 2), np.float64)
    assert pool.ghosts.now == first.nbytes + second.nbytes
    del first, second, packed
    pool.take((1, 2), np.float64, ghosts=True)
    assert (pool.ghosts.now, pool.ghosts.peak) == (0, 4 * 16 + 8 * 16)
