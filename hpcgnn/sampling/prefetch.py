"""An iterator over results that threads compute ahead of use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterates over ``make(item)`` for all items in order, computed ahead of time by `threads`.

    At most `depth` results, at least 1, are waiting or in progress, so memory is bounded however
    slowly they are used. The order of results does not depend on `threads`; with 0 threads a result
    is computed when it is asked for. Samplers release the GIL. An error in `make` is raised when
    its result is due. Leaving the context manager drops waiting results and ends the threads.

    `make` is called from several threads at once, and StopIteration in it ends the iteration. So
    ``Prefetch(next, itertools.repeat(iterator), threads=1, depth=2)`` runs an iterator ahead in one
    thread, which must be the only user of the iterator's data. `items` are read in the caller's
    thread.
    """

    def __init__(
        self, make: Callable[[Any], T], items: Iterable[Any], *, threads: int, depth: int
    ) -> None:
        if threads < 0 or depth < 1:
            raise ValueError(f"{threads} threads, depth {depth}: use at least 0 threads, depth 1")
        self._make, self._items, self._depth = make, iter(items), depth
        self._executor = ThreadPoolExecutor(threads, "prefetch") if threads > 0 else None
        self._waiting: deque[Future[T]] = deque()
        self.most_bytes = 0
        """Largest total `nbytes` of the finished results waiting at the time of a request."""

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop waiting results and end the threads; the iteration is over."""
        self._items = iter(())
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._executor is None:
            return self._make(next(self._items))
        self._fill(self._executor)
        if not self._waiting:
            raise StopIteration
        ready = [
            future.result() for future in self._waiting if future.done() and not future.exception()
        ]
        self.most_bytes = max(self.most_bytes, sum(getattr(drawn, "nbytes", 0) for drawn in ready))
        result = self._waiting.popleft().result()
        # Start the next item now, so that it is computed while the caller works.
        self._fill(self._executor)
        return result

    def _fill(self, executor: ThreadPoolExecutor) -> None:
        while len(self._waiting) < self._depth:
            item = next(self._items, None)
            if item is None:
                return
            self._waiting.append(executor.submit(self._make, item))
