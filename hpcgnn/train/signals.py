"""A request to stop, sent by the scheduler as a signal and honoured at the end of an epoch."""

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["EXIT_REQUEUE", "StopRequest", "stop_on_signals"]

EXIT_REQUEUE = 75
"""Exit status of a run that stopped with a checkpoint and wants to be started again."""


class StopRequest:
    """Remembers that this rank was asked to stop; ranks agree on it once an epoch."""

    def __init__(self) -> None:
        self.received: str | None = None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM and SIGUSR1 into a request while the block runs.

    Not collective.
    """
    request = StopRequest()

    def remember(number: int, _frame: object) -> None:
        request.received = signal.Signals(number).name

    before = {
        number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
