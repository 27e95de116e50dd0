import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn.analysis.breakdown import COMMUNICATION, measure_rank
from hpcgnn.analysis.load import PHASES, SpanRecord

MS = 1_000_000


def span(name, start, stop, own=None, epoch=0, seed=1, arrived=100, moving=1000):
    """A span with times in milliseconds; a wait is for 100 bytes, which have all arrived before."""
    own = stop - start if own is None else own
    times = start * MS, (stop - start) * MS, own * MS
    found = {}
    if name.startswith("wait"):
        found = {"awaited_bytes": 100, "arrived_bytes": arrived, "waited_ns": times[1]}
        if arrived == 100 and moving is not None:
            found["moving_ns"] = moving * MS
    return SpanRecord(name, *times, seed, epoch, 0, 0, None, 0, **found)


def hidden(*spans, of="hidden_s", first_sent=None):
    return round(getattr(measure_rank(0, spans, first_sent).hidden, of) * 1e3, 9)


TRAINING = [phase for phase in PHASES if phase not in ("evaluate", "checkpoint")]
SEQUENCES = st.lists(st.tuples(st.sampled_from(TRAINING), st.integers(0, 9), st.integers(0, 3)))


NAMES = st.sampled_from(["exchange", "wait", "reduce", "dense", "interior"])
TREES = st.recursive(
    st.tuples(NAMES, st.integers(0, 4), st.just([])),
    lambda inner: st.tuples(NAMES, st.integers(0, 4), st.lists(inner, max_size=4)),
    max_leaves=10,
)


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


def lay_out_tree(trees, now, spans):
    """Append the spans of nested (phase, own milliseconds, children) in the order of their ends."""
    for phase, own, children in trees:
        start = now
        now = lay_out_tree(children, now + own, spans) + own
        # Half before its children and half after, so that own time is on both sides.
        inner = sum(child.self_ns for child in spans if child.start_ns >= start * MS) // MS
        spans.append(span(phase, start, now, own=now - start - inner))
    return now


