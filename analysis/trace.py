"""A run's trace as the JSON that Chrome's and Perfetto's viewers read: all ranks on one clock.

``hpcgnn analyse trace RUN -o trace.json``; open it at ui.perfetto.dev or chrome://tracing. A
process is a rank; a slice is a span; an arrow is a message, from the exchange that sent it to the
wait that took it in; counters are bytes of other ranks' rows, and of resident memory. Every start
of a resumed run is in it, with what a later one did again.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.analysis.breakdown import FirstSent, Flight, flights_of
from hpcgnn.analysis.jsonl import Json
from hpcgnn.analysis.load import SpanRecord, open_run
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
    """Turns times of one rank's session into those of rank 0's first.

    `session_ns` go from the first session's start to this one's. `readings` are (time, offset) in
    nanoseconds, the first at the session's start; between two the offset changes evenly. No offset
    is off by more than `bound_ns`; None: it comes from the hosts' wall clocks. `moved_ns` were
    added since messages showed that the offset was off by so much.
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


@dataclass(frozen=True)
class Message:
    """What one rank sent to another in an exchange; times in nanoseconds on the common clock."""

    session: int
    sender: int
    receiver: int
    rows: int
    bytes: int
    sent: int
    taken: int


def read_sessions(trace: Trace) -> list[Session]:
    """Return every session of every rank, on one clock."""
    starts, found = trace.starts_ns, []
    for rank in trace.ranks:
        for number, header, spans in trace.whole_sessions(rank):
            pings = [span for span in spans if span.offset_ns is not None]
            readings = tuple((span.start_ns, int(span.offset_ns or 0)) for span in pings)
            bound = max((int(span.bound_ns or 0) for span in pings), default=None)
            if not readings:
                readings = ((0, header["start_unix_ns"] - starts[number]),)
            clock = RankClock(starts[number] - starts[0], readings, bound)
            found.append(Session(rank, number, header, spans, clock))
    return found


@dataclass(frozen=True)
class Sent:
    """A message: its sender's exchange, and its receiver's with the span that took it in."""

    sender: Session
    receiver: Session
    span: SpanRecord
    theirs: Flight
    rows: int
    bytes: int


def sent_in(sessions: Sequence[Session]) -> tuple[list[Sent], int]:
    """Return what exchanges sent, and how many messages found no counterpart.

    The k-th exchange of a name in a step is the same exchange on all ranks. That holds for whole
    exchanges only: a sequential schedule leaves out the stages in which a rank has nothing to do,
    and no span tells which message a stage took in.
    """
    found, unmatched = list[Sent](), 0
    for number in {each.number for each in sessions}:
        together = {each.rank: each for each in sessions if each.number == number}
        exchanges = {rank: _exchanges(each.spans) for rank, each in together.items()}
        for rank, steps in exchanges.items():
            staged = together[rank].header.get("schedule") == "sequential"
            for step, own in steps.items():
                for index, (span, _) in enumerate(own):
                    for peer, rows, size in span.peers or ():
                        theirs = exchanges.get(peer, {}).get(step, [])
                        if not rows:
                            continue
                        if staged or len(theirs) != len(own):
                            unmatched += 1
                            continue
                        ends = together[rank], together[peer], span, theirs[index]
                        found.append(Sent(*ends, rows, size))
    return found, unmatched


def messages_of(sessions: Sequence[Session]) -> tuple[list[Message], int]:
    """Return the messages, and how many found no counterpart; see `sent_in`."""
    found, unmatched = sent_in(sessions)
    messages = []
    for each in found:
        sent = each.sender.clock(each.span.start_ns)
        taken = each.receiver.clock(each.theirs[1].stop_ns)
        ranks = each.sender.number, each.sender.rank, each.receiver.rank
        messages.append(Message(*ranks, each.rows, each.bytes, sent, taken))
    return messages, unmatched


def first_sent(sessions: Sequence[Session]) -> dict[int, FirstSent]:
    """Return for each rank when the first message of each of its exchanges was sent."""
    found: dict[int, dict[tuple[int, int], int]] = {each.rank: {} for each in sessions}
    for each in sent_in(sessions)[0]:
        own, clock = each.theirs[0], each.receiver.clock
        # Messages are started at the end of their span; two clocks differ little in a flight.
        after_ns = each.sender.clock(each.span.stop_ns) - clock(own.stop_ns)
        firsts, key = found[each.receiver.rank], (own.session, own.start_ns)
        firsts[key] = min(firsts.get(key, own.stop_ns + after_ns), own.stop_ns + after_ns)
    return dict(found)


def in_order(sessions: Sequence[Session]) -> list[Session]:
    """Return sessions whose clocks agree with their messages: none is taken in before it is sent.

    Pings know an offset up to half of their way; messages often know it better. Moves m of the
    clocks must hold ``m[sender] <= m[receiver] + taken - sent`` for all messages: the lengths of
    shortest paths do, and are 0 for clocks that no message contradicts.
    """
    messages, _ = messages_of(sessions)
    corrected = []
    for number in sorted({each.number for each in sessions}):
        together = [each for each in sessions if each.number == number]
        slack: dict[tuple[int, int], int] = {}
        for each in messages:
            if each.session == number:
                pair = each.sender, each.receiver
                slack[pair] = min(slack.get(pair, each.taken - each.sent), each.taken - each.sent)
        moves = {each.rank: 0 for each in together}
        # As many rounds as the longest path has steps; more only where messages contradict each
        # other, as those of a damaged trace may.
        for _ in moves:
            before = dict(moves)
            for (sender, receiver), most in slack.items():
                moves[sender] = min(moves[sender], moves[receiver] + most)
            if moves == before:
                break
        corrected += [
            replace(each, clock=replace(each.clock, moved_ns=moves[each.rank])) for each in together
        ]
    return corrected


def _exchanges(spans: Sequence[SpanRecord]) -> dict[Step, list[tuple[SpanRecord, SpanRecord]]]:
    """Return exchanges with the spans that complete them, by step and name."""
    epochs: dict[tuple[int | None, int | None], list[SpanRecord]] = defaultdict(list)
    for span in spans:
        epochs[span.seed, span.epoch].append(span)
    found: dict[Step, list[tuple[SpanRecord, SpanRecord]]] = defaultdict(list)
    for epoch in epochs.values():
        flights = sorted(flights_of(epoch), key=lambda flight: flight[0].start_ns)
        for exchange, wait in flights:
            found[exchange.seed, exchange.epoch, exchange.step, exchange.name].append(
                (exchange, wait)
            )
    return found


def events(sessions: Sequence[Session], messages: Iterable[Message]) -> Iterator[Json]:
    """Yield the events of the format; times and durations in microseconds."""
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
        yield {"ph": "s", "pid": message.sender, "ts": message.sent / 1e3, **flow}
        # Bound to the slice that ends there.
        yield {"ph": "f", "bp": "e", "pid": message.receiver, "ts": message.taken / 1e3, **flow}


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
        "received_before_sent": sum(each.taken < each.sent for each in messages),
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
    # A line an event, so that the file can be looked through.
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
    sure = "by wall clocks alone" if bound is None else f"to within {bound:.0f} µs"
    report(
        f"{facts['ranks']} ranks, {facts['messages']} messages, clocks of ranks up to "
        f"{facts['largest_offset_ms']:.3f} ms apart, known {sure}, moved by up to "
        f"{facts['moved_us']:.0f} µs as their messages ask; messages taken in before they were "
        f"sent: {facts['received_before_sent']}; not drawn: {facts['unmatched_messages']}; open it "
        "at ui.perfetto.dev:"
    )
    report(str(output.resolve()), sys.stdout)


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
