"""Seconds by phase on one rank, and how much communication is hidden behind computation.

Only the training of an epoch counts, not the evaluation and checkpoint after it. Every instant
counts once, for the innermost span around it (self time). Time in no span is `OTHER`, both inside
an epoch and from the start of a session to its first epoch.

An exchange is in flight from the end of its span (or from the first message sent to it, if that is
known and later) to the span that completes it: the next ``wait`` with the same detail, or the next
``wait`` without one. Computation *hides* the time in which its bytes move meanwhile. The ``wait``
records how many bytes had arrived when it began. If all had, the exchange moved until that was
noticed; if some had, its moving time is extrapolated from the time that the rest took.
Self time of `COMMUNICATION` phases is *exposed*.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from hpcgnn.analysis.load import PHASES, SpanRecord

OTHER = "other"
COMMUNICATION = ("exchange", "wait", "reduce")
_AFTER_TRAINING = ("evaluate", "checkpoint")
"""Phases after the training of an epoch; spans that begin after one of them belong to it."""
PHASE_ORDER = (*PHASES, OTHER)

_NANO = 1e-9

Interval = tuple[int, int]
Flight = tuple[SpanRecord, SpanRecord]
"""An exchange, and the span that completes it."""
Epoch = tuple[int | None, int | None]
"""Seed and number."""
EpochSeconds = Mapping[Epoch, float]
"""Training seconds of each counted epoch, see `hpcgnn.trace.epochs`."""
FirstSent = Mapping[tuple[int, int], int]
"""When the first message received by an exchange was sent, on the receiver's clock, by the session
and start of the exchange's span."""


@dataclass
class SpanTotal:
    """Sums over the spans of one name."""

    count: int = 0
    seconds: float = 0.0
    rows: int = 0
    bytes: int = 0

    def include(self, other: "SpanTotal") -> None:
        """Add another sum to this one."""
        self.count += other.count
        self.seconds += other.seconds
        self.rows += other.rows
        self.bytes += other.bytes


@dataclass
class Hidden:
    """Hidden communication, from the records of the waits that complete exchanges.

    `exchanges` counts the exchanges with measured arrivals: those between GPUs, and those of older
    traces, have none. They received `awaited_bytes`, of which `arrived_bytes` had arrived when the
    wait began. `hidden_s` is computation during their movement. `coverable_s` is the computation
    that could have hidden them had they moved continuously since the first message was sent, at
    most for the time that they moved or were waited for.
    """

    exchanges: int = 0
    awaited_bytes: int = 0
    arrived_bytes: int = 0
    hidden_s: float = 0.0
    coverable_s: float = 0.0


@dataclass
class RankTimes:
    """Times of one rank inside and outside its epochs; seconds are sums over the counted epochs.

    Only `epochs` includes epochs that are not counted; `counted` is the number of those that are.
    """

    rank: int
    epochs: int = 0
    counted: int = 0
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    outside: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    names: dict[str, SpanTotal] = field(default_factory=lambda: defaultdict(SpanTotal))
    exposed: float = 0.0
    hidden: Hidden = field(default_factory=Hidden)

    @property
    def wall(self) -> float:
        """Training seconds of all counted epochs."""
        return sum(self.phases.values())


