"""A bounded pool of things that threads make ahead of their use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Protocol, TypeVar

__all__ = ["SampleAhead", "Sized"]


class Sized(Protocol):
    """Something that knows its bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        ...


T = TypeVar("T", bound=Sized)


class SampleAhead(Generic[T]):
    """Iterates over ``make(number)`` for numbers in order, made by threads before they are due.

    Not collective.

    At most `capacity` results wait or are in work, so that memory stays as it is however slowly
    they are used. The order of results does not depend on `threads`. Samplers release the GIL. Use
    as a context manager: leaving it drops what waits and ends the threads.

    Parameters
    ----------
    make
        Called from several threads at once.
    numbers
        What to call it with.
    threads
        Samplers at work at one time; 0 makes each result when it is asked for.
    capacity
        Results ahead, at least 1.
    """

    def __init__(
        self, make: Callable[[int], T], numbers: Iterable[int], *, threads: int, capacity: int
    ) -> None:
        if threads < 0 or capacity < 1:
            raise ValueError(f"{threads} threads and {capacity} results ahead are not possible")
        self._make, self._numbers, self._capacity = make, iter(numbers), capacity
        self._executor = ThreadPoolExecutor(threads, "sampler") if threads > 0 else None
        self._waiting: deque[Future[T]] = deque()
        self.most_bytes = 0
        """The most bytes that waited when a result was asked for."""

    def __enter__(self) -> "SampleAhead[T]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop what waits and end the threads; nothing comes after it."""
        self._numbers = iter(())
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._executor is None:
            return self._make(next(self._numbers))
        self._fill(self._executor)
        if not self._waiting:
            raise StopIteration
        ready = [each.result() for each in self._waiting if each.done() and not each.exception()]
        self.most_bytes = max(self.most_bytes, sum(each.nbytes for each in ready))
        result = self._waiting.popleft().result()
        # The place that became free is filled while the caller works.
        self._fill(self._executor)
        return result

    def _fill(self, executor: ThreadPoolExecutor) -> None:
        while len(self._waiting) < self._capacity:
            number = next(self._numbers, None)
            if number is None:
                return
            self._waiting.append(executor.submit(self._make, number))
