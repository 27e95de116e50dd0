"""The names of nodes: a table sorted by bytes, so that the file itself is the index.

The node with original id i has the i-th name. In a graph with node types, original ids number the
nodes type after type, and names are sorted within each type: nodes of two types may share a name.
"""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcgnn.errors import InputError
from hpcgnn.storage.datasets import Column, MakeColumn, damaged, read_slab
from hpcgnn.storage.graph import schema
from hpcgnn.typing import Array, GlobalIndices, Offsets

PAGE_NAMES = 1 << 14
"""Names that are read at a time, and so at each lookup."""

_GAP = 1 << 10
_SPACE, _DELETE = 0x20, 0x7F


@dataclass(frozen=True, eq=False)
class Names:
    """Names in one buffer: the UTF-8 texts in `data` (uint8) between `offsets`, int64 (m + 1,)."""

    offsets: Offsets
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Names":
        """Return the names of some texts, in their order."""
        encoded = [text.encode() for text in texts]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def encoded(self) -> list[bytes]:
        """Return each name's bytes."""
        whole, bounds = self.data.tobytes(), self.offsets.tolist()
        return [whole[low:high] for low, high in pairwise(bounds)]

    def texts(self) -> list[str]:
        """Return each name as text."""
        return [text.decode() for text in self.encoded()]


@dataclass(frozen=True)
class NameOrder:
    """First and last of consecutive names from number `first` on, and where their order breaks."""

    first: int
    first_name: bytes
    last_name: bytes
    breaks: list[int]


class NameWriter:
    """Checks and appends the names of the nodes; `finish` needs the sizes of the types."""

    def __init__(self, path: Path, column: MakeColumn, num_nodes: int) -> None:
        self._path, self._num_nodes = path, num_nodes
        self._offsets = column(schema.NAME_OFFSETS, schema.ID_DTYPE, ())
        self._data = column(schema.NAME_BYTES, np.dtype("u1"), ())
        if self._offsets.rows == 0:
            self._offsets.append(np.zeros(1, np.int64))
        self._first = self._offsets.rows - 1
        self._first_name = self._last = b""
        self._breaks: list[int] = []

    def append(self, offsets: ArrayLike, data: ArrayLike) -> None:
        """Append names, see `Names`; raises `InputError` for arrays or texts that are not valid."""
        bounds, raw = np.asarray(offsets), np.asarray(data)
        first = self._offsets.rows - 1
        if bounds.ndim != 1 or bounds.dtype.kind not in "iu" or raw.dtype != np.uint8:
            raise self._fault("give offsets int64[m + 1] and their bytes as uint8")
        if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != len(raw):
            raise self._fault(f"the offsets must run from 0 to the {len(raw)} bytes")
        if first + len(bounds) - 1 > self._num_nodes:
            raise self._fault(f"has more names than the {self._num_nodes} nodes")
        lengths = np.diff(bounds)
        if lengths.size and lengths.min() < 1:
            raise self._fault(f"name {first + int(lengths.argmin())} is empty")
        names = Names(bounds.astype(np.int64), raw)
        self._check_text(names, first)
        self._note_breaks(names.encoded(), first)
        self._offsets.append(names.offsets[1:] + self._data.rows)
        self._data.append(raw)

    def finish(self, type_counts: Sequence[int]) -> list[Column]:
        """Complete the datasets and return them; `InputError` for missing or unordered names.

        `type_counts` are the nodes of each type, empty for a graph without types.
        """
        rows = self._offsets.rows - 1
        if rows != self._num_nodes:
            raise self._fault(f"has {rows} names for {self._num_nodes} nodes")
        starts = set(np.cumsum(type_counts)[:-1].tolist())
        for position in self._breaks:
            if position not in starts:
                raise self._fault(
                    f"name {position} does not come after the one before it: sort names by their "
                    "bytes, without repetition, in the order of the original ids"
                )
        self._offsets.finish()
        self._data.finish()
        return [self._offsets, self._data]

    @property
    def order(self) -> "NameOrder":
        """The order of the appended names."""
        return NameOrder(self._first, self._first_name, self._last, self._breaks)

    def join(self, orders: Iterable["NameOrder"]) -> None:
        """Represent the names of all processes from now on."""
        self._last, self._breaks = b"", []
        for order in orders:
            if order.first_name:
                if order.first_name <= self._last:
                    self._breaks.append(order.first)
                self._breaks += order.breaks
                self._last = order.last_name

    def _check_text(self, names: Names, first: int) -> None:
        controls = (names.data < _SPACE) | (names.data == _DELETE)
        if controls.any():
            index = int(np.searchsorted(names.offsets, controls.argmax(), side="right")) - 1
            raise self._fault(f"name {first + index} has unprintable characters")
        try:
            names.data.tobytes().decode()
        except UnicodeDecodeError as error:
            index = int(np.searchsorted(names.offsets, error.start, side="right")) - 1
            raise self._fault(f"name {first + index} is not UTF-8") from None

    def _note_breaks(self, names: list[bytes], first: int) -> None:
        """Record where names do not increase: a type must begin there."""
        if not names:
            return
        self._first_name = self._first_name or names[0]
        if len(self._breaks) <= schema.MAX_NODE_TYPES:
            before = [self._last, *names[:-1]]
            rising = np.fromiter(map(operator.lt, before, names), np.bool_, len(names))
            self._breaks += (np.flatnonzero(~rising) + first).tolist()
        self._last = names[-1]

    def _fault(self, text: str) -> InputError:
        return InputError(f"{self._path}: {schema.NAMES}: {text}")