def measure_rank(
    rank: int,
    spans: Sequence[SpanRecord],
    first_sent: FirstSent | None = None,
    epoch_s: EpochSeconds | None = None,
) -> RankTimes:
    """Sum up the spans of one rank.

    `first_sent` comes from the traces of other ranks; an exchange without an entry moves from the
    end of its span. Without `epoch_s` all epochs count, each from its first to its last span of
    training.
    """
    times = RankTimes(rank)
    times.epochs = len({(span.seed, span.epoch) for span in spans if span.epoch is not None})
    sessions: dict[int, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        sessions[span.session].append(span)
    for epoch, trained in training(spans, epoch_s).items():
        times.counted += 1
        _add_epoch(times, trained, first_sent or {}, (epoch_s or {}).get(epoch, 0.0))
        for span in trained:
            total = SpanTotal(1, span.self_ns * _NANO, span.rows, span.bytes)
            times.names[span.name].include(total)
    for session in sessions.values():
        _add_outside(times, session)
    return times


def training(
    spans: Iterable[SpanRecord], epoch_s: EpochSeconds | None = None
) -> dict[Epoch, list[SpanRecord]]:
    """Return the training spans of each counted epoch, in the order in which they ended."""
    epochs: dict[Epoch, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if span.epoch is not None and (epoch_s is None or (span.seed, span.epoch) in epoch_s):
            epochs[span.seed, span.epoch].append(span)
    trained_by_epoch = {}
    for key, epoch in epochs.items():
        end_ns = min((s.start_ns for s in epoch if s.phase in _AFTER_TRAINING), default=None)
        trained = [span for span in epoch if end_ns is None or span.start_ns < end_ns]
        if trained:
            trained_by_epoch[key] = trained
    return trained_by_epoch


def _add_outside(times: RankTimes, spans: Sequence[SpanRecord]) -> None:
    outside = [span for span in spans if span.epoch is None]
    for span in outside:
        times.outside[span.phase] += span.self_ns * _NANO
    inside_starts = (span.start_ns for span in spans if span.epoch is not None)
    set_up_ns = min(inside_starts, default=max((span.stop_ns for span in outside), default=0))
    covered_ns = sum(span.self_ns for span in outside if span.start_ns < set_up_ns)
    times.outside[OTHER] += (set_up_ns - covered_ns) * _NANO


def _add_epoch(
    times: RankTimes, spans: Sequence[SpanRecord], first_sent: FirstSent, seconds: float
) -> None:
    wall = _NANO * (max(span.stop_ns for span in spans) - min(span.start_ns for span in spans))
    for span in spans:
        own = span.self_ns * _NANO
        times.phases[span.phase] += own
        if span.phase in COMMUNICATION:
            times.exposed += own
    # The epoch's seconds in the metrics end a little later than the last span.
    covered = sum(span.self_ns for span in spans) * _NANO
    times.phases[OTHER] += max(seconds - covered, wall - covered, 0.0)
    _add_hidden(times.hidden, _by_start(spans), first_sent)


def _by_start(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    """Return spans in the order of their starts, each before the spans nested in it."""
    # Records are ordered by their ends; in reverse, a span precedes those nested in it.
    nested = list(reversed(spans))
    nested.sort(key=lambda span: (span.start_ns, -span.stop_ns))
    return nested


def _add_hidden(totals: Hidden, nested: Sequence[SpanRecord], first_sent: FirstSent) -> None:
    hidden, coverable = list[Interval](), list[Interval]()
    for exchange, wait in _flights(nested):
        if wait.awaited_bytes:
            arrived, waited_ns = wait.arrived_bytes or 0, wait.waited_ns or 0
            totals.exchanges += 1
            totals.awaited_bytes += wait.awaited_bytes
            totals.arrived_bytes += arrived
            if arrived == wait.awaited_bytes and wait.moving_ns is None:
                # Everything had arrived, at an unknown time.
                continue
            # Nothing moves before the first message is sent.
            key = exchange.session, exchange.start_ns
            start_ns = max(exchange.stop_ns, first_sent.get(key, exchange.stop_ns))
            moved_ns = max((wait.moving_ns or 0) - (start_ns - exchange.stop_ns), 0)
            if arrived < wait.awaited_bytes:
                moved_ns = waited_ns * arrived // (wait.awaited_bytes - arrived)
            for intervals, length_ns in ((hidden, moved_ns), (coverable, moved_ns + waited_ns)):
                stop_ns = min(wait.start_ns, start_ns + length_ns)
                intervals.append((start_ns, max(stop_ns, start_ns)))
    totals.hidden_s += _computing_ns(nested, hidden) * _NANO
    totals.coverable_s += _computing_ns(nested, coverable) * _NANO


def _computing_ns(nested: Sequence[SpanRecord], intervals: Sequence[Interval]) -> int:
    """Return the self time of computing spans inside the union of the intervals."""
    inside = _CoveredTime(intervals)
    total, enclosing = 0, list[SpanRecord]()
    for span in nested:
        while enclosing and enclosing[-1].stop_ns <= span.start_ns:
            enclosing.pop()
        covered = inside.before(span.stop_ns) - inside.before(span.start_ns)
        if span.phase not in COMMUNICATION:
            total += covered
        if enclosing and enclosing[-1].phase not in COMMUNICATION:
            total -= covered
        enclosing.append(span)
    return total


def flights_of(spans: Sequence[SpanRecord]) -> list[Flight]:
    """Return every exchange of an epoch with the span that completes it."""
    return _flights(_by_start(spans))


def _flights(spans: Iterable[SpanRecord]) -> list[Flight]:
    """Return every exchange with the span that completes it; `spans` are ordered by start."""
    waiting: dict[str, deque[SpanRecord]] = defaultdict(deque)
    flights: list[Flight] = []
    for span in spans:
        if span.phase == "exchange":
            waiting[span.detail].append(span)
        elif span.phase == "wait":
            flights += [(exchange, span) for exchange in _take_completed(waiting, span.detail)]
    never_waited = chain.from_iterable(waiting.values())
    return flights + [(exchange, exchange) for exchange in never_waited]


def _take_completed(waiting: dict[str, deque[SpanRecord]], detail: str) -> list[SpanRecord]:
    if detail:
        return [waiting[detail].popleft()] if waiting[detail] else []
    completed = list(chain.from_iterable(waiting.values()))
    waiting.clear()
    return completed


class _CoveredTime:
    """Time before an instant that is covered by the union of intervals."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in sorted(intervals):
            if self._stops and start <= self._stops[-1]:
                self._stops[-1] = max(self._stops[-1], stop)
            else:
                self._starts.append(start)
                self._stops.append(stop)
        lengths = (stop - start for start, stop in zip(self._starts, self._stops, strict=True))
        self._sums = list(accumulate(lengths, initial=0))

    def before(self, instant: int) -> int:
        last = bisect_right(self._starts, instant) - 1
        if last < 0:
            return 0
        return self._sums[last] + min(instant, self._stops[last]) - self._starts[last]
