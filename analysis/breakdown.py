"""Seconds by phase on one rank, and how much communication hides behind computation.

Of an epoch its training counts; the evaluation and the checkpoint behind it do not. Every instant
counts once, for the innermost span around it (self time). Time in no span is `OTHER`: inside an
epoch, and from the start of a session to its first epoch.

An exchange is in flight from the end of its span, or from when the first of the ranks that it waits
for has sent, if that is later and known, to the span that completes it: the next ``wait`` with the
same detail, or the next ``wait`` without one. Computing then *hides* what of it moves
meanwhile, which the wait's record tells: bytes that had arrived when it began. Where all had, the
exchange moved until this was seen; where a part had, as long as the rest would have let one expect.
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
_BEHIND = ("evaluate", "checkpoint")
"""Phases behind the training of an epoch; all that begins after one of them belongs to it."""
PHASE_ORDER = (*PHASES, OTHER)

_NANO = 1e-9

Interval = tuple[int, int]
Flight = tuple[SpanRecord, SpanRecord]
"""An exchange, and the span that completes it."""
Epoch = tuple[int | None, int | None]
"""Seed and number."""
EpochSeconds = Mapping[Epoch, float]
"""Seconds of training of each epoch that counts, see `hpcgnn.trace.epochs`."""
FirstSent = Mapping[tuple[int, int], int]
"""By session and start of an exchange's span: when the first of the messages that it brings was
sent, on the clock of who receives it."""


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
    """What waits tell of the exchanges that they complete.

    Of `exchanges` was measured what had arrived; of exchanges between GPUs, and in older traces,
    nothing is known. They brought `awaited_bytes`, of which `arrived_bytes` were there when
    somebody waited. `hidden_s` is computing while they moved, `coverable_s` computing that was
    there to hide them, had they moved all the time since the first was sent: at most as long as
    they moved and were waited for.
    """

    exchanges: int = 0
    awaited_bytes: int = 0
    arrived_bytes: int = 0
    hidden_s: float = 0.0
    coverable_s: float = 0.0


@dataclass
class RankTimes:
    """What one rank did inside its epochs and outside them; seconds are sums over all epochs.

    Only `epochs` has those that do not count.
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
        """Seconds of training of all epochs that count."""
        return sum(self.phases.values())


def measure_rank(
    rank: int,
    spans: Sequence[SpanRecord],
    first_sent: FirstSent | None = None,
    epoch_s: EpochSeconds | None = None,
) -> RankTimes:
    """Sum up the spans of one rank.

    `first_sent` is what other ranks' traces tell: without an entry an exchange moves from the end
    of its span. Without `epoch_s` all epochs count, each from its first span of training to its
    last.
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
    """Return the spans of training in each epoch that counts, in the order in which they ended."""
    epochs: dict[Epoch, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if span.epoch is not None and (epoch_s is None or (span.seed, span.epoch) in epoch_s):
            epochs[span.seed, span.epoch].append(span)
    found = {}
    for key, epoch in epochs.items():
        behind = [span.start_ns for span in epoch if span.phase in _BEHIND]
        end_ns = min(behind, default=None)
        trained = [span for span in epoch if end_ns is None or span.start_ns < end_ns]
        if trained:
            found[key] = trained
    return found


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
    # The clock of the metrics stops a little later than the last span.
    covered = sum(span.self_ns for span in spans) * _NANO
    times.phases[OTHER] += max(seconds - covered, wall - covered, 0.0)
    _add_hidden(times.hidden, _by_start(spans), first_sent)


def _by_start(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    """Return spans in the order of their starts, one before those inside it."""
    # Records come in the order of their ends; reversed, a span precedes those inside it.
    nested = list(reversed(spans))
    nested.sort(key=lambda span: (span.start_ns, -span.stop_ns))
    return nested


def _add_hidden(found: Hidden, nested: Sequence[SpanRecord], first_sent: FirstSent) -> None:
    hidden, coverable = list[Interval](), list[Interval]()
    for exchange, wait in _flights(nested):
        if wait.awaited_bytes:
            arrived, waited_ns = wait.arrived_bytes or 0, wait.waited_ns or 0
            found.exchanges += 1
            found.awaited_bytes += wait.awaited_bytes
            found.arrived_bytes += arrived
            if arrived == wait.awaited_bytes and wait.moving_ns is None:
                # All was there, and nobody saw since when.
                continue
            # Nothing moves before somebody has sent.
            key = exchange.session, exchange.start_ns
            start_ns = max(exchange.stop_ns, first_sent.get(key, exchange.stop_ns))
            moved_ns = max((wait.moving_ns or 0) - (start_ns - exchange.stop_ns), 0)
            if arrived < wait.awaited_bytes:
                moved_ns = waited_ns * arrived // (wait.awaited_bytes - arrived)
            for intervals, length_ns in ((hidden, moved_ns), (coverable, moved_ns + waited_ns)):
                stop_ns = min(wait.start_ns, start_ns + length_ns)
                intervals.append((start_ns, max(stop_ns, start_ns)))
    found.hidden_s += _computing_ns(nested, hidden) * _NANO
    found.coverable_s += _computing_ns(nested, coverable) * _NANO


def _computing_ns(nested: Sequence[SpanRecord], intervals: Sequence[Interval]) -> int:
    """Return the self time of computing spans inside the union of some intervals."""
    inside = _CoveredTime(intervals)
    total, around = 0, list[SpanRecord]()
    for span in nested:
        while around and around[-1].stop_ns <= span.start_ns:
            around.pop()
        covered = inside.before(span.stop_ns) - inside.before(span.start_ns)
        if span.phase not in COMMUNICATION:
            total += covered
        if around and around[-1].phase not in COMMUNICATION:
            total -= covered
        around.append(span)
    return total


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
