"""Read arrays of .npy and .npz files block by block, so that they may be larger than memory.

Arrays of Python objects are refused: they contain a pickle, which could execute code.
"""

import math
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from hpcgnn.convert.read.files import MOST_GROWTH, decoded, read_error
from hpcgnn.errors import InputError
from hpcgnn.storage import require_file
from hpcgnn.typing import Array

_PIECE_VALUES = 1 << 20
_HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


@dataclass(frozen=True)
class ArrayFile:
    """One stored array; `member` is its name in an .npz file, None in an .npy file."""

    path: Path
    member: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran_order: bool

    @property
    def where(self) -> str:
        """The file and the field, for messages."""
        return str(self.path) if self.member is None else f"{self.path}: {self.member}"

    def load(self) -> Array:
        """Return the whole array in native byte order."""
        self._require_content()
        values = np.empty(math.prod(self.shape), self.dtype.newbyteorder("="))
        filled = 0
        for piece in self.flat(0, len(values), _PIECE_VALUES):
            values[filled : filled + len(piece)] = piece
            filled += len(piece)
        return values.reshape(self.shape, order="F" if self.fortran_order else "C")

    @property
    def packed_bytes(self) -> int:
        """The compressed size of the array in its file; raises `InputError`."""
        return self._sizes()[0]

    def _sizes(self) -> tuple[int, int]:
        """Return the bytes in the file, and the most bytes that they can unpack to."""
        with _reading(self.path):
            size = self.path.stat().st_size
            if self.member is None:
                return size, size
            with zipfile.ZipFile(self.path) as archive:
                info = archive.getinfo(f"{self.member}.npy")
                # The sizes in the archive may be wrong, so bound them by the file's size.
                packed = min(info.compress_size, size)
                return packed, min(info.file_size, MOST_GROWTH * packed)

    def _require_content(self) -> None:
        """Refuse a header that declares more than the file holds, before allocating memory."""
        declared = math.prod(self.shape) * self.dtype.itemsize
        if declared > self._sizes()[1]:
            raise InputError(f"{self.where} is truncated; copy or save the file again")

    def rows(
        self, count: int, memory_bytes: int, rows: range | None = None
    ) -> Generator[Array, None, None]:
        """Yield consecutive blocks of `count` rows, of all or of a range.

        A matrix stored column by column cannot be streamed by rows: it is loaded, or refused if
        larger than `memory_bytes`.
        """
        width = math.prod(self.shape[1:])
        start, stop = (0, self.shape[0]) if rows is None else (rows.start, rows.stop)
        if self.fortran_order and len(self.shape) > 1:
            if math.prod(self.shape) * self.dtype.itemsize > memory_bytes:
                raise InputError(
                    f"{self.where} is stored column by column and larger than --memory; save "
                    "np.ascontiguousarray(array), or allow more memory"
                )
            array = self.load()[start:stop]
            yield from (array[first : first + count] for first in range(0, len(array), count))
        elif width:
            for values in self.flat(start * width, stop * width, count * width):
                yield values.reshape(-1, *self.shape[1:])

    def steps(self) -> Callable[[int, int, int], Array]:
        """Return a function of (step, start, stop) that reads rows of a step.

        Rows of an .npy file are mapped into memory. For an .npz file the last step read is kept, so
        that requests in order read each step once.
        """
        if self.member is None:
            self._require_content()
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
            return partial(self._mapped_rows, mapped.offset)
        return StepReader(self)

    def _mapped_rows(self, offset: int, step: int, start: int, stop: int) -> Array:
        """Map rows of a step separately, so that their pages are freed with the returned array."""
        if self.fortran_order:
            mapped = np.memmap(self.path, self.dtype, "r", offset, self.shape, "F")
            return mapped[step, start:stop]
        shape = (stop - start, *self.shape[2:])
        before = (step * self.shape[1] + start) * math.prod(self.shape[2:])
        return np.memmap(self.path, self.dtype, "r", offset + before * self.dtype.itemsize, shape)

    def flat(self, start: int, stop: int, count: int) -> Iterator[Array]:
        """Yield values `start` to `stop` in stored order, `count` at a time, in one pass."""
        self._require_content()
        size, native = self.dtype.itemsize, self.dtype.newbyteorder("=")
        with _open(self.path, self.member) as stream:
            _read_header(stream, self.where)
            skipped = start * size
            if self.member is None:
                stream.seek(skipped, os.SEEK_CUR)
                skipped = 0
            # Skip a zip member by reading, since its checksum is verified only if all is read.
            for first in range(0, skipped, _PIECE_VALUES):
                _read_exactly(stream, min(_PIECE_VALUES, skipped - first), self.where)
            for first in range(start, stop, count):
                data = _read_exactly(stream, min(count, stop - first) * size, self.where)
                yield np.frombuffer(data, self.dtype).astype(native, copy=False)
            if stop == math.prod(self.shape) and stream.read(1):
                raise InputError(f"{self.where} is longer than its header says; save it again")


class StepReader:
    """Reads the steps of an .npz member in one pass; a step back starts a new pass."""

    def __init__(self, array: ArrayFile) -> None:
        self._array, self._next = array, 0
        self._steps: Iterator[Array] = iter(())
        self._held: Array = np.empty(0)

    def __call__(self, step: int, start: int, stop: int) -> Array:
        """Return rows of a step."""
        if step < self._next - 1 or self._next == 0:
            self._steps, self._next = self._array.rows(1, sys.maxsize), 0
        while self._next <= step:
            self._held = next(self._steps)[0]
            self._next += 1
        return self._held[start:stop]