def by_the_millisecond(spans):
    """Count the milliseconds during which a rank computes while an exchange moves rows."""
    in_flight, pending = set(), []
    parents_first = list(reversed(spans))
    parents_first.sort(key=lambda item: (item.start_ns, -item.stop_ns))
    for item in parents_first:
        if item.phase == "exchange":
            pending.append(item)
        elif item.phase == "wait":
            for exchange in pending:
                in_flight.update(range(exchange.stop_ns // MS, item.start_ns // MS))
            pending = []
    innermost = {}
    for item in parents_first:
        innermost |= dict.fromkeys(range(item.start_ns // MS, item.stop_ns // MS), item.phase)
    return sum(
        millisecond in in_flight and phase not in COMMUNICATION
        for millisecond, phase in innermost.items()
    )


@given(trees=st.lists(TREES, max_size=5))
def test_hidden_equals_a_count_of_milliseconds(trees):
    spans = []
    lay_out_tree(trees, 0, spans)
    assert hidden(*spans) == by_the_millisecond(spans)


def product(**found):
    """An exchange, 4 ms of computing, and a wait of 2 ms."""
    return (
        span("dense", 0, 2),
        span("exchange.forward", 2, 3),
        span("interior", 3, 7),
        span("wait.forward", 7, 9, **found),
        span("boundary", 9, 12),
    )


@pytest.mark.parametrize(
    ("found", "hides", "could"),
    [
        # All bytes had arrived: it lasted as long as it was seen to move, and computing hid it.
        ({"moving": 1000}, 4, 4),
        ({"moving": 1}, 1, 3),
        # The time of arrival is unknown.
        ({"moving": None}, 0, 0),
        # Half had arrived; the other half took 2 ms.
        ({"arrived": 50}, 2, 4),
        ({"arrived": 90}, 4, 4),
        ({"arrived": 0}, 0, 2),
    ],
)
def test_hidden_is_what_moved_before_the_wait(found, hides, could):
    spans = product(**found)
    assert hidden(*spans) == hides
    assert hidden(*spans, of="coverable_s") == could
    assert measure_rank(0, spans).exposed == pytest.approx(3e-3)
    measured = measure_rank(0, spans).hidden
    assert (measured.exchanges, measured.awaited_bytes) == (1, 100)
    assert measured.arrived_bytes == found.get("arrived", 100)


def test_two_exchanges_hide_behind_the_same_computing_once():
    both = (
        span("exchange.forward", 0, 1),
        span("exchange.reverse", 1, 2),
        span("interior", 2, 6),
        span("wait.forward", 6, 6),
        span("wait.reverse", 6, 6),
    )
    assert hidden(*both) == hidden(*both, of="coverable_s") == 4


@pytest.mark.parametrize(
    ("sent", "found", "hides", "could"),
    [
        # This is before the exchange of this rank, and nothing else is hidden.
        (1, {"moving": 3}, 3, 4),
        # Two of the four milliseconds are left.
        (5, {"moving": 3}, 1, 2),
        (5, {"arrived": 50}, 2, 2),
        (5, {"arrived": 0}, 0, 2),
        # This is when the rank is already waiting, so computing cannot hide it.
        (8, {"arrived": 0}, 0, 0),
        (8, {"moving": 1}, 0, 0),
    ],
)
def test_nothing_moves_before_it_was_sent(sent, found, hides, could):
    first_sent = {(0, 2 * MS): sent * MS, (1, 2 * MS): 0}
    both = [
        hidden(*product(**found), of=key, first_sent=first_sent)
        for key in ("hidden_s", "coverable_s")
    ]
    assert both == [hides, could]


def test_a_blocking_exchange_hides_nothing():
    assert hidden(span("exchange.forward", 0, 5), span("interior", 5, 9)) == 0


def test_a_wait_for_another_exchange_completes_nothing():
    spans = span("exchange.forward", 0, 5), span("interior", 5, 9), span("wait.barrier", 9, 10)
    assert hidden(*spans) == 0


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
    assert hidden(*spans) == 5


def test_only_the_own_time_of_a_span_around_others_counts():
    spans = span("exchange", 0, 1), span("wait", 4, 5), span("dense", 0, 10, own=8)
    assert hidden(*spans) == 3


def test_epochs_of_different_seeds_are_different_epochs():
    times = measure_rank(0, [span("dense", 0, 2, seed=1), span("dense", 100, 103, seed=2)])
    assert times.epochs == 2
    assert times.wall == pytest.approx(5e-3)


def test_the_evaluation_and_the_checkpoint_behind_an_epoch_do_not_count():
    inside = span("exchange.forward", 6, 7), span("evaluate", 5, 8, own=2)
    times = measure_rank(0, [span("dense", 0, 4), *inside, span("checkpoint", 8, 9)])
    assert (dict(times.phases), list(times.names)) == ({"dense": 4e-3, "other": 0}, ["dense"])


def test_epochs_count_that_have_seconds_and_time_in_no_span_is_other():
    spans = [span("dense", 10 * epoch, 10 * epoch + 4, epoch=epoch) for epoch in range(3)]
    times = measure_rank(0, spans, epoch_s={(1, 1): 5e-3, (1, 2): 6e-3, (2, 0): 1.0})
    assert (times.epochs, times.counted) == (3, 2)
    assert times.wall == pytest.approx(11e-3)
    assert times.phases["other"] == pytest.approx(3e-3)


def test_time_outside_epochs_is_kept_apart():
    set_up, later = span("read", 1, 3, epoch=None), span("checkpoint", 8, 10, epoch=None)
    times = measure_rank(0, [set_up, span("dense", 5, 6), later])
    # From the start to the first epoch 5 ms pass, 2 of them reading.
    assert dict(times.outside) == pytest.approx({"read": 2e-3, "checkpoint": 2e-3, "other": 3e-3})
    assert times.wall == pytest.approx(1e-3)
    assert "read" not in times.names


def test_set_up_of_a_run_without_epochs_ends_with_its_last_span():
    times = measure_rank(0, [span("read", 1, 3, epoch=None), span("plan", 4, 5, epoch=None)])
    assert times.outside["other"] == pytest.approx(2e-3)


def test_a_rank_without_spans():
    times = measure_rank(0, [])
    assert (times.epochs, times.wall, times.exposed, times.hidden.hidden_s) == (0, 0, 0, 0)
