"""A temporary file of fixed-size items, written in runs at any place and read in order."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.typing import Array


class Scratch:
    """An unnamed file in `directory` that holds items of one dtype and shape.

    Use as a context manager; the file vanishes at the end, also when the process is killed.
    Raises InputError where the directory cannot be written or is full.
    """

    def __init__(self, directory: Path, dtype: Any, item_shape: tuple[int, ...] = ()) -> None:
        self._directory = directory
        self._dtype = np.dtype(dtype)
        self._item_shape = item_shape
        self.item_bytes = self._dtype.itemsize * int(np.prod(item_shape, dtype=np.int64))
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._fault(error) from error

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def scatter(self, items: Array, runs: Iterable[tuple[int, int]]) -> None:
        """Write consecutive runs of `items`; each run is (first item in the file, length)."""
        data = np.ascontiguousarray(items, self._dtype).reshape(-1).view(np.uint8).data
        offset = 0
        try:
            for first, length in runs:
                size = length * self.item_bytes
                self._write(data[offset : offset + size], first * self.item_bytes)
                offset += size
        except OSError as error:
            raise self._fault(error) from error

    def read(self, start: int, stop: int) -> Array:
        """Return the items [start, stop)."""
        items = np.empty((stop - start, *self._item_shape), self._dtype)
        self._file.seek(start * self.item_bytes)
        view = items.reshape(-1).view(np.uint8).data
        while view:
            count = self._file.readinto(view)
            assert count, "every item was written before it is read"
            view = view[count:]
        return items

    def _write(self, data: memoryview, offset: int) -> None:
        # One call may write less than it was given: Linux stops at 2 GiB.
        while data:
            count = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[count:], offset + count

    def _fault(self, error: OSError) -> InputError:
        return InputError(
            f"{self._directory}: cannot keep a temporary file there ({error.strerror}); "
            "free space or write the output to another directory"
        )
