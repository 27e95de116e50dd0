"""Keep node names in a sorted table on disk and look up their positions.

Names are looked up by hash. The sorted hashes are divided into slabs by hash range, which stay in
memory if they fit and are read one after the other if not. A second hash detects two names with
equal first hashes, which the survey has merged.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hpcgnn.convert.read.tables import compute
from hpcgnn.convert.source import NameBlocks, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.kernels.mixing import split_mix
from hpcgnn.storage import SpillFile, first_of_each

_ENTRY_TYPES = (np.uint64, np.uint32, np.uint32)
_ENTRY_BYTES = 16
"""Bytes of an entry in the hash table."""

_MOST_SLABS = 256
MOST_NAME_BYTES = 1 << 16
_MOST_BYTES = 1 << 29
_MOST_BATCH_BYTES = 3 << 30
"""Limits for arrays of texts, because pyarrow counts their bytes in 31 bits."""

_BLOCK_NAMES = 1 << 16
_HASHED_AT_ONCE = 1 << 15
_SAMPLES = 64
_PREFIX_BYTES = 32
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)

Hashes: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Run:
    """Sorted distinct names in a scratch file: offsets int64[length + 1] and bytes."""

    file: SpillFile
    offsets_at: int
    data_at: int
    length: int
    num_bytes: int

    @classmethod
    def write(cls, file: SpillFile, names: Any) -> "_Run":
        offsets, data = parts_of(names)
        offsets_and_data = file.append(offsets), file.append(data)
        return cls(file, *offsets_and_data, len(names), len(data))

    def parts(self, low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the names `low` to `high` - 1 as offsets from 0 and bytes."""
        offsets = self.file.read(np.int64, self.offsets_at, low, high + 1)
        data = self.file.read(np.uint8, self.data_at, int(offsets[0]), int(offsets[-1]))
        return offsets - offsets[0], data

    def names(self, low: int, high: int) -> Any:
        return texts_of(*self.parts(low, high))

    def name(self, number: int) -> bytes:
        return self.parts(number, number + 1)[1].tobytes()


_Entries: TypeAlias = tuple[Hashes, NDArray[np.uint32], NDArray[np.uint32]]
"""Hash table entries sorted by hash: hashes, second hashes, and positions in the name table."""


def _joined(parts: Sequence[_Entries]) -> _Entries:
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.uint32)
    hashes, checks, ranks = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(hashes)
    return hashes[order], checks[order], ranks[order]


class _Slab:
    """The entries in a range of hashes, in the file unless `held` in memory."""

    def __init__(self, file: SpillFile, entries: _Entries, *, held: bool) -> None:
        self._file = file
        self._held = entries if held else None
        self._starts = () if held else tuple(file.append(array) for array in entries)
        self._length = len(entries[0])

    def __len__(self) -> int:
        return self._length

    def load(self) -> _Entries:
        if self._held is not None:
            return self._held
        hashes, checks, ranks = (
            self._file.read(dtype, start, 0, len(self))
            for dtype, start in zip(_ENTRY_TYPES, self._starts, strict=True)
        )
        return hashes, checks, ranks


@dataclass(frozen=True, slots=True)
class NameTable:
    """Distinct names, sorted as bytes, on disk; `positions` looks them up by hash.

    Callers should collect `batch_bytes` of texts for each lookup; 0 if hashes are in memory.
    """

    runs: tuple[_Run, ...]
    slabs: tuple[_Slab, ...]
    batch_bytes: int
    named: ClassVar[bool] = True

    def __len__(self) -> int:
        return sum(run.length for run in self.runs)

    def positions(self, texts: Any) -> NDArray[np.int64]:
        """Return the position of each text, -1 if absent; `InputError` for equal hashes."""
        first, second = hash_texts(texts)
        positions = np.full(len(first), -1, np.int64)
        order = np.argsort(first)
        first = first[order]
        cuts = [0, *np.searchsorted(first, _borders(len(self.slabs))).tolist(), len(first)]
        for slab, low, high in zip(self.slabs, cuts[:-1], cuts[1:], strict=True):
            if high == low or len(slab) == 0:
                continue
            hashes, checks, ranks = slab.load()
            wanted, rows = first[low:high], order[low:high]
            near = np.minimum(np.searchsorted(hashes, wanted), len(slab) - 1)
            matches = hashes[near] == wanted
            if (matches & (checks[near] != second[rows])).any():
                raise InputError("two names of nodes have the same hash; change one of them")
            positions[rows] = np.where(matches, ranks[near].astype(np.int64), -1)
        return positions

    def nodes(self) -> NodeArrays:
        """Return node data that consist of these names."""
        return NodeArrays(names=self.blocks)

    def blocks(self) -> NameBlocks:
        """Yield the names in order, in blocks of offsets int64[m + 1] and bytes."""
        for run in self.runs:
            for low in range(0, run.length, _BLOCK_NAMES):
                yield run.parts(low, min(low + _BLOCK_NAMES, run.length))


