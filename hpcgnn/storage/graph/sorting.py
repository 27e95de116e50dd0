"""The external sort of edges: sorted runs, in memory or in files, merged into rows.

An edge is one uint64 key, row << 32 | column: sorting keys sorts edges by row, then by column. The
key's value is a weight, or a record with the fields of `EdgeColumns`.
"""

import mmap
import os
import stat
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcgnn.errors import InputError
from hpcgnn.storage.checksums import array_crc
from hpcgnn.typing import Array

COLUMN_BITS = 32
MAX_ID = (1 << COLUMN_BITS) - 1
MIRRORED = np.uint64(1 << 63)
"""Set in the place of an edge that is the reverse of the edge at this place in the input."""
ADDED = np.iinfo(np.uint64).max
"""The place of an added loop, which is not in the input."""

Keys = NDArray[np.uint64]
Duplicates = Literal["first", "sum", "error"]


def make_keys(rows: Array, columns: Array) -> Keys:
    """Return the keys of edges; ids are integers in 0..MAX_ID."""
    keys = rows.astype(np.uint64)
    keys <<= np.uint64(COLUMN_BITS)
    keys |= columns.astype(np.uint64)
    return keys


def key_rows(keys: Keys) -> NDArray[np.int64]:
    """Return the rows of keys."""
    return (keys >> np.uint64(COLUMN_BITS)).astype(np.int64)


def key_columns(keys: Keys) -> NDArray[np.int64]:
    """Return the columns of keys."""
    return (keys & np.uint64(MAX_ID)).astype(np.int64)


