"""Allocate node features in memory, or in mapped files that the page cache holds as far as fits."""

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.errors import InputError
from hpcgnn.nn import NodeFeatures, TypedRows
from hpcgnn.typing import Array, FloatArray

_KEY = "graph.features_dir"
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class FeatureStorage:
    """Makes arrays in memory or, if there is a `folder`, in unnamed files there."""

    folder: str

    def check(self) -> None:
        """Raise `InputError` if this rank cannot write to the folder."""
        if self.folder:
            with self._errors():
                tempfile.TemporaryFile(dir=self.folder).close()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array; raises `InputError` if the disk has no room for it."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if not (self.folder and size):
            return np.empty(shape, kind)
        with self._errors(f"{size} bytes: "), tempfile.TemporaryFile(dir=self.folder) as file:
            # Writing to a mapped page without room on the disk would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
            pages = mmap.mmap(file.fileno(), size)
        return np.ndarray(shape, kind, pages)

    def beside(self, tables: Sequence[FloatArray]) -> FloatArray:
        """Concatenate the columns of tables (N, F_i)."""
        width = sum(table.shape[1] for table in tables)
        rows = self.empty((len(tables[0]), width), np.result_type(*tables))
        return np.concatenate(tables, axis=1, out=rows)

    def tensor(self, rows: Array, *, narrow: bool) -> Tensor:
        """Return complete rows (N, F) as a tensor, converted to bfloat16 if `narrow`.

        Raises `InputError` if the disk has no room for it.
        """
        if not narrow:
            return torch.from_numpy(_flushed(rows))
        wide, narrowed = torch.from_numpy(rows), self.empty(rows.shape, np.int16)
        tensor = torch.from_numpy(narrowed).view(torch.bfloat16)
        step = max(1, _BLOCK_BYTES // max(1, 4 * rows.shape[1]))
        for start in range(0, len(rows), step):
            tensor[start : start + step] = wide[start : start + step]
        _flushed(narrowed)
        return tensor

    def select_rows(self, features: NodeFeatures, rows: Tensor | None) -> NodeFeatures:
        """Return a copy of the features of `rows` (m,) int64, or of all if None.

        Raises `InputError` if the disk has no room for it.
        """
        if not self.folder:
            return features.clone() if rows is None else features[rows]
        rows = torch.arange(len(features)) if rows is None else rows
        if isinstance(features, TypedRows):
            return features.select(rows, self._taken)
        return self._taken(features, rows)

    def _taken(self, part: Tensor, rows: Tensor) -> Tensor:
        bits = part.view(torch.int16) if part.dtype == torch.bfloat16 else part
        copy = self.empty((len(rows), part.shape[1]), bits[:0].numpy().dtype)
        torch.index_select(bits, 0, rows, out=torch.from_numpy(copy))
        return torch.from_numpy(_flushed(copy)).view(part.dtype)

    @contextmanager
    def _errors(self, size: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{_KEY} = {self.folder!r}: {size}{error.strerror}; name a folder with room on a "
                "disk of each host, or leave it out"
            ) from error


def _flushed(rows: Array) -> Array:
    """Write complete rows to disk, so that their pages can be dropped; return the rows."""
    pages: Any = rows.base
    if isinstance(pages, mmap.mmap):
        pages.flush()
        pages.madvise(mmap.MADV_DONTNEED)
    return rows
