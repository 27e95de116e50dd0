import threading
from collections.abc import Iterator

import pytest

from hpcgnn.train.prefetch import Prefetch


def test_items_come_in_order_and_errors_where_they_are_due() -> None:
    with Prefetch(range(50), 3) as items:
        assert list(items) == list(range(50))

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with Prefetch(broken(), 1) as items:
        found = iter(items)
        assert next(found) == 1
        with pytest.raises(OSError, match="disk"):
            next(found)


def test_leaving_early_stops_the_thread() -> None:
    made = []

    def endless() -> Iterator[int]:
        while True:
            made.append(len(made))
            yield made[-1]

    with Prefetch(endless(), 2) as items:
        assert next(iter(items)) == 0
    assert len(made) < 100
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