class NameSurvey:
    """Collects distinct names in `memory_bytes` and, beyond that, a scratch file under TMPDIR."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory = memory_bytes
        # Sorting takes about four times the memory of the names.
        self._piece_bytes = max(1, min(memory_bytes // 16, _MOST_BYTES))
        self._file = SpillFile(None)
        self._seen: Hashes = np.zeros(0, np.uint64)
        self._fresh: list[Hashes] = []
        self._num_fresh = 0
        self._names: list[Any] = []
        self._bytes = 0
        self._runs: list[_Run] = []

    def add(self, texts: Any) -> None:
        """Add names, a binary array; repeated names are allowed."""
        hashes, _ = hash_texts(texts)
        order = np.argsort(hashes)
        ordered = hashes[order]
        firsts = first_of_each(ordered)
        ordered, order = ordered[firsts], order[firsts]
        if len(self._seen):
            near = np.minimum(np.searchsorted(self._seen, ordered), len(self._seen) - 1)
            fresh = self._seen[near] != ordered
            ordered, order = ordered[fresh], order[fresh]
        if not len(order):
            return
        names = texts.take(pa.array(order))
        self._names.append(names)
        self._bytes += names.nbytes
        self._remember(ordered)
        if self._bytes > self._piece_bytes:
            self._spill()

    def finish(self) -> NameTable:
        """Return the table of all names."""
        self._seen, self._fresh = np.zeros(0, np.uint64), []
        self._spill()
        most = sum(run.length for run in self._runs) * _ENTRY_BYTES
        least_slabs = 1 + 16 * most // max(1, self._memory)
        num_slabs = min(_MOST_SLABS, 1 << (least_slabs - 1).bit_length())
        slabs: list[list[_Slab]] = [[] for _ in range(num_slabs)]
        table: list[_Run] = []
        total = 0
        for names in self._ranges():
            ranks = np.arange(total, total + len(names), dtype=np.uint32)
            entries = _joined([(*hash_texts(names), ranks)])
            cuts = np.searchsorted(entries[0], _borders(num_slabs))
            parts = zip(*(np.split(array, cuts) for array in entries), strict=True)
            for slab, part in zip(slabs, parts, strict=True):
                slab.append(_Slab(self._file, part, held=False))
            table.append(_Run.write(self._file, names))
            total += len(names)
        held = 8 * total * _ENTRY_BYTES <= 3 * self._memory
        joined = tuple(
            _Slab(self._file, _joined([piece.load() for piece in pieces]), held=held)
            for pieces in slabs
        )
        return NameTable(
            tuple(table), joined, 0 if held else min(_MOST_BATCH_BYTES, self._memory // 4)
        )

    def _remember(self, hashes: Hashes) -> None:
        """Remember names while memory lasts, so that repeated ones are not stored again."""
        if 64 * (len(self._seen) + self._num_fresh + len(hashes)) > self._memory:
            return
        self._fresh.append(hashes)
        self._num_fresh += len(hashes)
        if self._num_fresh > max(1 << 16, len(self._seen) // 2):
            self._seen = np.concatenate([self._seen, *self._fresh])
            self._seen.sort()
            self._fresh, self._num_fresh = [], 0

    def _spill(self) -> None:
        """Write the collected names, sorted, as one run."""
        if self._names:
            names, self._names, self._bytes = self._names, [], 0
            self._runs.append(_Run.write(self._file, sorted_names(names)))
            pa.default_memory_pool().release_unused()

    def _ranges(self) -> Iterator[Any]:
        """Yield all names, sorted and distinct, in ranges of about `_piece_bytes`."""
        runs = self._runs
        if len(runs) == 1:
            (run,) = runs
            yield run.names(0, run.length)
            return
        total = sum(run.num_bytes + 8 * run.length for run in runs)
        parts = max(1, -(-total // self._piece_bytes))
        step = max(1, sum(run.length for run in runs) // (parts * _SAMPLES))
        sample = sorted(run.name(i) for run in runs for i in range(0, run.length, step))
        borders = sample[_SAMPLES::_SAMPLES] if parts > 1 else []
        at = [0] * len(runs)
        for border in [*borders, None]:
            ends = [
                run.length
                if border is None
                else bisect_left(range(run.length), border, low, key=run.name)
                for run, low in zip(runs, at, strict=True)
            ]
            pieces = [run.names(a, b) for run, a, b in zip(runs, at, ends, strict=True)]
            at = ends
            if any(map(len, pieces)):
                yield sorted_names(pieces)


def _borders(num_slabs: int) -> Hashes:
    """Return the first hash of each slab, except the first slab's."""
    width = (1 << 64) // num_slabs
    return np.array([width * number for number in range(1, num_slabs)], np.uint64)


