"""Spans of time on one rank, summed in memory and written to a file between epochs.

Time is attributed once: a span's *self time* is its duration less the duration of the spans
opened inside it. Self times of all spans therefore add up to the time covered by the outermost
ones, however deep they nest.
"""

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any, Self

from hpcgnn import watchdog
from hpcgnn.errors import InputError
from hpcgnn.trace.energy import Meter
from hpcgnn.trace.schema import (
    RESERVED_KEYS,
    SCHEMA_VERSION,
    TRAFFIC,
    TraceSink,
    check_name,
    phase_of,
)
from hpcgnn.trace.span import NO_SPAN, DeviceClock, Peers, RecordedSpan, Span

_NANO = 1e-9
_MOST_ENDED = 1 << 12
"""Spans that wait to be added up: totals are asked for once or twice an epoch."""


class TraceRecorder:
    """The trace of one rank; make it with `open` or `off`.

    `enabled` tells whether spans are recorded at all. Their times count from `origin_ns` of this
    rank's monotonic clock. `meter` measures the joules of this rank once a run has set it. Spans
    nest per thread, because in sampled training a thread exchanges rows for the next step while the
    main thread computes. Everything else must be called from one thread.

    Examples
    --------
    >>> trace = TraceRecorder.open(None, rank=0, header={"ranks": 1})
    >>> trace.set_epoch(0)
    >>> with trace.span("dense"), trace.span("exchange.forward", rows=3) as span:
    ...     span.add(bytes=96)
    >>> trace.totals()["exchange.forward"]["rows"]
    3
    """

    def __init__(self, sink: TraceSink | None, *, enabled: bool = True) -> None:
        self._sink = sink
        self._keeps_records = sink is not None
        self.enabled, self.meter = enabled, Meter()
        self.origin_ns, self._start_unix_ns = perf_counter_ns(), time_ns()
        self._position: dict[str, int | None] = {"seed": None, "epoch": None, "step": 0}
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._header: list[dict[str, Any]] = []
        # Finished spans that are not in the totals yet.
        self._ended: deque[RecordedSpan] = deque()
        # Finished spans to write; their records are made when they are written.
        self._unwritten: list[RecordedSpan] = []
        # Span name -> whether it counts as traffic that this rank sends.
        self._known_names: dict[str, bool] = {}
        self._totals: dict[str, list[int]] = {}
        self._sent_rows = self._sent_bytes = 0
        self._clock: DeviceClock | None = None
        # Finished spans whose work the device may not have completed.
        self._unmeasured: list[RecordedSpan] = []
        self._device_ns: dict[str, int] = {}

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        rank: int,
        header: Mapping[str, Any],
        *,
        append: bool = False,
    ) -> "TraceRecorder":
        """Start a trace in the rank's file (see `trace_file`); None keeps totals in memory only.

        The header record has `rank` and the entries of `header`, at least ``ranks``; ``host``,
        ``pid`` and the start time are added. `append` continues the file of a resumed run with a
        new header record. Raises `InputError` if the file cannot be written.
        """
        if path is None:
            return cls(None)
        recorder = cls.unattached()
        recorder.attach(path, rank, header, append=append)
        return recorder

    @classmethod
    def unattached(cls) -> "TraceRecorder":
        """Start a trace whose spans stay in memory until `attach` names its file.

        A run reads its graph before it is allowed to replace the files of an earlier run.
        """
        recorder = cls(None)
        recorder._keeps_records = True
        return recorder

    def attach(
        self, path: str | Path, rank: int, header: Mapping[str, Any], *, append: bool = False
    ) -> None:
        """Write all spans since the start, and those to come, to a file; see `open`."""
        own = {"schema": SCHEMA_VERSION, "rank": rank, "start_unix_ns": self._start_unix_ns}
        first = {"host": socket.gethostname(), "pid": os.getpid(), **header, **own}
        self._sink = TraceSink(path, append=append)
        self._header.append(first)
        self.flush()

    @classmethod
    def off(cls) -> "TraceRecorder":
        """Return a recorder that records nothing and costs nothing measurable."""
        return cls(None, enabled=False)

    def use_clock(self, clock: DeviceClock) -> None:
        """Also measure, from now on, the device time of the work issued inside spans.

        A span's record then has ``device_ns`` and ``device_self_ns`` beside the host's times, and
        totals have ``device_seconds``. `flush` reads the device's clock and waits for the device.
        """
        if self.enabled:
            self._clock = clock

    def span(
        self,
        name: str,
        *,
        rows: int = 0,
        bytes: int = 0,  # noqa: A002
        peers: Peers | None = None,
        **attributes: Any,
    ) -> Span:
        """Return a context manager that records the time inside it.

        `name` is ``phase`` or ``phase.detail``, for instance ``exchange.forward``. `rows` and
        `bytes` count the data moved, in an exchange the data that this rank sends. `peers` are
        ``(peer, rows, bytes)`` for each receiving rank; they are kept until `flush`, so the caller
        must not change them. `attributes` are further JSON values for the record. Raises
        `ValueError` if the phase is unknown or an attribute has the name of a record's field.
        """
        if not self.enabled:
            return NO_SPAN
        if name not in self._known_names:
            check_name(name)
            self._known_names[name] = phase_of(name) in TRAFFIC
        if attributes and not RESERVED_KEYS.isdisjoint(attributes):
            raise ValueError(f"span {name!r}: attributes {sorted(attributes)} hide its own fields")
        if peers is not None:
            attributes["peers"] = peers
        if len(self._ended) > _MOST_ENDED:
            self._add_up()
        span = RecordedSpan(name, self._position, attributes, self._open_spans(), self._ended)
        span.rows, span.bytes, span.clock = int(rows), int(bytes), self._clock
        return span

    def note(self, **numbers: int) -> None:
        """Add numbers to attributes of the innermost span open in this thread, if there is one."""
        if self.enabled and (spans := self._open_spans()):
            spans[-1].note(numbers)

    def _open_spans(self) -> list[RecordedSpan]:
        """Return the spans that are open in this thread, the innermost last."""
        try:
            spans: list[RecordedSpan] = self._threads.spans
        except AttributeError:
            spans = self._threads.spans = []
        return spans

    def set_epoch(self, epoch: int | None, step: int = 0, *, seed: int | None = None) -> None:
        """Set the position recorded with the spans to come; `epoch` None is outside all epochs."""
        self._position = {"seed": seed, "epoch": epoch, "step": step}
        watchdog.set_position("" if epoch is None else f"seed {seed}, epoch {epoch}, step {step}")

    def totals(self) -> dict[str, dict[str, float]]:
        """Return count, self seconds, rows and bytes by span name, since the start.

        With a device's clock there are also the ``device_seconds`` of flushed spans.
        """
        self._add_up()
        return {name: self.total_of(name) for name in sorted(self._totals)}

    def total_of(self, name: str) -> dict[str, float]:
        """Return the `totals` of one span name; zeros before its first span."""
        self._add_up()
        count, self_ns, rows, size = self._totals.get(name, (0, 0, 0, 0))
        sums = {"count": count, "seconds": self_ns * _NANO, "rows": rows, "bytes": size}
        if name in self._device_ns:
            sums["device_seconds"] = self._device_ns[name] * _NANO
        return sums

    def traffic(self) -> dict[str, dict[str, float]]:
        """Return the `totals` of the spans that count what this rank sends."""
        self._add_up()
        names = (name for name in sorted(self._totals) if phase_of(name) in TRAFFIC)
        return {name: self.total_of(name) for name in names}

    def sent(self) -> tuple[int, int]:
        """Return the rows and bytes of `traffic`, summed over all names."""
        self._add_up()
        return self._sent_rows, self._sent_bytes

    def seconds_by_phase(self) -> dict[str, float]:
        """Return self seconds by phase; their sum is the time covered by outermost spans."""
        self._add_up()
        sums_ns: dict[str, int] = {}
        for name, (_, self_ns, _, _) in sorted(self._totals.items()):
            sums_ns[phase_of(name)] = sums_ns.get(phase_of(name), 0) + self_ns
        return {phase: value * _NANO for phase, value in sums_ns.items()}

    def flush(self) -> None:
        """Write the finished spans; call it between epochs, on every rank.

        Nothing is written at any other time, so no span contains the time of writing. Raises
        `InputError` if the file cannot be written; the trace then goes on in memory only. This can
        happen on one rank alone, so ranks have to agree on it before their next collective.
        """
        self._add_up()
        self._measure()
        if self._sink is None:
            return
        records = self._header + [span.record(self.origin_ns) for span in self._unwritten]
        self._header.clear()
        self._unwritten.clear()
        try:
            self._sink.write(records)
        except InputError:
            self._sink, self._keeps_records = None, False
            raise

    def close(self) -> None:
        """Write the finished spans and close the file; totals stay readable."""
        self.flush()
        sink, self._sink = self._sink, None
        self._keeps_records = False
        if sink is not None:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Report one fault only: a full disk that stopped the run also stops the trace.
        with contextlib.suppress(*(() if kind is None else (InputError,))):
            self.close()

    def _add_up(self) -> None:
        """Add the spans that have ended since the last call to the totals."""
        with self._lock:
            while self._ended:
                span = self._ended.popleft()
                name, rows, size = span.name, span.rows, span.bytes
                total = self._totals.get(name)
                if total is None:
                    total = self._totals[name] = [0, 0, 0, 0]
                total[0] += 1
                total[1] += span.self_ns
                total[2] += rows
                total[3] += size
                if self._known_names[name]:
                    self._sent_rows += rows
                    self._sent_bytes += size
                if self._keeps_records:
                    self._unwritten.append(span)
                if span.clock is not None:
                    self._unmeasured.append(span)

    def _measure(self) -> None:
        for span in self._unmeasured:
            span.measure()
            own = span.device_self_ns
            self._device_ns[span.name] = self._device_ns.get(span.name, 0) + own
            span.attributes |= {"device_ns": span.device_ns, "device_self_ns": own}
        self._unmeasured.clear()
