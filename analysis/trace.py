"""Convert a run's trace to JSON for the viewers of Chrome and Perfetto, all ranks on one clock.

``hpcgnn analyse trace RUN -o trace.json``; open it at ui.perfetto.dev or chrome://tracing. A
process is a rank; a slice is a span; an arrow is a message, from the exchange that sent it to the
wait that received it; counters are bytes of ghost rows and of resident memory. The file has every
start of a resumed run, including epochs that a later start repeated.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.analysis.breakdown import FirstSent, Flight, flights_of
from hpcgnn.analysis.load import Json, SpanRecord, open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.storage import write_whole

NAME = "trace"

Step = tuple[int | None, int | None, int, str]
"""Seed, epoch, step and name of an exchange."""


@dataclass(frozen=True)
class RankClock:
    """Converts times of one rank's session to the clock of rank 0 in the first session.

    `session_ns` is the time from the first session's start to this one's. `readings` are (time,
    offset) in nanoseconds, the first at the session's start; the offset is linear between the first
    and the last. Offsets have an error of at most `bound_ns`; None: they come from the hosts' wall
    clocks. `moved_ns` is a correction of the offset derived from messages.
    """

    session_ns: int
    readings: tuple[tuple[int, int], ...]
    bound_ns: int | None
    moved_ns: int = 0

    def __call__(self, t_ns: int) -> int:
        """Return the nanoseconds since the first session's start."""
        (first, offset), (last, at_end) = self.readings[0], self.readings[-1]
        drift = (at_end - offset) / (last - first) if last > first else 0.0
        return self.session_ns + t_ns + offset + round(drift * (t_ns - first)) + self.moved_ns


@dataclass(frozen=True)
class Session:
    """One rank's part of one start of the run."""

    rank: int
    number: int
    header: Json
    spans: list[SpanRecord]
    clock: RankClock


def read_sessions(trace: Trace) -> list[Session]:
    """Return every session of every rank, on one clock."""
    starts, sessions = trace.starts_ns, []
    for rank in trace.every_rank:
        for number, header, spans in trace.whole_sessions(rank):
            pings = [span for span in spans if span.offset_ns is not None]
            readings = tuple((span.start_ns, int(span.offset_ns or 0)) for span in pings)
            bound = max((int(span.bound_ns or 0) for span in pings), default=None)
            if not readings:
                readings = ((0, header["start_unix_ns"] - starts[number]),)
            clock = RankClock(starts[number] - starts[0], readings, bound)
            sessions.append(Session(rank, number, header, spans, clock))
    return sessions


@dataclass(frozen=True)
class Message:
    """A message: the exchange that sent it, and the receiver's exchange with its wait."""

    sender: Session
    receiver: Session
    span: SpanRecord
    received: Flight
    rows: int
    bytes: int

    @property
    def sent_ns(self) -> int:
        """When its exchange began, on the common clock."""
        return self.sender.clock(self.span.start_ns)

    @property
    def taken_ns(self) -> int:
        """When the wait for it ended, on the common clock."""
        return self.receiver.clock(self.received[1].stop_ns)


def messages_of(sessions: Sequence[Session]) -> tuple[list[Message], int]:
    """Return the messages of exchanges, and the number of messages without a counterpart.

    The k-th exchange of a name in a step is the same exchange on all ranks. That holds for whole
    exchanges only: a sequential schedule skips the stages in which a rank has nothing to do, and
    no span records which message a stage received.
    """
    messages, unmatched = list[Message](), 0
    for number in {session.number for session in sessions}:
        by_rank = {session.rank: session for session in sessions if session.number == number}
        exchanges = {rank: _exchanges(session.spans) for rank, session in by_rank.items()}
        for rank, steps in exchanges.items():
            staged = by_rank[rank].header.get("schedule") == "sequential"
            for step, sent in steps.items():
                for index, (span, _) in enumerate(sent):
                    for peer, rows, size in span.peers or ():
                        received = exchanges.get(peer, {}).get(step, [])
                        if not rows:
                            continue
                        if staged or len(received) != len(sent):
                            unmatched += 1
                            continue
                        ends = by_rank[rank], by_rank[peer], span, received[index]
                        messages.append(Message(*ends, rows, size))
    return messages, unmatched


