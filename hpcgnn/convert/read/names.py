"""Names of nodes out of core: their sorted table, and the place of each name in it.

`NameSurvey` takes names in any order and number, keeps eight bytes of each distinct one (a hash),
and puts the names themselves aside in sorted runs. `finish` merges the runs by ranges. A name is
then found by its hash; a second hash tells two names with an equal first one apart, of which the
survey would have dropped one.
"""

import shutil
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hpcgnn.convert.read.tables import compute
from hpcgnn.convert.source import NameBlocks
from hpcgnn.errors import InputError

_BYTES_PER_NAME = 40
"""What the survey or the search keeps of a name at most, while it sorts hashes."""

_SAMPLES = 64
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class NameTable:
    """Distinct names, sorted as bytes, on disk; `positions` finds them by their hashes."""

    blocks_path: Path
    length: int
    hashes: Hashes
    checks: NDArray[np.uint32]
    ranks: NDArray[np.int64]

    def __len__(self) -> int:
        return self.length

    def positions(self, texts: Any) -> NDArray[np.int64]:
        """Return the place of each of `texts` (a binary array) in the table, -1 for none.

        Raises `InputError` where two names have one hash.
        """
        first, second = hash_texts(texts)
        order = np.argsort(first)
        places = np.minimum(np.searchsorted(self.hashes, first[order]), len(self) - 1)
        found = np.full(len(first), -1, np.int64)
        if len(self) == 0:
            return found
        known = self.hashes[places] == first[order]
        if (known & (self.checks[places] != second[order])).any():
            raise InputError("two names of nodes have one hash; change one of them")
        found[order] = np.where(known, self.ranks[places], -1)
        return found

    def blocks(self) -> NameBlocks:
        """Yield the names in order, some at a time, as offsets int64[m + 1] and bytes."""
        with pa.memory_map(str(self.blocks_path)) as source:
            for batch in pa.ipc.open_stream(source):
                yield parts_of(batch.column(0))