class StoredNames:
    """The names in an open store, looked up in the file; `find` holds a page of names in memory.

    `type_starts` are the first original id of each type, followed by the number of nodes; (0, n)
    without types.
    """

    def __init__(
        self, path: Path, offsets: h5py.Dataset, data: h5py.Dataset, type_starts: Sequence[int]
    ) -> None:
        self._path, self._offsets, self._data = path, offsets, data
        self._starts = list(type_starts)
        self._firsts: dict[tuple[int, int], list[bytes]] = {}

    def read(self, start: int, stop: int) -> Names:
        """Return the names of the nodes with original ids `start` to `stop` - 1."""
        offsets = read_slab(self._path, self._offsets, start, stop + 1)
        if offsets[0] < 0 or offsets[-1] > len(self._data) or (np.diff(offsets) < 0).any():
            raise damaged(self._path, self._offsets.name, "points outside the names")
        data = read_slab(self._path, self._data, int(offsets[0]), int(offsets[-1]))
        return Names(offsets - offsets[0], data)

    def num_bytes(self, start: int, stop: int) -> int:
        """Return the bytes of the names of the nodes with original ids `start` to `stop` - 1."""
        low, high = (read_slab(self._path, self._offsets, i, i + 1)[0] for i in (start, stop))
        return int(high - low)

    def texts(self, ids: GlobalIndices) -> list[str]:
        """Return the names of original ids (m,), in their order; raises `IndexError`."""
        if ids.size and not 0 <= ids.min() <= ids.max() < self._starts[-1]:
            raise IndexError(f"ids are outside 0..{self._starts[-1] - 1}")
        requested, inverse = np.unique(ids, return_inverse=True)
        distinct_names: list[str] = []
        for low, high in _runs(requested):
            first = int(requested[low])
            texts = self.read(first, int(requested[high - 1]) + 1).texts()
            distinct_names += [texts[index] for index in (requested[low:high] - first).tolist()]
        return [distinct_names[index] for index in inverse.reshape(-1).tolist()]

    def find(self, texts: Sequence[str], type_number: int = 0) -> GlobalIndices:
        """Return the original ids (m,) of nodes of a type by name, -1 for unknown names."""
        start, stop = self._starts[type_number], self._starts[type_number + 1]
        numbers = np.full(len(texts), -1, np.int64)
        if start == stop:
            return numbers
        encoded = [text.encode() for text in texts]
        firsts = self._first_names(start, stop)
        pages = np.array([bisect_right(firsts, name) - 1 for name in encoded], np.int64)
        for page in np.unique(pages[pages >= 0]).tolist():
            low = start + page * PAGE_NAMES
            names = self.read(low, min(low + PAGE_NAMES, stop)).encoded()
            for position in np.flatnonzero(pages == page).tolist():
                index = bisect_left(names, encoded[position])
                if index < len(names) and names[index] == encoded[position]:
                    numbers[position] = low + index
        return numbers

    def _first_names(self, start: int, stop: int) -> list[bytes]:
        """Return the first name of each page of a type; read once."""
        if (start, stop) not in self._firsts:
            self._firsts[start, stop] = [
                self.read(low, low + 1).encoded()[0] for low in range(start, stop, PAGE_NAMES)
            ]
        return self._firsts[start, stop]


def _runs(ids: Array) -> Iterator[tuple[int, int]]:
    """Split sorted ids into ranges to read at a time: close to each other, at most a page long."""
    low = 0
    while low < len(ids):
        near = int(np.searchsorted(ids, ids[low] + PAGE_NAMES))
        apart = np.flatnonzero(np.diff(ids[low:near]) > _GAP)
        high = low + int(apart[0]) + 1 if len(apart) else near
        yield low, high
        low = high
