"""Seconds by phase on one rank, and how much communication hides behind computation.

Every instant counts once, for the innermost span around it (self time). Time in no span is `OTHER`:
inside an epoch, and from the start of a session to its first epoch.

An exchange is in flight from the start of its span to the end of the span that completes it: the
next ``wait`` with the same detail, the next ``wait`` without one, or the exchange's own span if
neither follows in its epoch. Computation during that time is *overlapped* communication; self
time of `COMMUNICATION` phases is *exposed*.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from hpcgnn.analysis.load import PHASES, SpanRecord

OTHER = "other"
COMMUNICATION = ("exchange", "wait", "reduce")
PHASE_ORDER = (*PHASES, OTHER)

ARRIVED_NS = 100_000

_NANO = 1e-9

Interval = tuple[int, int]
Flight = tuple[SpanRecord, SpanRecord]
"""An exchange, and the span that completes it."""


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
class Arrivals:
    """What waits tell: how many exchanges were waited for, and how many had arrived by then.

    An exchange had arrived when its wait took less than `ARRIVED_NS`, about what asking MPI takes,
    and the rank waited for no other since it was started. Nothing else is known of when messages
    arrive.
    """

    exchanges: int = 0
    arrived: int = 0
    waited_s: float = 0.0


@dataclass
class RankTimes:
    """What one rank did inside its epochs and outside them; seconds are sums over all epochs."""

    rank: int
    epochs: int = 0
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    outside: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    names: dict[str, SpanTotal] = field(default_factory=lambda: defaultdict(SpanTotal))
    exposed: float = 0.0
    overlapped: float = 0.0
    arrivals: Arrivals = field(default_factory=Arrivals)

    @property
    def wall(self) -> float:
        """Seconds from the first to the last span of each epoch, summed."""
        return sum(self.phases.values())


def measure_rank(rank: int, spans: Iterable[SpanRecord]) -> RankTimes:
    """Sum up the spans of one rank."""
    times = RankTimes(rank)
    epochs: dict[tuple[int | None, int], list[SpanRecord]] = defaultdict(list)
    sessions: dict[int, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        sessions[span.session].append(span)
        if span.epoch is not None:
            epochs[span.seed, span.epoch].append(span)
            total = SpanTotal(1, span.self_ns * _NANO, span.rows, span.bytes)
            times.names[span.name].include(total)
    times.epochs = len(epochs)
    for epoch in epochs.values():
        _add_epoch(times, epoch)
    for session in sessions.values():
        _add_outside(times, session)
    return times


def _add_outside(times: RankTimes, spans: Sequence[SpanRecord]) -> None:
    outside = [span for span in spans if span.epoch is None]
    for span in outside:
        times.outside[span.phase] += span.self_ns * _NANO
    inside_starts = (span.start_ns for span in spans if span.epoch is not None)
    set_up_ns = min(inside_starts, default=max((span.stop_ns for span in outside), default=0))
    covered_ns = sum(span.self_ns for span in outside if span.start_ns < set_up_ns)
    times.outside[OTHER] += (set_up_ns - covered_ns) * _NANO


def _add_epoch(times: RankTimes, spans: Sequence[SpanRecord]) -> None:
    wall_ns = max(span.stop_ns for span in spans) - min(span.start_ns for span in spans)
    for span in spans:
        seconds = span.self_ns * _NANO
        times.phases[span.phase] += seconds
        if span.phase in COMMUNICATION:
            times.exposed += seconds
    times.phases[OTHER] += (wall_ns - sum(span.self_ns for span in spans)) * _NANO
    nested = _by_start(spans)
    flights = _flights(nested)
    times.overlapped += _overlapped_ns(nested, flights) * _NANO
    _add_arrivals(times.arrivals, flights)


def _by_start(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    """Return spans in the order of their starts, one before those inside it."""
    # Records come in the order of their ends; reversed, a span precedes those inside it.
    nested = list(reversed(spans))
    nested.sort(key=lambda span: (span.start_ns, -span.stop_ns))
    return nested


def _overlapped_ns(nested: Sequence[SpanRecord], flights: Sequence[Flight]) -> int:
    """Return the self time of computing spans while an exchange was in flight."""
    in_flight = _CoveredTime((start.start_ns, stop.stop_ns) for start, stop in flights)
    overlapped, around = 0, list[SpanRecord]()
    for span in nested:
        while around and around[-1].stop_ns <= span.start_ns:
            around.pop()
        covered = in_flight.before(span.stop_ns) - in_flight.before(span.start_ns)
        if span.phase not in COMMUNICATION:
            overlapped += covered
        if around and around[-1].phase not in COMMUNICATION:
            overlapped -= covered
        around.append(span)
    return overlapped


def _add_arrivals(found: Arrivals, flights: Sequence[Flight]) -> None:
    waits = {id(wait): wait for exchange, wait in flights if wait is not exchange}.values()
    # What arrives while another exchange is waited for is behind that wait, not behind computing.
    waiting = _CoveredTime(
        (wait.start_ns, wait.stop_ns) for wait in waits if wait.duration_ns >= ARRIVED_NS
    )
    for exchange, wait in flights:
        if wait is not exchange:
            idle = waiting.before(wait.stop_ns) - waiting.before(exchange.stop_ns)
            found.exchanges += 1
            found.arrived += idle == 0
    found.waited_s += sum(wait.self_ns for wait in waits) * _NANO


def flights_of(spans: Sequence[SpanRecord]) -> list[Flight]:
    """Return every exchange of an epoch with the span that completes it."""
    return _flights(_by_start(spans))


def _flights(spans: Iterable[SpanRecord]) -> list[Flight]:
    """Return every exchange with the span that completes it; `spans` by start."""
    waiting: dict[str, deque[SpanRecord]] = defaultdict(deque)
    found: list[Flight] = []
    for span in spans:
        if span.phase == "exchange":
            waiting[span.detail].append(span)
        elif span.phase == "wait":
            found += [(exchange, span) for exchange in _take_completed(waiting, span.detail)]
    never_waited = chain.from_iterable(waiting.values())
    return found + [(exchange, exchange) for exchange in never_waited]


def _take_completed(waiting: dict[str, deque[SpanRecord]], detail: str) -> list[SpanRecord]:
    if detail:
        return [waiting[detail].popleft()] if waiting[detail] else []
    completed = list(chain.from_iterable(waiting.values()))
    waiting.clear()
    return completed


class _CoveredTime:
    """How much of the time before an instant lies inside a set of intervals."""

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
