import weakref

import numpy as np
import pytest

from hpcgnn.kernels import reuse, reused_memory
from hpcgnn.kernels.reuse import empty

MIB = 1 << 20


def place(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    with reused_memory():
        first = empty((2 * MIB,), np.uint8)
        where = place(first)
        view = first[MIB:].view(np.float32)
        del first
        other = empty((MIB // 2, 4), np.uint8)
        assert place(other) != where
        view[:] = 1
        del view
        assert place(empty((MIB, 2), np.uint8)) == where


def test_nothing_is_reused_outside_or_when_small() -> None:
    with reused_memory():
        inside = empty((4, MIB), np.float32)
        small = empty((3,), np.float64)
    inside[:], small[:] = 3, 2
    assert (inside == 3).all()
    assert empty((0, 4), np.float32).shape == (0, 4)


@pytest.mark.parametrize("seed", [3, 8])
def test_idle_memory_hardly_raises_the_peak(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, fresh = np.random.default_rng(seed), reuse._fresh
    held: list[np.ndarray] = []
    sizes: dict[int, int] = {}

    def counted(size: int) -> np.ndarray:
        memory, number = fresh(size), rng.bit_generator.random_raw()
        sizes[number] = size
        weakref.finalize(memory, sizes.pop, number)
        return memory

    monkeypatch.setattr(reuse, "_fresh", counted)
    peak = 0
    with reused_memory():
        for step in range(200):
            if held and rng.random() < 0.5:
                held.pop(rng.integers(len(held)))
            array = empty((int(rng.integers(1, 9)) * MIB,), np.uint8)
            array[::4096] = step % 251
            held.append(array)
            del array
            assert all((each[::4096] == each[0]).all() for each in held)
            peak = max(peak, sum(map(len, held)))
            # An eighth and 4 MiB may be idle; a buffer may be longer than the array in it.
            assert sum(map(len, held)) <= sum(sizes.values()) <= 1.5 * peak + 5 * MIB
        assert sizes
        held.clear()
    assert not sizes