def open_npy(path: Path) -> ArrayFile:
    """Read the header of an .npy file; raises `InputError`."""
    require_file(path)
    with _open(path, None) as stream:
        return ArrayFile(path, None, *_read_header(stream, str(path)))


class Npz:
    """The arrays of an .npz file, with a record of which have been requested.

    An array that cannot be read (Python objects, for example) is an error only when requested.
    """

    def __init__(self, path: Path) -> None:
        self.path = require_file(path)
        self._arrays = _read_members(path)
        self._used: set[str] = set()
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        self._asked.add(name)
        return name in self._arrays

    def get(self, *names: str) -> ArrayFile | None:
        """Return the first of the arrays `names` that exists, or None."""
        self._asked.update(names)
        for name in names:
            if name in self._arrays:
                return self.need(name)
        return None

    def need(self, name: str) -> ArrayFile:
        """Return an array, or raise `InputError` when it is missing or cannot be read."""
        self._used.add(name)
        self._asked.add(name)
        array = self._arrays.get(name)
        if array is None:
            raise InputError(
                f"{self.path}: the array {name} is missing; "
                f"the file holds {', '.join(self._arrays)}"
            )
        if isinstance(array, InputError):
            raise array
        return array

    def after(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix, without the prefix."""
        return [name.removeprefix(prefix) for name in self._arrays if name.startswith(prefix)]

    def word(self, name: str) -> str:
        """Return the text of an array with a single one; raises `InputError`."""
        array = self.need(name)
        values = array.load()
        if values.size != 1 or values.dtype.kind not in "SU":
            raise InputError(f"{array.where} must be one word; save it again")
        return decode_texts(values.reshape(-1), array.where)[0]

    def texts(self, *names: str) -> list[str] | None:
        """Return the first of the arrays `names` that is a readable vector of text, or None."""
        self._asked.update(names)
        for name in names:
            array = self._arrays.get(name)
            if isinstance(array, ArrayFile) and array.dtype.kind in "SU" and len(array.shape) == 1:
                self._used.add(name)
                return decode_texts(array.load(), array.where)
        return None

    def unused(self) -> tuple[str, ...]:
        """Return the names that have not been used; call it once the reader has tried all it knows.

        Raises `InputError` for a name that is probably a misspelt one of those.
        """
        unused = tuple(name for name in self._arrays if name not in self._used)
        missing = sorted(self._asked - set(self._arrays))
        for name in unused:
            plain = name.strip("_").lower()
            near = [plain] if plain in missing else get_close_matches(name, missing, 1, 0.8)
            if near and name not in self._asked:
                raise InputError(
                    f"{self.path}: the array {name} is not known; is it {near[0]}? Rename it, or "
                    "leave it out"
                )
        return unused


def decode_texts(values: Array, where: str) -> list[str]:
    """Return fixed-length text as strings; raises `InputError` for bytes that are not UTF-8."""
    return values.tolist() if values.dtype.kind == "U" else decoded(values.tolist(), where)


def _read_members(path: Path) -> dict[str, ArrayFile | InputError]:
    arrays: dict[str, ArrayFile | InputError] = {}
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = [
            name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
        ]
        for member in members:
            kind = archive.getinfo(f"{member}.npy").compress_type
            if kind not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # With other compressions, one byte may expand to gigabytes.
                raise NotImplementedError("neither stored nor deflated")
            with archive.open(f"{member}.npy") as stream:
                try:
                    header = _read_header(stream, f"{path}: {member}")
                    arrays[member] = ArrayFile(path, member, *header)
                except InputError as error:
                    arrays[member] = error
    if not arrays:
        raise InputError(f"{path}: holds no .npy arrays; save it with numpy.savez")
    return arrays


@contextmanager
def _open(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    with _reading(path), ExitStack() as stack:
        if member is None:
            yield stack.enter_context(path.open("rb"))
        else:
            archive = stack.enter_context(zipfile.ZipFile(path))
            yield stack.enter_context(archive.open(f"{member}.npy"))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise read_error(path, error) from error
    except (NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"{path}: this kind of zip file is not read ({error}); save it with numpy.savez"
        ) from error


def _read_header(
    stream: IO[bytes], where: str
) -> tuple[tuple[int, ...], np.dtype[np.generic], bool]:
    """Return the shape, the dtype and whether the array is stored column by column."""
    try:
        version = npy_format.read_magic(stream)
        if version not in _HEADER_READERS:
            raise InputError(f"{where} has .npy version {version}; save it as plain numbers")
        shape, fortran_order, dtype = _HEADER_READERS[version](stream)
    except InputError:
        raise
    except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise InputError(f"{where} is not a valid .npy array ({error}); save it again") from error
    if dtype.kind not in "biufSU":
        kind = "Python objects, which could execute code" if dtype.hasobject else f"dtype {dtype}"
        raise InputError(f"{where} holds {kind}; save it as numbers or fixed-length text")
    return shape, dtype, fortran_order


def _read_exactly(stream: IO[bytes], size: int, where: str) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise InputError(f"{where} is truncated; copy or save the file again")
    return data
