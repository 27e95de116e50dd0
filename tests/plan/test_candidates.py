"""Which ranks a plan rehearses, and which choice it recommends."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.plan.candidates import Candidate, Choice, _largest, contenders, fastest
from hpcgnn.plan.rehearsal import waited_for_core
from hpcgnn.plan.traffic import ALL, Traffic


def traffic(entries: list[int]) -> dict[tuple[int | None, str], Traffic]:
    none = np.zeros((1, len(entries), len(entries)), np.int64)
    sums = np.zeros((2, 2, len(entries), 1, 1), np.int64)
    return {ALL: Traffic.of_all(none, none, sums, np.array(entries), 40, 40)}


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


def candidate(
    exchange: str, compute_s: float, megabytes: int = 1, *, peak: int = 10, spread_s: float = 0.0
) -> Candidate:
    choice = Choice(4, 1, exchange, "resident")
    rows, sent, memory = (1, 1, 1), (megabytes * 10**6, 1, 0, 0, 0), (0, peak, 0)
    return Candidate(choice, *rows, *sent, 0, *memory, compute_s, 0.25, 0.5, spread_s)


def test_only_those_near_the_fastest_that_fits_are_rehearsed_again() -> None:
    found = [
        candidate("aware", 1.0),
        candidate("push", 1.6),
        candidate("joint", 1.7),
        candidate("oblivious", 0.1, peak=20),
    ]
    assert contenders(found, 10) == [0, 1]
    assert contenders(found, None) == []
    assert contenders(found[:1], 10) == []
    assert contenders(found, 5) == []


def test_no_choice_is_made_on_a_difference_within_the_spread() -> None:
    first = candidate("aware", 1.0, 26).with_second(candidate("aware", 1.3, 26, peak=12))
    assert (first.compute_s, first.spread_s, first.peak_bytes) == (1.0, pytest.approx(0.3), 12)
    second = candidate("joint", 1.2, 6).with_second(candidate("joint", 1.1, 6))
    slow = candidate("push", 1.31, 1)
    assert fastest([first, second, slow], None) == [second, first]
    # Outside of both spreads the seconds decide, and memory before all.
    assert fastest([candidate("aware", 1.0, 26), second], None)[0].choice.exchange == "aware"
    assert fastest([first, second], 11) == [second]
    assert fastest([first, second], 9) == []


def test_a_run_is_all_seeds_of_all_splits() -> None:
    found = candidate("aware", 1.0)
    once = ["graph.store=s.h5", "run.dir=none", "train.epochs=4", "train.seeds=[1,2,3]"]
    of_one = found.train_s(load_config(None, once))
    assert of_one == pytest.approx(3 * (4 * found.epoch_s + 4 * found.evaluate_s))
    assert found.train_s(load_config(None, [*once, "train.splits=['a','b']"])) == 2 * of_one


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="not counted here")
def test_seconds_of_others_on_the_same_core_are_counted() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = waited_for_core()
        spent = os.times().user
        while os.times().user < spent + 0.3:
            pass
        assert waited_for_core() - before > 0.1
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, cores)
