"""A span as its user sees it, and as a recorder keeps it."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Protocol, Self, TypeAlias

from hpcgnn import watchdog


class DeviceClock(Protocol):
    """The clock of a device that works on its own."""

    def mark(self) -> Any:
        """Return a mark behind the work that was issued so far; waits for nothing."""

    def ns_between(self, start: Any, end: Any) -> int:
        """Return the device's nanoseconds from one mark to a later one; waits for the later one."""


Peers: TypeAlias = Sequence[Sequence[int]]
"""One ``(peer, rows, bytes)`` for each rank that this rank sends to."""


class Span:
    """A stretch of time, used as a context manager; this one is recorded by nobody."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def add(self, *, rows: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Count `rows` and `bytes` that became known inside the span."""


NO_SPAN = Span()
"""The only span of a recorder that is off: without state, so it can be shared and nested."""


class RecordedSpan(Span):
    """A span that takes its time and hands itself to `finish` at its end.

    `position` and `attributes` are what its record has beside times, ``name``, ``rows`` and
    ``bytes``, which its maker sets; `open_spans` the stack of spans that are open around this one,
    shared by all spans of a recorder. So is `clock`, of the device that the work inside is issued
    to; None: there is none.
    """

    __slots__ = (
        "_finish",
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
        finish: "Callable[[RecordedSpan], None]",
    ) -> None:
        self.name, self._position, self.attributes = name, position, attributes
        self._open_spans = open_spans
        self._finish = finish
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
        finish = self._finish
        # The recorder keeps spans until it writes them: they would keep it.
        del self._finish
        finish(self)

    def add(self, *, rows: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Count `rows` and `bytes` that became known inside the span."""
        self.rows += rows
        self.bytes += bytes

    def note(self, numbers: Mapping[str, int]) -> None:
        """Add numbers to attributes, which begin at 0."""
        for name, number in numbers.items():
            self.attributes[name] = self.attributes.get(name, 0) + number

    @property
    def device_self_ns(self) -> int:
        """The device's time less that of the spans directly inside it; of a `measured` span."""
        return self.device_ns - self._nested_device_ns

    def measure(self) -> None:
        """Ask the device how long the work that was issued inside took; nested spans come first."""
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
