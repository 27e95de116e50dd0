"""The clock of a GPU, by CUDA events: a `hpcgnn.trace.DeviceClock`."""

from typing import Any

from hpcgnn.kernels.cuda.device import load_cupy

__all__ = ["EventClock"]


class EventClock:
    """Marks CuPy's current stream with events."""

    def mark(self) -> Any:
        """Return an event behind the work that was issued so far."""
        event = load_cupy().cuda.Event()
        event.record()
        return event

    def ns_between(self, start: Any, end: Any) -> int:
        """Return the nanoseconds from one event to a later one, when that has come."""
        end.synchronize()
        return round(float(load_cupy().cuda.get_elapsed_time(start, end)) * 1e6)
