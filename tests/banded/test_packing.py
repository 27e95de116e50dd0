import numpy as np
import pytest

from hpcgnn.banded import first_fit_decreasing, pack_lanes


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


@pytest.mark.parametrize(("lanes", "window"), [(1, 1000), (3, 40), (4, 7), (5, 1)])
@pytest.mark.parametrize("count", [0, 1, 3, 150])
def test_every_graph_comes_once(count: int, lanes: int, window: int) -> None:
    sizes = np.random.default_rng(1).integers(1, 60, count)
    dealt = pack_lanes(sizes, 100, lanes, window, np.random.default_rng(2))
    again = pack_lanes(sizes, 100, lanes, window, np.random.default_rng(2))
    assert len(dealt) == lanes
    flat, repeated = (
        [int(w.graphs[i]) for lane in each for w in lane for b in w.bins for i in b]
        for each in (dealt, again)
    )
    assert sorted(flat) == list(range(count))
    assert flat == repeated
    for lane in dealt:
        for each in lane:
            assert len(each.graphs) <= max(window, 1)
            assert (np.diff(each.graphs) > 0).all()
            assert all(sizes[each.graphs[chosen]].sum() <= 100 for chosen in each.bins)


def test_lanes_are_balanced() -> None:
    sizes = np.random.default_rng(1).integers(1, 60, 4000)
    dealt = pack_lanes(sizes, 500, 4, 256, np.random.default_rng(2))
    loads = [sum(int(sizes[w.graphs].sum()) for w in lane) for lane in dealt]
    assert max(loads) < 1.1 * min(loads)
