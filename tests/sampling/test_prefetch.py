import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pytest

from hpcgnn.sampling import FrontierSampler, Prefetch, SubgraphSource, count_coverage
from tests.support.sampled_graphs import symmetric


@dataclass(frozen=True)
class Numbered:
    number: int
    nbytes: int = 10


def threads_left() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("prefetch")]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_order_and_the_pool_is_bounded(threads: int) -> None:
    lock, at_work, most = threading.Lock(), 0, 0

    def make(number: int) -> Numbered:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.002 * (number % 3))
        with lock:
            at_work -= 1
        return Numbered(number)

    with Prefetch(make, range(20), threads=threads, depth=4) as pool:
        assert [each.number for each in pool] == list(range(20))
    assert most <= max(threads, 1)
    assert pool.most_bytes <= 4 * 10


def test_leaving_early_ends_the_threads() -> None:
    made = []

    def make(number: int) -> Numbered:
        made.append(number)
        return Numbered(number)

    with Prefetch(make, range(10**9), threads=2, depth=3) as pool:
        assert next(pool).number == 0
    assert not threads_left()
    assert len(made) <= 5
    with pytest.raises(StopIteration):
        next(pool)


def test_errors_reach_the_user() -> None:
    def fail(number: int) -> Numbered:
        raise ValueError(f"no set {number}")

    pool = Prefetch(fail, range(3), threads=2, depth=2)
    with pool, pytest.raises(ValueError, match="no set 0"):
        next(pool)
    with pytest.raises(ValueError, match="at least 0 threads"):
        Prefetch(fail, range(3), threads=1, depth=0)


def test_subgraphs_do_not_depend_on_threads() -> None:
    source = SubgraphSource(FrontierSampler(topology=symmetric(), seed=1, walkers=9, budget=80))
    expected = [source(number) for number in range(30)]
    with Prefetch(source, range(30), threads=3, depth=5) as pool:
        for found, each in zip(pool, expected, strict=True):
            assert np.array_equal(found.nodes, each.nodes)
            assert np.array_equal(found.pattern.entries, each.pattern.entries)
    first = count_coverage(source, range(30))
    second = count_coverage(source, range(30), threads=3)
    assert np.array_equal(first.nodes, second.nodes)
    assert np.array_equal(first.entries, second.entries)


def test_items_come_in_order_and_errors_where_they_are_due() -> None:
    with Prefetch(next, repeat(iter(range(50))), threads=1, depth=3) as items:
        assert list(items) == list(range(50))

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with Prefetch(next, repeat(broken()), threads=1, depth=1) as items:
        found = iter(items)
        assert next(found) == 1
        with pytest.raises(OSError, match="disk"):
            next(found)


def test_leaving_early_stops_the_thread() -> None:
    made = []

    def endless() -> Iterator[int]:
        while True:
            made.append(len(made))
            yield made[-1]

    with Prefetch(next, repeat(endless()), threads=1, depth=2) as items:
        assert next(iter(items)) == 0
    assert len(made) < 100
    assert not threads_left()