def first_sent(sessions: Sequence[Session]) -> dict[int, FirstSent]:
    """Return for each rank when the first message to each of its exchanges was sent."""
    by_rank: dict[int, dict[tuple[int, int], int]] = {each.rank: {} for each in sessions}
    for each in messages_of(sessions)[0]:
        own, clock = each.received[0], each.receiver.clock
        # Messages start at the end of their span; clocks drift little during a flight.
        after_ns = each.sender.clock(each.span.stop_ns) - clock(own.stop_ns)
        firsts, key = by_rank[each.receiver.rank], (own.session, own.start_ns)
        firsts[key] = min(firsts.get(key, own.stop_ns + after_ns), own.stop_ns + after_ns)
    return dict(by_rank)


def in_order(sessions: Sequence[Session]) -> list[Session]:
    """Correct the clocks of sessions so that no message is received before it is sent.

    Pings determine an offset up to half of their round trip; messages often do better. Corrections
    m of the clocks must satisfy ``m[sender] <= m[receiver] + taken - sent`` for all messages. The
    lengths of shortest paths do, and are 0 for clocks that no message contradicts.
    """
    messages, _ = messages_of(sessions)
    corrected = []
    for number in sorted({each.number for each in sessions}):
        of_number = [each for each in sessions if each.number == number]
        slack: dict[tuple[int, int], int] = {}
        for each in messages:
            if each.sender.number == number:
                pair, spare = (each.sender.rank, each.receiver.rank), each.taken_ns - each.sent_ns
                slack[pair] = min(slack.get(pair, spare), spare)
        moves = {each.rank: 0 for each in of_number}
        # Bellman-Ford needs at most as many rounds as there are ranks, unless messages contradict
        # each other, as in a damaged trace.
        for _ in moves:
            before = dict(moves)
            for (sender, receiver), most in slack.items():
                moves[sender] = min(moves[sender], moves[receiver] + most)
            if moves == before:
                break
        corrected += [
            replace(each, clock=replace(each.clock, moved_ns=moves[each.rank]))
            for each in of_number
        ]
    return corrected


def _exchanges(spans: Sequence[SpanRecord]) -> dict[Step, list[tuple[SpanRecord, SpanRecord]]]:
    """Return exchanges with the spans that complete them, by step and name."""
    epochs: dict[tuple[int | None, int | None], list[SpanRecord]] = defaultdict(list)
    for span in spans:
        epochs[span.seed, span.epoch].append(span)
    by_step: dict[Step, list[tuple[SpanRecord, SpanRecord]]] = defaultdict(list)
    for epoch in epochs.values():
        for flight in sorted(flights_of(epoch), key=lambda flight: flight[0].start_ns):
            exchange, _ = flight
            step = exchange.seed, exchange.epoch, exchange.step, exchange.name
            by_step[step].append(flight)
    return by_step


def events(sessions: Sequence[Session], messages: Iterable[Message]) -> Iterator[Json]:
    """Yield events of the Trace Event Format; times and durations in microseconds."""
    for rank, header in {each.rank: each.header for each in sessions}.items():
        name = f"rank {rank} on {header.get('host', 'an unknown host')}"
        yield _meta("process_name", rank, {"name": name})
        yield _meta("process_sort_index", rank, {"sort_index": rank})
        yield _meta("thread_name", rank, {"name": "spans"})
    for session in sessions:
        for span in session.spans:
            yield from _span_events(session, span)
    for number, message in enumerate(messages):
        text = {"rows": message.rows, "bytes": message.bytes}
        flow = {"cat": "message", "name": "message", "id": number, "tid": 0, "args": text}
        yield {"ph": "s", "pid": message.sender.rank, "ts": message.sent_ns / 1e3, **flow}
        # "bp": "e" binds the arrow to the enclosing slice.
        to = {"pid": message.receiver.rank, "ts": message.taken_ns / 1e3}
        yield {"ph": "f", "bp": "e", **to, **flow}