def sorted_names(parts: list[Any]) -> Any:
    """Return the distinct texts of binary arrays, sorted as bytes; empties `parts`."""
    names = pa.concat_arrays(parts)
    parts.clear()
    names = names.take(compute().array_sort_indices(names))
    if len(names) < 2:
        return names
    differ = compute().not_equal(names[1:], names[:-1])
    return names.filter(pa.concat_arrays([pa.array([True]), differ]))


def hash_texts(texts: Any) -> tuple[Hashes, NDArray[np.uint32]]:
    """Return two independent hashes of each text of a binary array, of 64 and of 32 bits.

    Raises `InputError` for a text of more than `MOST_NAME_BYTES`.
    """
    offsets, data = parts_of(texts)
    if (longest := int(np.diff(offsets).max(initial=0))) > MOST_NAME_BYTES:
        row = int(np.diff(offsets).argmax())
        head = bytes(data[offsets[row] : offsets[row] + 20]).decode("utf-8", "replace")
        raise InputError(
            f"a name has {longest} bytes, {head!r}...; names have at most {MOST_NAME_BYTES}: check "
            "which column holds the names"
        )
    letters = np.zeros(len(data) + 8, np.uint8)
    letters[:-8] = data
    words = np.lib.stride_tricks.as_strided(
        letters[:8].view(np.uint64), shape=(len(letters) - 7,), strides=(1,)
    )
    first = np.empty(len(texts), np.uint64)
    second = np.empty(len(texts), np.uint32)
    for low in range(0, len(texts), _HASHED_AT_ONCE):
        part = slice(low, low + _HASHED_AT_ONCE)
        bounds = offsets[low : low + _HASHED_AT_ONCE + 1]
        first[part], second[part] = _hash_words(words, bounds[:-1], np.diff(bounds))
    return first, second


def _hash_words(
    words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Hashes, NDArray[np.uint32]]:
    # Unmixed, a length could cancel against the first word of a name that ends in a zero byte.
    first = split_mix(lengths.astype(np.uint64))
    second = first.copy()
    for offset in range(0, int(lengths.max(initial=0)), 8):
        remaining = lengths - offset
        # Texts that have ended keep their hashes; most texts are about equally long.
        active = slice(None) if remaining.min() > 0 else np.flatnonzero(remaining > 0)
        word = words[starts[active] + offset] & _LOW_BYTES[np.minimum(remaining[active], 8)]
        first[active] = split_mix(first[active] ^ word)
        mixed = (second[active] ^ word) * _MULTIPLIER
        second[active] = mixed ^ (mixed >> np.uint64(29))
    return first, (second >> np.uint64(32)).astype(np.uint32)


def parts_of(texts: Any) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets of the texts of a binary array, from 0, and their bytes."""
    if len(texts) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    low, high = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8) if high else np.zeros(0, np.uint8)
    return offsets.astype(np.int64) - low, data[low:high]


def texts_of(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> Any:
    """Return texts as a binary array; `offsets` begin at 0."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def join_texts(columns: Sequence[Any]) -> Any:
    """Concatenate binary arrays."""
    return pa.concat_arrays([pa.array([], pa.binary()), *columns])


def prefixes(texts: Any) -> NDArray[np.bytes_]:
    """Return the first bytes of names; they sort like the names, except where they are equal."""
    starts = compute().binary_slice(texts, 0, _PREFIX_BYTES).cast(pa.string(), safe=False)
    padded = compute().ascii_rpad(starts, _PREFIX_BYTES, "\0")
    return parts_of(padded.cast(pa.binary()))[1].view(f"S{_PREFIX_BYTES}")
