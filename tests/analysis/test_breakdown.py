import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.breakdown import COMMUNICATION, measure_rank
from analysis.load import PHASES, SpanRecord

MS = 1_000_000


def span(name, start, stop, own=None, epoch=0, seed=1):
    """A span record with times in milliseconds."""
    own = stop - start if own is None else own
    return SpanRecord(name, start * MS, (stop - start) * MS, own * MS, seed, epoch, 0, 0, None, 0)


def overlapped(*spans):
    return round(measure_rank(0, spans).overlapped * 1e3, 9)


SEQUENCES = st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 9), st.integers(0, 3)))


def lay_out(sequence):
    now, spans = 0, []
    for phase, length, idle in sequence:
        spans.append(span(phase, now, now + length))
        now += length + idle
    return spans


@given(sequences=st.lists(SEQUENCES, max_size=3))
def test_phases_add_up_to_the_wall_time_of_the_epochs(sequences):
    wall = 0
    spans = []
    for epoch, sequence in enumerate(sequences):
        own = [
            SpanRecord(s.name, s.start_ns, s.duration_ns, s.self_ns, 1, epoch, 0, 0, None, 0)
            for s in lay_out(sequence)
        ]
        wall += max((s.stop_ns for s in own), default=0)
        spans += own
    times = measure_rank(0, spans)
    assert times.wall == pytest.approx(wall * 1e-9)
    assert times.epochs == sum(map(bool, sequences))
    assert sum(total.count for total in times.names.values()) == len(spans)
    communication = sum(times.phases.get(phase, 0.0) for phase in COMMUNICATION)
    assert times.exposed == pytest.approx(communication)


@given(sequence=SEQUENCES)
def test_overlap_equals_a_count_of_milliseconds(sequence):
    spans = lay_out(sequence)
    in_flight, pending = set(), []
    for item in spans:
        if item.phase == "exchange":
            pending.append(item)
        elif item.phase == "wait":
            for exchange in pending:
                in_flight.update(range(exchange.start_ns // MS, item.stop_ns // MS))
            pending = []
    computing = [
        millisecond
        for item in spans
        if item.phase not in COMMUNICATION
        for millisecond in range(item.start_ns // MS, item.stop_ns // MS)
    ]
    assert overlapped(*spans) == sum(millisecond in in_flight for millisecond in computing)


def test_computation_between_exchange_and_wait_is_overlapped():
    spans = (
        span("dense", 0, 2),
        span("exchange.forward", 2, 3),
        span("interior", 3, 7),
        span("wait.forward", 7, 9),
        span("boundary", 9, 12),
    )
    assert overlapped(*spans) == 4
    assert measure_rank(0, spans).exposed == pytest.approx(3e-3)


def test_a_blocking_exchange_overlaps_nothing():
    assert overlapped(span("exchange.forward", 0, 5), span("interior", 5, 9)) == 0


def test_a_wait_for_another_exchange_completes_nothing():
    spans = span("exchange.forward", 0, 5), span("interior", 5, 9), span("wait.barrier", 9, 10)
    assert overlapped(*spans) == 0


def test_exchanges_of_one_detail_complete_in_their_order():
    spans = [
        span("exchange.stage", 0, 1),
        span("exchange.stage", 1, 2),
        span("interior", 2, 4),
        span("wait.stage", 4, 5),
        span("interior", 5, 8),
        span("wait.stage", 8, 9),
        span("interior", 9, 11),
    ]
    assert overlapped(*spans) == 5


def test_computation_inside_an_exchange_is_overlapped():
    spans = span("interior", 1, 4), span("exchange.forward", 0, 6, own=3)
    assert overlapped(*spans) == 3


def test_a_span_around_others_counts_its_own_share():
    # Of the evaluation's 10 ms, 4 are its own; the exchange covers half of them.
    spans = span("exchange", 0, 1), span("wait", 4, 5), span("evaluate", 0, 10, own=4)
    assert overlapped(*spans) == 2


def test_epochs_of_different_seeds_are_different_epochs():
    times = measure_rank(0, [span("dense", 0, 2, seed=1), span("dense", 100, 103, seed=2)])
    assert times.epochs == 2
    assert times.wall == pytest.approx(5e-3)


def test_time_outside_epochs_is_kept_apart():
    times = measure_rank(0, [span("read", 0, 2, epoch=None), span("dense", 5, 6)])
    assert dict(times.outside) == pytest.approx({"read": 2e-3})
    assert times.wall == pytest.approx(1e-3)
    assert "read" not in times.names


def test_a_rank_without_spans():
    times = measure_rank(0, [])
    assert (times.epochs, times.wall, times.exposed, times.overlapped) == (0, 0, 0, 0)
