"""Write one process's rows of a field that several processes write at the same time."""

import math
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.atomic import OutputFile
from hpcgnn.storage.checksums import shift
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.graph.chunks import ChunkMaker, RowSpan, early, places_in
from hpcgnn.storage.graph.fields import FieldColumn, field_chunk
from hpcgnn.typing import Array, Offsets


class SharedColumn(Column):
    """A dataset of which this process writes the rows `span`."""

    span: RowSpan
    _maker: ChunkMaker

    def release(self) -> None:
        """Free the memory for encoding chunks."""
        self._maker.release()

    def share_of_crc(self) -> int:
        """Return the share of this process's rows in the checksum of all rows."""
        values_after = (self.span.total - self.span.stop) * math.prod(self.row_shape, start=1)
        return shift(self.crc, values_after * self.dtype.itemsize)


class FieldShare(SharedColumn, FieldColumn):
    """The rows `own` of each step of a field; they begin at a chunk border, so there is no head."""

    def __init__(
        self,
        file: h5py.File | None,
        output: OutputFile,
        described: tuple[str, np.dtype[Any], tuple[int, int, int]],
        rows: RowSpan,
    ) -> None:
        shape, chunk = described[2], field_chunk(described[2][1:], described[1])[0]
        start, stop = (min(rows.total, -(-end // chunk) * chunk) for end in (rows.start, rows.stop))
        super().__init__(file, *described, range(start, stop))
        self.span = RowSpan(start, stop, shape[1])
        self.head_chunk = start
        self._output = output
        self._places: Offsets = np.empty((0, 0), np.int64)
        self._maker = ChunkMaker(self._chunk, self.dtype)

    def create(self) -> Offsets:
        """Create the dataset; return the file offsets of its chunks, see `ColumnShare.create`."""
        chunk = (1, *self._chunk)
        self._dataset = self._create(self.shape, self.shape, chunk, dcpl=early())
        return places_in(self._dataset)

    def place(self, offsets: Offsets) -> None:
        """Take the offsets that `create` returned."""
        self._places = offsets.reshape(self.shape[0], -1)

    def _write(self, rows: Array) -> None:
        size = self._chunk[0]
        for low in range(0, len(rows), size):
            content = self._maker.bytes_of(rows[low : low + size])
            self._output.write_at(int(self._places[self.step, self._written // size]), content)
            self._written += size

    def head(self) -> Array:
        """Return no rows; raises `InputError` if steps are missing."""
        if not self.complete:
            raise InputError(f"{self.path}: has {self.step} of {self.shape[0]} steps")
        return np.empty((0, *self.row_shape), self.dtype)

    def finish_share(self, rows: Array) -> None:
        """Free memory; `rows`, those of other processes, are empty."""
        assert not len(rows)
        self.release()

    def join(self, crc: int) -> None:
        """Represent the whole dataset from now on, whose checksum is `crc`."""
        self.crc, self.own, self.step = crc, range(self.span.total), self.shape[0]
