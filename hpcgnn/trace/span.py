"""Spans: the context manager that callers use, and the form that a recorder keeps."""

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from hpcgnn import watchdog

if TYPE_CHECKING:
    from collections import deque


class DeviceClock(Protocol):
    """The clock of a device that runs asynchronously to the host."""

    def mark(self) -> Any:
        """Return a mark after the work issued so far, without waiting for it."""

    def ns_between(self, start: Any, end: Any) -> int:
        """Wait for the mark `end` and return the device's nanoseconds since the mark `start`."""


Peers: TypeAlias = Sequence[Sequence[int]]
"""One ``(peer, rows, bytes)`` for each rank that this rank sends to."""


class Span:
    """A stretch of time, used as a context manager; this base class records nothing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def add(self, *, rows: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Count `rows` and `bytes` that became known inside the span."""


NO_SPAN = Span()
"""The span of every recorder that is off; it has no state, so it can be shared and nested."""


class RecordedSpan(Span):
    """A span that measures its duration and appends itself to `ended` at its end.

    `position` and `attributes` are the entries of its record other than times, ``name``, ``rows``
    and ``bytes``, which its maker sets. `open_spans` is the stack of spans open around this one,
    shared by all spans of a thread. `clock` is that of the device that executes the work inside, if
    there is one.
    """

    __slots__ = (
        "_ended",
        "_marks",
        "_nested_device_ns",
        "_nested_ns",
        "_open_spans",
        "_parent",
        "_position",
        "_start_ns",
        "attributes",
        "bytes",
        "clock",
        "device_ns",
        "duration_ns",
        "name",
        "rows",
        "self_ns",
    )
    rows: int
    bytes: int
    clock: DeviceClock | None
    self_ns: int
    """Duration less that of the spans directly inside it; of a span that has ended."""

    def __init__(
        self,
        name: str,
        position: Mapping[str, Any],
        attributes: dict[str, Any],
        open_spans: "list[RecordedSpan]",
        ended: "deque[RecordedSpan]",
    ) -> None:
        self.name, self._position, self.attributes = name, position, attributes
        self._open_spans, self._ended = open_spans, ended
        self._nested_ns = self._nested_device_ns = 0

    def __enter__(self) -> Self:
        if self.clock is not None:
            self._parent: RecordedSpan | None = self._open_spans[-1] if self._open_spans else None
            self._marks: list[Any] = [self.clock.mark()]
        self._open_spans.append(self)
        watchdog.set_place(self.name, "")
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.clock is not None:
            self._marks.append(self.clock.mark())
        self.duration_ns = duration = perf_counter_ns() - self._start_ns
        self.self_ns = duration - self._nested_ns
        spans, around = self._open_spans, ""
        closed = spans.pop()
        assert closed is self, f"span {self.name} closes while {closed.name} is open inside it"
        if spans:
            outer = spans[-1]
            outer._nested_ns += duration
            around = outer.name
        watchdog.set_place(around, self.name)
        # An atomic operation: threads end spans at the same time.
        self._ended.append(self)

    def add(self, *, rows: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Count `rows` and `bytes` that became known inside the span."""
        self.rows += rows
        self.bytes += bytes

    def note(self, numbers: Mapping[str, int]) -> None:
        """Add numbers to attributes, which start at 0."""
        for name, number in numbers.items():
            self.attributes[name] = self.attributes.get(name, 0) + number

    @property
    def device_self_ns(self) -> int:
        """Device time less that of the spans directly inside; call `measure` first."""
        return self.device_ns - self._nested_device_ns

    def measure(self) -> None:
        """Read the device time of the work issued inside; measure nested spans first."""
        assert self.clock is not None
        self.device_ns = self.clock.ns_between(*self._marks)
        if self._parent is not None:
            self._parent._nested_device_ns += self.device_ns

    def record(self, origin_ns: int) -> dict[str, Any]:
        """Return the finished span as a record of the trace file."""
        return {
            "t_ns": self._start_ns - origin_ns,
            "dur_ns": self.duration_ns,
            "self_ns": self.self_ns,
            **self._position,
            "name": self.name,
            "rows": self.rows,
            "bytes": self.bytes,
            **self.attributes,
        }
