"""Read dense and sparse numeric matrices from MATLAB files of version 5 to 7.2.

The format ("MAT-File Format", The MathWorks) is a header of 128 bytes, then an element for each
variable, compressed or not. An element has a tag (type, size) and content, padded to 8 bytes; a
matrix contains elements in turn. Every size is checked against the bytes available before it is
used, and only requested variables are decompressed completely.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.convert.read.arrays import checked_matrix
from hpcgnn.convert.read.files import MOST_GROWTH, read_error
from hpcgnn.errors import InputError
from hpcgnn.storage import require_file
from hpcgnn.typing import Array

_HEADER_BYTES, _HEAD_BYTES = 128, 1 << 12
_ORDERS = {b"IM": "<", b"MI": ">"}
_VERSION_5, _VERSION_7_3 = 0x0100, 0x0200
_INT32, _UINT32, _MATRIX, _PACKED = 5, 6, 14, 15
_NAME_TYPES = (1, 2, 16)
_NUMBERS = dict(enumerate(("i1", "u1", "i2", "u2", "i4", "u4", "f4"), 1))
_NUMBERS |= {9: "f8", 12: "i8", 13: "u8"}
_CLASSES = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), 6))
_STRUCT, _SPARSE, _OPAQUE = 2, 5, 17
_NO_NUMBERS = {1: "a cell array", _STRUCT: "a struct", 4: "text"}
_COMPLEX, _LOGICAL = 0x08, 0x02

_DAMAGE = (ValueError, StopIteration, zlib.error)
"""Exceptions raised by reading a damaged file."""


class MatFile:
    """The variables of a .mat file by name; of two with the same name, the later one counts.

    Raises `InputError` for a file of another version, and for damaged data when they are read.
    """

    def __init__(self, path: Path) -> None:
        self.path = require_file(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise read_error(path, error) from error
        order = _ORDERS.get(content[126:128])
        version = 0 if order is None else int(np.frombuffer(content, f"{order}u2", 1, 124)[0])
        if version == _VERSION_7_3:
            raise InputError(f"{path}: is of version 7.3; save it with -v7 in MATLAB")
        if order is None or version != _VERSION_5:
            raise InputError(
                f"{path}: is no complete .mat file (its header names no version from 5 to 7.2); "
                "copy it again, or save it with -v7 in MATLAB"
            )
        self._variables: dict[str, _Element] = {}
        try:
            for element in _elements(memoryview(content)[_HEADER_BYTES:], order):
                head = _Matrix.of(element.unpacked(_HEAD_BYTES))
                if head.name and not head.name.startswith("__"):
                    self._variables[head.name] = element
        except _DAMAGE as error:
            raise self._damaged("a variable", error) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def load(self, name: str, field: str = "") -> Any:
        """Return the numbers of a variable, as an array or a SciPy CSC matrix.

        With `field`, return those in a field of a 1 x 1 struct, or None if there is no such field.
        Raises `InputError` for damaged data and for anything but real numbers.
        """
        label = f"{name}.{field}" if field else name
        try:
            matrix = _Matrix.of(self._variables[name].unpacked())
            if field:
                element = matrix.fields().get(field)
                if element is None:
                    return None
                matrix = _Matrix.of(element)
            if matrix.complex or matrix.kind not in (_SPARSE, *_CLASSES):
                kind = "complex numbers" if matrix.complex else _NO_NUMBERS.get(matrix.kind)
                raise InputError(f"{self.path}: {label} is {kind or 'an object'}; save numbers")
            if matrix.kind != _SPARSE:
                return matrix.dense()
            rows, indices, indptr, values = matrix.sparse()
            where = f"{self.path}: {label}"
            shape = [len(indptr) - 1, rows]
            # The columns of the CSC matrix are the rows of its transpose.
            return checked_matrix(where, data=values, indices=indices, indptr=indptr, shape=shape).T
        except InputError:
            raise
        except _DAMAGE as error:
            raise self._damaged(label, error) from error

    def _damaged(self, label: str, error: Exception) -> InputError:
        reason = str(error) or "it is truncated"
        return InputError(f"{self.path}: is damaged ({label}: {reason}); copy it again")


@dataclass(frozen=True, slots=True)
class _Element:
    """An element: type number, content, and the byte `order` of the file ("<" or ">")."""

    kind: int
    content: memoryview
    order: str

    def unpacked(self, limit: int | None = None) -> "_Element":
        """Return the element compressed in this one, or its first bytes up to a `limit`."""
        if self.kind != _PACKED:
            return self
        stream = zlib.decompressobj()
        kind, size = _words(stream.decompress(self.content, 8), self.order)
        _require(size <= MOST_GROWTH * len(self.content), "it declares more than it holds")
        num_bytes = size if limit is None else min(size, limit)
        content = stream.decompress(stream.unconsumed_tail, num_bytes) if num_bytes else b""
        _require(len(content) == num_bytes, "it is truncated")
        if limit is None:
            # One more byte makes zlib reach the end of the stream and verify its checksum.
            surplus = stream.decompress(stream.unconsumed_tail, 1)
            _require(stream.eof and not surplus, "its size is wrong")
        return _Element(kind, memoryview(content), self.order)

    def numbers(self) -> Array:
        """Return the numbers in a numeric element, in the byte order of the file."""
        _require(self.kind in _NUMBERS, f"an element of numbers has the type {self.kind}")
        return np.frombuffer(self.content, f"{self.order}{_NUMBERS[self.kind]}")

    def sizes(self) -> Array:
        """Return the numbers in a 32-bit integer element, in native byte order."""
        _require(self.kind in (_INT32, _UINT32), f"a size has the type {self.kind}")
        values = self.numbers()
        return values.astype(values.dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The head of a matrix element, and an iterator over the rest of its elements."""

    kind: int
    complex: bool
    logical: bool
    shape: tuple[int, ...]
    name: str
    rest: Iterator[_Element]

    @classmethod
    def of(cls, element: _Element) -> "_Matrix":
        """Read the head of a matrix; the rest is read on demand."""
        _require(element.kind == _MATRIX, f"the type {element.kind} is no matrix")
        if not element.content:
            # An empty struct field is stored without content.
            return cls(6, False, False, (0, 0), "", iter((replace(element, kind=9),)))
        elements = _elements(element.content, element.order)
        flags = next(elements).sizes().tolist()
        _require(len(flags) == 2, "its flags have another size")
        kind = flags[0] & 0xFF
        shape: tuple[int, ...] = (0, 0)
        if kind != _OPAQUE:
            shape = tuple(next(elements).sizes().tolist())
            _require(len(shape) >= 2 and min(shape) >= 0, f"its shape is {shape[:8]}")
        name = next(elements)
        _require(name.kind in _NAME_TYPES, "its name is not text")
        text = bytes(name.content).decode("utf-8", "replace")
        bits = flags[0] >> 8
        return cls(kind, bool(bits & _COMPLEX), bool(bits & _LOGICAL), shape, text, elements)

    def dense(self) -> Array:
        """Return an array with the class and shape of the matrix."""
        values = next(self.rest).numbers()
        _require(len(values) == math.prod(self.shape), "values and shape differ in size")
        # Numbers are stored in the smallest type that holds them.
        with np.errstate(invalid="ignore", over="ignore"):
            array = values.astype(_CLASSES[self.kind])
            fits = array.dtype.kind == "f" or bool((array == values).all())
        _require(fits, "a number does not fit its class")
        return array.reshape(self.shape, order="F")

    def sparse(self) -> tuple[int, Array, Array, Array]:
        """Return the number of rows, then row indices, column offsets and values of the entries."""
        _require(len(self.shape) == 2, "a sparse matrix has two sides")
        rows, columns = self.shape
        indices, indptr = next(self.rest), next(self.rest)
        rows_of_entries, offsets = indices.sizes(), indptr.sizes()
        entries = next(self.rest)
        _require(len(offsets) == columns + 1, f"{len(offsets)} offsets for {columns} columns")
        count = int(offsets[-1])
        if self.logical and len(entries.content) < 8 * count:
            # MATLAB writes one byte for each logical value, with the type number of doubles.
            entries = replace(entries, kind=2)
        values = entries.numbers()
        _require(0 <= count <= min(len(rows_of_entries), len(values)), "entries are missing")
        native = values.dtype.newbyteorder("=")
        return rows, rows_of_entries[:count], offsets, values[:count].astype(native)

    def fields(self) -> dict[str, _Element]:
        """Return the fields of a 1 x 1 struct by name; empty for anything else."""
        if self.kind != _STRUCT or math.prod(self.shape) != 1:
            return {}
        width = next(self.rest).sizes().tolist()
        _require(len(width) == 1 and width[0] > 0, "the names of fields have no length")
        text = bytes(next(self.rest).content)
        starts = range(0, len(text), width[0])
        names = [text[i : i + width[0]].split(b"\0")[0].decode("utf-8", "replace") for i in starts]
        return {name: next(self.rest) for name in names}


def _elements(content: memoryview, order: str) -> Iterator[_Element]:
    """Yield consecutive elements; raises `ValueError`."""
    at = 0
    while at < len(content):
        kind, size = _words(content[at : at + 8], order)
        if kind >> 16:
            # Content of up to 4 bytes is stored in the tag itself.
            kind, size, start, stop = kind & 0xFFFF, kind >> 16, at + 4, at + 8
            _require(size <= 4, "a short element is too long")
        else:
            start = at + 8
            stop = start + size + (0 if kind == _PACKED else -size % 8)
        _require(start + size <= len(content), "it is truncated")
        yield _Element(kind, content[start : start + size], order)
        at = stop


def _words(tag: memoryview | bytes, order: str) -> tuple[int, int]:
    _require(len(tag) == 8, "it is truncated")
    first, second = np.frombuffer(tag, f"{order}u4").tolist()
    return first, second


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)