class SortedRun:
    """Sorted keys and their values, if any; equal keys keep the order of adding."""

    def __init__(self, keys: Keys, values: Array | None) -> None:
        self.keys, self.values = keys, values

    def positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of the first key of each of `rows`, which may reach MAX_ID + 1."""
        keys = self.keys
        bounds = make_keys(np.minimum(rows, MAX_ID), np.zeros_like(rows))
        return np.where(rows > MAX_ID, len(keys), np.searchsorted(keys, bounds))

    def piece(self, low: int, high: int, dtype: Any) -> tuple[Keys, Array | None]:
        """Return keys and values at positions `low` to `high` - 1; only keys if `dtype` is None."""
        values = None if dtype is None or self.values is None else self.values[low:high]
        return self.keys[low:high], values


_CHECKED_BYTES = 1 << 24
_START_OVER = "remove its folder to start over"


class SpillFile:
    """An unnamed file of arrays: it vanishes with its last user, also when the process is killed.

    With a `name` the file stays. Its first `size` bytes are valid, and `crc` is their checksum.
    Raises `InputError` if no file can be made in `directory` (None: the system's, see TMPDIR).
    """

    def __init__(self, directory: str | os.PathLike[str] | None, name: str | None = None) -> None:
        self._directory = directory or tempfile.gettempdir()
        self.size = self.crc = 0
        self._name = name
        try:
            if name is None:
                with tempfile.TemporaryFile(dir=directory) as file:
                    self._descriptor = os.dup(file.fileno())
            else:
                path = Path(self._directory) / name
                # Refuse links, and do not block on a pipe.
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise InputError(
                f"{error.filename or self._directory}: no scratch file can be made there "
                f"({error.strerror}); name another directory (TMPDIR)"
            ) from None
        weakref.finalize(self, os.close, self._descriptor)

    def go_on(self, size: int, crc: int) -> None:
        """Continue after the first `size` bytes, which another process wrote; `InputError`."""
        actual, status = 0, os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or not 0 <= size <= status.st_size:
            raise InputError(f"{self._where}: does not have {size} bytes; {_START_OVER}")
        for start in range(0, size, _CHECKED_BYTES):
            count = min(_CHECKED_BYTES, size - start)
            actual = array_crc(self.read(np.uint8, start, 0, count), actual)
        if actual != crc:
            raise InputError(f"{self._where}: does not match its checksum; {_START_OVER}")
        self.size, self.crc = size, crc

    @property
    def _where(self) -> Path:
        return Path(self._directory) / (self._name or "")

    def append(self, array: Array) -> int:
        """Append an array; return its byte offset."""
        start = self.size
        if self._name is not None:
            self.crc = array_crc(array, self.crc)
        self.put(array, start)
        self.size += array.nbytes
        return start

    def put(self, array: Array, at: int) -> None:
        """Write an array from byte `at` on; raises `InputError`."""
        view = array.reshape(-1).view(np.uint8).data
        try:
            while view:
                # One call may write less than requested: Linux stops at 2 GiB.
                count = os.pwrite(self._descriptor, view, at)
                view, at = view[count:], at + count
        except OSError as error:
            raise InputError(
                f"{self._directory}: no more scratch data fit there ({error.strerror or error}); "
                "free space, choose another directory (TMPDIR, or that of the output), or allow "
                "more memory"
            ) from None

    def sync(self) -> None:
        """Wait until everything written is on disk; raises `InputError`."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise InputError(f"{self._directory}: cannot be written ({error.strerror})") from None

    def read(self, dtype: Any, start: int, low: int, high: int) -> Array:
        """Return elements `low` to `high` - 1 of the array that begins at byte `start`."""
        kind = np.dtype(dtype)
        out = np.empty(high - low, kind)
        view, at = out.reshape(-1).view(np.uint8).data, start + low * kind.itemsize
        while view:
            count = os.preadv(self._descriptor, [view], at)
            assert count, "the file is shorter than what was written"
            view, at = view[count:], at + count
        return out

    def mapped(self, dtype: type[Any], start: int, count: int) -> Array:
        """Return an array mapped from the file for as long as the caller holds it."""
        whole = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
        return np.frombuffer(whole, dtype, count, start)


class SpilledRun(SortedRun):
    """A run in a file; only requested pieces are in memory."""

    def __init__(self, file: SpillFile, spans: tuple[int, int, int], dtype: Any) -> None:
        """Open a run of `file`; `spans` are the number of keys, the offsets of keys and values."""
        self._file, self.places, self._dtype = file, spans, dtype
        self._count, self._keys_at, self._values_at = spans

    @classmethod
    def write(cls, run: SortedRun, file: SpillFile) -> "SpilledRun":
        """Write `run` to `file`; raises `InputError` if the disk is full."""
        keys_at = file.append(run.keys)
        values_at = 0 if run.values is None else file.append(run.values)
        dtype = None if run.values is None else run.values.dtype
        return cls(file, (len(run.keys), keys_at, values_at), dtype)

    @property
    def keys(self) -> Keys:  # type: ignore[override]
        """The keys, mapped from the file for as long as the caller holds them."""
        return self._file.mapped(np.uint64, self._keys_at, self._count)

    def piece(self, low: int, high: int, dtype: Any) -> tuple[Keys, Array | None]:
        """Return keys and values at positions `low` to `high` - 1, read from the file."""
        keys = self._file.read(np.uint64, self._keys_at, low, high)
        if self._dtype is None or dtype is None:
            return keys, None
        return keys, self._file.read(self._dtype, self._values_at, low, high)


def sort_edges(keys: Keys, values: Array | None) -> tuple[Keys, Array | None]:
    """Sort edges, in place if there are no values; equal keys by `order` if the values have it."""
    if values is None:
        keys.sort()
        return keys, None
    if "order" in (values.dtype.names or ()):
        order = np.lexsort((values["order"], keys))
    else:
        order = np.argsort(keys, kind="stable")
    return keys[order], values[order]


def first_of_each(keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the first of every group of equal sorted keys."""
    mask = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=mask[1:])
    return mask


def keep_first(keys: Keys, values: Array | None) -> tuple[Keys, Array | None]:
    """Drop all but the first of equal sorted keys; the smallest place of each group is kept."""
    mask = first_of_each(keys)
    if mask.all():
        return keys, values
    return keys[mask], None if values is None else _of_firsts(values, np.flatnonzero(mask))


def _of_firsts(values: Array, starts: Array) -> Array:
    firsts = values[starts]
    if "place" in (values.dtype.names or ()):
        firsts["place"] = np.minimum.reduceat(values["place"], starts)
    return firsts


def split_places(marked: Array) -> tuple[Array, Array]:
    """Return the positions of edges in their input, -1 for added loops, and a mask of reverses.

    Duplicates have the position of the first that is not a reverse, if there is one. `MIRRORED`
    marks reverses in `marked`, (E,) uint64 places.
    """
    mirrored = (marked & MIRRORED) != 0
    added = marked == ADDED
    return np.where(added, -1, marked & ~MIRRORED).astype(np.int64), mirrored & ~added


def sum_equal(keys: Keys, values: Array) -> tuple[Keys, Array]:
    """Add up the weights of equal sorted keys in float64."""
    starts = np.flatnonzero(first_of_each(keys))
    if len(starts) == len(keys):
        return keys, values
    firsts = _of_firsts(values, starts)
    named = values.dtype.names is not None
    weights, sums = (values["weight"], firsts["weight"]) if named else (values, firsts)
    sums[:] = np.add.reduceat(weights, starts, dtype=np.float64)
    return keys[starts], firsts


def refuse_equal(keys: Keys) -> None:
    """Raise `InputError` with the first edge that occurs twice, if there is one."""
    mask = first_of_each(keys)
    if mask.all():
        return
    twice = keys[mask.argmin()][None]
    raise InputError(
        f"edge {key_columns(twice)[0]} -> {key_rows(twice)[0]} is given more than once; remove it, "
        "or choose how to treat duplicates (first, sum)"
    )


def row_ranges(
    runs: Sequence[SortedRun], rows: range, limit: int
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield ranges of `rows` in order, with the positions of their edges in each run.

    A range has at most `limit` edges and `limit` rows, or a single row.
    """
    stride = max(1, limit // (2 * max(1, len(runs))))
    samples = [key_rows(run.keys[::stride]) for run in runs]
    grid = np.arange(rows.start, rows.stop, limit, dtype=np.int64)
    # Also the row after each sampled row, so that a row with many edges can be a range of its own.
    borders = np.sort(np.concatenate([grid, [rows.stop], *samples, *(s + 1 for s in samples)]))
    borders = borders[first_of_each(borders)]
    positions = [run.positions(borders) for run in runs]
    edges = np.sum(positions, axis=0) if positions else np.zeros_like(borders)
    at = 0
    while at < len(borders) - 1:
        by_edges = int(np.searchsorted(edges, edges[at] + limit, side="right")) - 1
        by_rows = int(np.searchsorted(borders, borders[at] + limit, side="right")) - 1
        end = max(at + 1, min(by_edges, by_rows))
        yield int(borders[at]), int(borders[end]), [(int(p[at]), int(p[end])) for p in positions]
        at = end


def merge_pieces(
    pieces: Sequence[tuple[Keys, Array | None]], duplicates: Duplicates, dtype: Any
) -> tuple[Keys, Array | None]:
    """Merge pieces of runs, in the runs' order, into sorted, unique edges; sums of 0 are none."""
    keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in pieces)])
    values: Array | None = None
    if dtype is not None:
        values = np.concatenate([np.empty(0, dtype), *(v for _, v in pieces if v is not None)])
    if len(pieces) > 1:
        keys, values = sort_edges(keys, values)
    if duplicates == "error":
        refuse_equal(keys)
    elif duplicates == "sum" and values is not None:
        keys, values = sum_equal(keys, values)
        some = (values if values.dtype.names is None else values["weight"]) != 0
        return (keys, values) if some.all() else (keys[some], values[some])
    return keep_first(keys, values)


def add_loops(keys: Keys, values: Array | None, start: int, stop: int) -> tuple[Keys, Array | None]:
    """Add a self loop of weight 1 to each of the rows `start` to `stop` - 1 that has none."""
    nodes = np.arange(start, stop, dtype=np.int64)
    keys = np.concatenate([keys, make_keys(nodes, nodes)])
    if values is not None:
        loops = np.zeros(len(nodes), values.dtype)
        names = values.dtype.names
        if names is None:
            loops[:] = 1
        elif "weight" in names:
            loops["weight"] = 1
        if "labels" in (names or ()):
            # The store's values for an unknown class, an unknown number, and no labels.
            loops["labels"] = {"i": -1, "f": np.nan, "u": 0}[loops["labels"].dtype.kind]
        for name in {"order", "place"} & set(names or ()):
            loops[name] = ADDED
        values = np.concatenate([values, loops])
    return keep_first(*sort_edges(keys, values))