class NameSurvey:
    """Collect distinct names within `memory_bytes`, the rest in a scratch folder under TMPDIR."""

    def __init__(self, memory_bytes: int, where: str) -> None:
        self._memory, self._where = memory_bytes, where
        self._folder = Path(tempfile.mkdtemp(prefix="hpcgnn-names-"))
        self._removal = weakref.finalize(self, shutil.rmtree, str(self._folder), ignore_errors=True)
        self._seen: Hashes = np.zeros(0, np.uint64)
        self._fresh: list[Hashes] = []
        self._num_fresh = 0
        self._names: list[Any] = []
        self._bytes = 0
        self._runs: list[Path] = []

    def add(self, texts: Any) -> None:
        """Take names, a binary array; those that came before count once."""
        hashes, _ = hash_texts(texts)
        order = np.argsort(hashes)
        ordered = hashes[order]
        kept = first_of_each(ordered)
        ordered, order = ordered[kept], order[kept]
        if len(self._seen):
            places = np.minimum(np.searchsorted(self._seen, ordered), len(self._seen) - 1)
            fresh = self._seen[places] != ordered
            ordered, order = ordered[fresh], order[fresh]
        if not len(order):
            return
        names = texts.take(pa.array(order))
        self._names.append(names)
        self._bytes += names.nbytes
        self._fresh.append(ordered)
        self._num_fresh += len(ordered)
        if self._num_fresh > max(1 << 16, len(self._seen) // 2):
            self._merge_seen()
        if self._bytes > self._memory // 8:
            self._spill()

    def finish(self) -> NameTable:
        """Return the table of all names; raises `InputError` where it does not fit in memory."""
        self._merge_seen()
        self._spill()
        path = self._folder / "names"
        hashes, checks, total = [], [], 0
        schema = pa.schema([("name", pa.binary())])
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for names in self._ranges():
                writer.write_table(pa.table([names], schema=schema), max_chunksize=1 << 16)
                first, second = hash_texts(names)
                hashes.append(first)
                checks.append(second)
                total += len(names)
        for run in self._runs:
            run.unlink()
        self._seen = np.zeros(0, np.uint64)
        every = np.concatenate([np.zeros(0, np.uint64), *hashes])
        hashes.clear()
        order = np.argsort(every)
        seconds = np.concatenate([np.zeros(0, np.uint32), *checks])[order]
        table = NameTable(path, total, every[order], seconds, order)
        # The folder now lives as long as the table.
        self._removal.detach()
        weakref.finalize(table.hashes, shutil.rmtree, str(self._folder), ignore_errors=True)
        return table

    def _merge_seen(self) -> None:
        merged = np.sort(np.concatenate([self._seen, *self._fresh]))
        self._seen = merged[first_of_each(merged)]
        self._fresh, self._num_fresh = [], 0
        if len(self._seen) * _BYTES_PER_NAME > self._memory // 2:
            need = len(self._seen) * _BYTES_PER_NAME * 2 >> 20
            raise InputError(
                f"{self._where}: {len(self._seen)} distinct names so far do not fit in --memory "
                f"{self._memory >> 20}: searching them takes {need + 1} MiB or more; allow more "
                "memory, or give ids as whole numbers"
            )

    def _spill(self) -> None:
        """Write the names at hand, sorted, as one run."""
        if not self._names:
            return
        names = sorted_names(pa.concat_arrays(self._names))
        self._names, self._bytes = [], 0
        path = self._folder / f"run{len(self._runs)}"
        schema = pa.schema([("name", pa.large_binary())])
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                writer.write_batch(pa.record_batch([names.cast(pa.large_binary())], schema=schema))
        except OSError as error:
            raise InputError(
                f"{self._folder}: names cannot be put aside there ({error}); name a larger scratch "
                "directory (TMPDIR) or allow more memory"
            ) from None
        self._runs.append(path)

    def _ranges(self) -> Iterator[Any]:
        """Yield all names, sorted and distinct, by ranges that fit in an eighth of the memory."""
        runs = [
            pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0).column(0) for path in self._runs
        ]
        total = sum(run.nbytes for run in runs)
        parts = max(1, -(-8 * total // self._memory))
        step = max(1, sum(map(len, runs)) // (parts * _SAMPLES))
        sample = sorted(run[i].as_py() for run in runs for i in range(0, len(run), step))
        borders = sample[_SAMPLES::_SAMPLES] if parts > 1 else []
        at = [0] * len(runs)
        for border in [*borders, None]:
            ends = [
                len(run) if border is None else bisect_left(run, border, key=_value) for run in runs
            ]
            pieces = [run[a:b].cast(pa.binary()) for run, a, b in zip(runs, at, ends, strict=True)]
            at = ends
            if any(map(len, pieces)):
                yield sorted_names(pa.concat_arrays(pieces))


def _value(scalar: Any) -> Any:
    return scalar.as_py()


def sorted_names(names: Any) -> Any:
    """Return the distinct ones of a binary array, sorted as bytes."""
    names = names.take(compute().array_sort_indices(names))
    if len(names) < 2:
        return names
    differ = compute().not_equal(names[1:], names[:-1])
    return names.filter(pa.concat_arrays([pa.array([True]), differ]))


def first_of_each(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the first of every group of equal values in a sorted array."""
    mask = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=mask[1:])
    return mask


def hash_texts(texts: Any) -> tuple[Hashes, NDArray[np.uint32]]:
    """Return two independent hashes of each text of a binary array, of 64 and of 32 bits."""
    offsets, data = parts_of(texts)
    letters = np.zeros(len(data) + 8, np.uint8)
    letters[:-8] = data
    words = np.lib.stride_tricks.as_strided(
        letters[:8].view(np.uint64), shape=(len(letters) - 7,), strides=(1,)
    )
    starts, lengths = offsets[:-1], np.diff(offsets)
    first = lengths.astype(np.uint64)
    second = first.copy()
    for place in range(0, int(lengths.max(initial=0)), 8):
        rest = lengths - place
        # Texts that are over keep their hashes; most of them are about equally long.
        active = slice(None) if rest.min() > 0 else np.flatnonzero(rest > 0)
        word = words[starts[active] + place]
        short = np.flatnonzero(rest[active] < 8)
        bits = (rest[active][short] * 8).astype(np.uint64)
        word[short] &= (np.uint64(1) << bits) - np.uint64(1)
        first[active] = _mix(first[active] ^ word)
        second[active] = (second[active] ^ word) * _MULTIPLIER
        second[active] ^= second[active] >> np.uint64(29)
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


def _mix(value: Hashes) -> Hashes:
    """Return the finalisation step of the SplitMix64 generator; arithmetic is modulo 2^64."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