def _meta(name: str, rank: int, values: dict[str, Any]) -> Json:
    return {"ph": "M", "name": name, "pid": rank, "tid": 0, "args": values}


def _span_events(session: Session, span: SpanRecord) -> Iterator[Json]:
    start, stop = session.clock(span.start_ns), session.clock(span.stop_ns)
    values: dict[str, Any] = {"seed": span.seed, "epoch": span.epoch, "step": span.step}
    if span.rows or span.bytes:
        values |= {"rows": span.rows, "bytes": span.bytes}
    if span.peers:
        values["to"] = ", ".join(f"rank {peer}: {rows} rows" for peer, rows, _ in span.peers)
    place = {"pid": session.rank, "tid": 0}
    yield {
        "ph": "X", "name": span.name, "cat": span.phase, "ts": start / 1e3,
        "dur": (stop - start) / 1e3, "args": values, **place,
    }  # fmt: skip
    for name, value in (
        ("bytes of other ranks' rows", span.ghost_bytes),
        ("resident bytes", span.resident_bytes),
    ):
        if value is not None:
            yield {"ph": "C", "name": name, "ts": start / 1e3, "args": {"bytes": value}, **place}


def _facts(
    sessions: Sequence[Session], messages: Sequence[Message], unmatched: int
) -> dict[str, Any]:
    bounds = [each.clock.bound_ns for each in sessions]
    known = [bound for bound in bounds if bound is not None]
    return {
        "ranks": len({each.rank for each in sessions}),
        "sessions": len({each.number for each in sessions}),
        "messages": len(messages),
        "unmatched_messages": unmatched,
        "received_before_sent": sum(each.taken_ns < each.sent_ns for each in messages),
        "largest_offset_ms": max(
            abs(offset) for each in sessions for _, offset in each.clock.readings
        )
        / 1e6,
        "moved_us": max(-each.clock.moved_ns for each in sessions) / 1e3,
        "clock_bound_us": max(known) / 1e3 if known and len(known) == len(bounds) else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(
        f"analyse {NAME}",
        description="Write the trace of all ranks for Perfetto (ui.perfetto.dev) and Chrome.",
    )
    parser.add_argument("run", metavar="RUN", help="run directory of a training run")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json", help="default: RUN/trace.json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    run = open_run(options.run)
    output = options.output or run.path / "trace.json"
    if not output.parent.is_dir():
        raise InputError(f"{output.parent}: is not a directory; make it or choose another -o")
    sessions = in_order(read_sessions(Trace(run)))
    messages, unmatched = messages_of(sessions)
    facts = _facts(sessions, messages, unmatched)
    head = {"run": run.name, **facts}
    # One event per line makes the file readable.
    lines = ",\n".join(
        json.dumps(event, separators=(",", ":")) for event in events(sessions, messages)
    )
    text = (
        f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n{lines}\n]}}\n'
    )
    write_whole(output, text.encode(), streams=True)
    if options.json:
        print_json({"path": str(output), **facts})
        return
    bound = facts["clock_bound_us"]
    accuracy = "only from wall clocks" if bound is None else f"to within {bound:.0f} µs"
    report(
        f"{facts['ranks']} ranks, {facts['messages']} messages; clocks of ranks are up to "
        f"{facts['largest_offset_ms']:.3f} ms apart, known {accuracy}, and corrected by up to "
        f"{facts['moved_us']:.0f} µs to fit their messages; messages received before they were "
        f"sent: {facts['received_before_sent']}; not drawn: {facts['unmatched_messages']}; open it "
        "at ui.perfetto.dev:"
    )
    report(str(output.resolve()), sys.stdout)


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
