import numpy as np
import pytest

from hpcgnn.banded import first_fit_decreasing, pack_shuffled


def slow_first_fit(sizes: list[int], budget: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        for each in bins:
            if sum(sizes[i] for i in each) + sizes[item] <= budget:
                each.append(item)
                break
        else:
            bins.append([item])
    return bins


@pytest.mark.parametrize("seed", range(5))
def test_first_fit_decreasing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 60, 200)
    sizes[3] = 500
    bins = [each.tolist() for each in first_fit_decreasing(sizes, 100)]
    assert bins == slow_first_fit(sizes.tolist(), 100)
    assert first_fit_decreasing(sizes[:0], 100) == []


@pytest.mark.parametrize(("group", "window"), [(1, 1000), (3, 40), (4, 7)])
def test_every_graph_comes_once_in_steps_of_equal_length(group: int, window: int) -> None:
    sizes = np.random.default_rng(1).integers(1, 60, 150)
    steps = list(pack_shuffled(sizes, 100, group, window, np.random.default_rng(2)))
    again = list(pack_shuffled(sizes, 100, group, window, np.random.default_rng(2)))
    assert all(len(step) == group for step in steps)
    flat = np.concatenate([each for step in steps for each in step])
    assert sorted(flat.tolist()) == list(range(150))
    assert np.array_equal(flat, np.concatenate([each for step in again for each in step]))
    loads = [int(sizes[each].sum()) for step in steps[:-1] for each in step]
    assert max(loads) <= 100
