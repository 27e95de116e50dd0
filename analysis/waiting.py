"""What waiting is for: a rank that is late, or bytes that are on their way.

A rank waits for the last of those who send to it, and in a sum over ranks for the last that enters
it. Until that one has sent, or has entered, it is *late*; what is left of the wait, rows *move*.
Exchanges of the sequential schedule tell of no sender, so that waits for them are in neither.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hpcgnn.analysis.breakdown import training
from hpcgnn.analysis.load import SpanRecord
from hpcgnn.analysis.sessions import Trace
from hpcgnn.analysis.trace import Sent, Session, sent_in

_NANO = 1e-9

Place = tuple[int, int, int]
"""Session, rank, and start of a span on that rank's clock, nanoseconds."""
Sum = tuple[int, int | None, int | None, int, str, int]
"""Session, seed, epoch, step, name, and which of that name in the step."""


@dataclass
class Waits:
    """Of one rank, sums over the training of all epochs that count.

    `late_s` are seconds by the rank that was waited for. Nobody was late in `moving_s`;
    `moved_bytes` are what the waits among them brought, and `moves` how many they were.
    """

    late_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    moving_s: float = 0.0
    moved_bytes: int = 0
    moves: int = 0

    def include(self, begin: float, span: SpanRecord, last: tuple[float, int]) -> None:
        """Add a wait that begins at `begin`; `last` is when the last rank has sent, and which."""
        late = min(max(last[0] - begin, 0), span.duration_ns)
        self.late_s[last[1]] += late * _NANO
        self.moving_s += (span.duration_ns - late) * _NANO
        self.moves += 1


def who_waits(trace: Trace, sessions: Sequence[Session]) -> dict[int, Waits]:
    """Return the waits of each rank.

    The sessions are those of the trace, on one clock.
    """
    trained = {
        (span.session, rank, span.start_ns)
        for rank in trace.ranks
        for epoch in training(trace.spans(rank), trace.epoch_s).values()
        for span in epoch
    }
    found = {rank: Waits() for rank in trace.ranks}
    for place, messages in _by_wait(sent_in(sessions)[0]).items():
        if place in trained:
            _add_exchange(found[place[1]], messages)
    for entered in _sums(sessions, trained):
        last = max((each.clock(span.start_ns), each.rank) for each, span in entered)
        for each, span in entered:
            found[each.rank].include(each.clock(span.start_ns), span, last)
    return found


def _by_wait(messages: Sequence[Sent]) -> dict[Place, list[Sent]]:
    """Return messages by the span that waits for them."""
    found: dict[Place, list[Sent]] = defaultdict(list)
    for each in messages:
        wait = each.theirs[1]
        found[wait.session, each.receiver.rank, wait.start_ns].append(each)
    return found


def _add_exchange(waits: Waits, messages: Sequence[Sent]) -> None:
    first = messages[0]
    exchange, wait = first.theirs
    # A message leaves at the end of its span; where nobody waits behind it, the exchange blocks.
    blocks = wait is exchange
    last = max(
        (each.sender.clock(each.span.start_ns if blocks else each.span.stop_ns), each.sender.rank)
        for each in messages
    )
    waits.include(first.receiver.clock(wait.start_ns), wait, last)
    waits.moved_bytes += sum(each.bytes for each in messages)


def _sums(
    sessions: Sequence[Session], trained: set[Place]
) -> Iterator[list[tuple[Session, SpanRecord]]]:
    """Yield the spans of all ranks for each sum over ranks in training."""
    together: dict[Sum, list[tuple[Session, SpanRecord]]] = defaultdict(list)
    counts: dict[tuple[int, Sum], int] = defaultdict(int)
    for each in sessions:
        for span in each.spans:
            if span.phase == "reduce" and (span.session, each.rank, span.start_ns) in trained:
                step: Sum = each.number, span.seed, span.epoch, span.step, span.name, 0
                number = counts[each.rank, step]
                counts[each.rank, step] += 1
                together[*step[:-1], number].append((each, span))
    ranks = Counter(each.number for each in sessions)
    yield from (entered for key, entered in together.items() if len(entered) == ranks[key[0]])
