"""Split waiting time into waiting for late ranks and waiting for rows in transit.

A rank waits for the last of its senders, and in a sum over ranks for the last rank that enters it.
That rank is *late* until it has sent or entered; during the rest of the wait rows *move*.
Exchanges of the sequential schedule record no sender, so waits for them count as neither.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hpcgnn.analysis.breakdown import training
from hpcgnn.analysis.load import SpanRecord
from hpcgnn.analysis.sessions import Trace
from hpcgnn.analysis.trace import Message, Session, messages_of

_NANO = 1e-9

Place = tuple[int, int, int]
"""Session, rank, and start of a span on that rank's clock, nanoseconds."""
Sum = tuple[int, int | None, int | None, int, str, int]
"""Session, seed, epoch, step, name, and index among those of that name in the step."""


@dataclass
class Waits:
    """Waiting times of one rank, summed over the training of all counted epochs.

    `late_s` are the seconds of waiting for each late rank. In `moving_s` no rank was late. `moves`
    is the number of waits, and `moved_bytes` the bytes they received.
    """

    late_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    moving_s: float = 0.0
    moved_bytes: int = 0
    moves: int = 0

    def include(self, begin: float, span: SpanRecord, last: tuple[float, int]) -> None:
        """Add a wait that begins at `begin`; `last` is the last sender's time and rank."""
        late = min(max(last[0] - begin, 0), span.duration_ns)
        self.late_s[last[1]] += late * _NANO
        self.moving_s += (span.duration_ns - late) * _NANO
        self.moves += 1


def who_waits(trace: Trace, sessions: Sequence[Session]) -> dict[int, Waits]:
    """Return the waits of each rank; `sessions` are those of the trace, on one clock."""
    trained = {
        (span.session, rank, span.start_ns)
        for rank in trace.ranks
        for epoch in training(trace.spans(rank), trace.epoch_s).values()
        for span in epoch
    }
    waits = {rank: Waits() for rank in trace.ranks}
    for place, messages in _by_wait(messages_of(sessions)[0]).items():
        if place in trained:
            _add_exchange(waits[place[1]], messages)
    for entered in _sums(sessions, trained):
        last = max((session.clock(span.start_ns), session.rank) for session, span in entered)
        for session, span in entered:
            waits[session.rank].include(session.clock(span.start_ns), span, last)
    return waits


def _by_wait(messages: Sequence[Message]) -> dict[Place, list[Message]]:
    """Return messages by the span that waits for them."""
    by_wait: dict[Place, list[Message]] = defaultdict(list)
    for message in messages:
        wait = message.received[1]
        by_wait[wait.session, message.receiver.rank, wait.start_ns].append(message)
    return by_wait


def _add_exchange(waits: Waits, messages: Sequence[Message]) -> None:
    first = messages[0]
    exchange, wait = first.received
    # A message is sent at the end of its span, or at the start if the exchange itself blocks.
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
    entered_by_sum: dict[Sum, list[tuple[Session, SpanRecord]]] = defaultdict(list)
    counts: dict[tuple[int, Sum], int] = defaultdict(int)
    for session in sessions:
        for span in session.spans:
            if span.phase == "reduce" and (span.session, session.rank, span.start_ns) in trained:
                step: Sum = session.number, span.seed, span.epoch, span.step, span.name, 0
                number = counts[session.rank, step]
                counts[session.rank, step] += 1
                entered_by_sum[*step[:-1], number].append((session, span))
    ranks = Counter(session.number for session in sessions)
    yield from (spans for key, spans in entered_by_sum.items() if len(spans) == ranks[key[0]])
