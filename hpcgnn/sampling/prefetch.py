"""Results that threads make ahead of their use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterates over ``make(item)`` for items in order, made by `threads` before they are due.

    At most `depth` results, at least 1, wait or are being made, so that memory is bounded however
    slowly they are used. The order of results does not depend on `threads` (0: a result is made
    when it is asked for); samplers release the GIL. An error of `make` is raised where its result
    is due. Use as a context manager: leaving it drops what waits and ends the threads.

    `make` is called from several threads at once; StopIteration ends the iteration. So
    ``Prefetch(next, itertools.repeat(iterator), threads=1, depth=2)`` runs an iterator ahead, all
    of it in one thread; nothing else may then use what it uses. `items` are taken in the thread of
    the user.
    """

    def __init__(
        self, make: Callable[[Any], T], items: Iterable[Any], *, threads: int, depth: int
    ) -> None:
        if threads < 0 or depth < 1:
            raise ValueError(f"{threads} threads and {depth} results ahead are not possible")
        self._make, self._items, self._depth = make, iter(items), depth
        self._executor = ThreadPoolExecutor(threads, "prefetch") if threads > 0 else None
        self._waiting: deque[Future[T]] = deque()
        self.most_bytes = 0
        """The most bytes, by `nbytes` of results, that waited when one was asked for."""

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what waits and end the threads; nothing comes after it."""
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
        # The place that became free is filled while the caller works.
        self._fill(self._executor)
        return result

    def _fill(self, executor: ThreadPoolExecutor) -> None:
        while len(self._waiting) < self._depth:
            item = next(self._items, None)
            if item is None:
                return
            self._waiting.append(executor.submit(self._make, item))
