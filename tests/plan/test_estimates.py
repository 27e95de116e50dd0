"""The ranks that a plan rehearses, and the choice that it recommends."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.comm import Network
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.plan.clock import waited_for_core
from hpcgnn.plan.estimates import (
    Candidate,
    Choice,
    Machine,
    _computing,
    _largest,
    contenders,
    fastest,
    waiting,
)
from hpcgnn.plan.traffic import ALL, AllReduction, BlockPairs, ExchangeTimes, Traffic, in_turn


def traffic(entries: list[int]) -> dict[tuple[int | None, str], Traffic]:
    none = np.zeros((1, len(entries), len(entries)), np.int64)
    sums = np.zeros((2, 2, len(entries), 1, 1), np.int64)
    return {ALL: Traffic.of_pairs(BlockPairs.of_all(none, none), sums, np.array(entries), 40, 40)}


@pytest.mark.parametrize(
    ("starts", "entries", "expected"),
    [
        ([0, 10, 40], [90, 10], [0, 1]),
        ([0, 10, 40], [10, 90], [1]),
        # The largest of the ranks that train.
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
    cores = (3 * compute_s, 2)
    return Candidate(
        choice, *rows, *sent, 0, *memory, compute_s, 0.25, 0.0, 1.0, 8, 0.5, *cores, spread_s
    )


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
    # Outside of both spreads seconds decide; memory comes first in any case.
    assert fastest([candidate("aware", 1.0, 26), second], None)[0].choice.exchange == "aware"
    assert fastest([first, second], 11) == [second]
    assert fastest([first, second], 9) == []


def test_messages_pass_while_a_rank_computes() -> None:
    both, later = ExchangeTimes(1.0, 3.0), ExchangeTimes(4.0, 4.5)
    assert waiting([both], np.array([1.5])) == 0
    assert waiting([both], np.array([2.5])) == 0.5
    # Two that begin together share the link; one that is waited for once makes the rest later.
    assert waiting([both, both], np.array([1.5, 1.5])) == 1.0
    assert waiting([both, later], np.array([2.5, 1.0])) == 0.5 + 0.5
    # A third one begins while the second is still moving.
    assert waiting([both, both, ExchangeTimes(2.0, 9.0)], np.array([1.5, 1.5, 6.0])) == 1.0 + 0.0
    assert waiting([ExchangeTimes(), ExchangeTimes()], np.array([1.0, 2.0])) == 3.0
    assert waiting([], np.zeros(0)) == 0


def test_moves_in_turn_begin_after_those_before() -> None:
    moves = in_turn([([AllReduction(8, ExchangeTimes(0.5, 0.75))], 2.0)] * 2)
    assert [move.window for move in moves] == [ExchangeTimes(0.5, 0.75), ExchangeTimes(2.5, 2.75)]
    # Moves are identified by their content, not by their time.
    assert moves[0] == moves[1]


def test_ranks_that_share_cores_compute_in_turn() -> None:
    of_ranks = np.array([4.0, 2.0, 2.0, 1.0])
    assert Machine(Network(), cores=2).crowding(of_ranks, 1) == 9 / 2 / 4
    assert Machine(Network(), cores=2).crowding(of_ranks, 2) == 9 / 4
    assert Machine(Network(ranks_per_host=2), cores=1).crowding(of_ranks, 1) == 6 / 4
    # There are enough cores, or their number is unknown: the slowest rank is as fast as alone.
    assert Machine(Network(), cores=4).crowding(of_ranks, 1) == 1
    assert Machine(Network()).crowding(of_ranks, 8) == 1


def test_computing_of_ranks_that_are_not_rehearsed() -> None:
    entries, rows = np.array([100, 50, 0]), np.array([10, 10, 5])
    assert _computing({0: 4.0}, entries, rows).tolist() == [4.0, 3.0, 1.0]
    # 3 s of 100 non-zeros and 1 s of 10 rows.
    assert _computing({0: 4.0, 1: 2.5}, entries, rows) == pytest.approx([4.0, 2.5, 0.5])


def test_threads_of_ranks_that_share_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = load_config(None, ["graph.store=s.h5", "run.dir=none"])
    assert Machine(Network(ranks_per_host=4), cores=16).threads(config, 64) == 4
    assert Machine(Network(), cores=2).threads(config, 8) == 1
    assert Machine(Network()).threads(config, 8) == len(os.sched_getaffinity(0))
    two = load_config(None, ["graph.store=s.h5", "run.dir=none", "run.threads=2"])
    assert Machine(Network(), cores=16).threads(two, 2) == 2


def test_an_epoch_takes_what_nothing_hides_and_all_of_a_host() -> None:
    found = replace(candidate("aware", 1.0), exchange_s=0.75, hidden_s=0.25)
    assert found.epoch_s == 1.5
    # Two seconds of computing, and eight turns of a millisecond each.
    assert replace(found, crowding=2.0).epoch_s == pytest.approx(2.008)


def test_core_seconds_are_of_computing_and_of_asking_after_messages() -> None:
    # Four ranks of two threads compute 3 s in all, and each asks as long as its epoch lasts.
    found = candidate("aware", 1.0)
    assert found.cpu_s == 2 * 3.0 + 4 * 1.25 - 3.0
    assert replace(found, crowding=2.0).cpu_s == 2 * 3.0
    assert found.with_second(candidate("aware", 0.5)).cpu_s == 2 * 1.5 + 4 * 0.75 - 1.5


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
