"""What a trace asks of a device that works on its own: marks in its stream, and times between."""

from typing import Any, Protocol


class DeviceClock(Protocol):
    """The clock of a device."""

    def mark(self) -> Any:
        """Return a mark behind the work that was issued so far; waits for nothing."""
        ...

    def ns_between(self, start: Any, end: Any) -> int:
        """Return the device's nanoseconds from one mark to a later one; waits for the later one."""
        ...
