"""Items that a thread makes ahead of their use."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["Prefetch"]

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Runs an iterator in a thread, at most `depth` items ahead; use as a context manager.

    Not collective.

    An error of the iterator is raised where its item is due. Leaving the block stops the thread.

    Parameters
    ----------
    items
        What to run; nothing else may use what it uses meanwhile.
    depth
        Items to hold, at least 1.
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._items = items
        self._ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> "Prefetch[T]":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():
            # A full queue would hold the thread up for ever.
            self._drain()
            self._thread.join(0.01)

    def __iter__(self) -> Iterator[T]:
        """Yield the items in order."""
        while True:
            item, error = self._ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                self._ready.put((item, None))
                if self._stop.is_set():
                    return
        except BaseException as caught:
            error = caught
        self._ready.put((None, error))

    def _drain(self) -> None:
        while True:
            try:
                self._ready.get_nowait()
            except queue.Empty:
                return
