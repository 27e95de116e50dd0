"""MATLAB files of version 5 to 7.2: their dense and sparse matrices of numbers.

"MAT-File Format", The MathWorks: a header of 128 bytes, then an element for each variable, packed
or not. An element has a tag (type, size) and content, padded to 8 bytes; the content of a matrix
are elements again. Every size is compared with the bytes that are there before it is used, and
only variables that are asked for are unpacked whole.
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
"""What reading bytes raises that are not as the format has them."""


class MatFile:
    """The variables of a .mat file, by name; of two of a name the later one counts.

    Raises `InputError` for a file of another version, and for what is damaged once it is read.
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
                f"{path}: is no whole .mat file (its header names no version from 5 to 7.2); copy "
                "it again, or save it with -v7 in MATLAB"
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
        """Return the numbers of a variable: an array, or a CSC matrix of SciPy.

        Those in a `field` of a struct of one element, or None where the variable has none.
        Raises `InputError` for what is damaged or holds no real numbers.
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
            # A column of it is a row of the transposed matrix.
            return checked_matrix(where, data=values, indices=indices, indptr=indptr, shape=shape).T
        except InputError:
            raise
        except _DAMAGE as error:
            raise self._damaged(label, error) from error

    def _damaged(self, label: str, error: Exception) -> InputError:
        reason = str(error) or "it is truncated"
        return InputError(f"{self.path}: is no whole .mat file ({label}: {reason}); copy it again")


@dataclass(frozen=True, slots=True)
class _Element:
    """The content of an element of a type, in the byte `order` of the file ("<" or ">")."""

    kind: int
    content: memoryview
    order: str

    def unpacked(self, limit: int | None = None) -> "_Element":
        """Return the element that is packed in this one, or its first bytes up to a `limit`."""
        if self.kind != _PACKED:
            return self
        stream = zlib.decompressobj()
        kind, size = _words(stream.decompress(self.content, 8), self.order)
        _require(size <= MOST_GROWTH * len(self.content), "it declares more than it holds")
        num_bytes = size if limit is None else min(size, limit)
        content = stream.decompress(stream.unconsumed_tail, num_bytes) if num_bytes else b""
        _require(len(content) == num_bytes, "it is truncated")
        if limit is None:
            # What follows the last byte is the checksum.
            surplus = stream.decompress(stream.unconsumed_tail, 1)
            _require(stream.eof and not surplus, "its size is wrong")
        return _Element(kind, memoryview(content), self.order)

    def numbers(self) -> Array:
        """Return what an element of numbers holds."""
        _require(self.kind in _NUMBERS, f"an element of numbers has the type {self.kind}")
        return np.frombuffer(self.content, f"{self.order}{_NUMBERS[self.kind]}")

    def sizes(self) -> Array:
        """Return what an element of 32-bit numbers holds, in native byte order."""
        _require(self.kind in (_INT32, _UINT32), f"a size has the type {self.kind}")
        values = self.numbers()
        return values.astype(values.dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """An element of the type matrix: its class, its name, and the elements that follow these."""

    kind: int
    complex: bool
    logical: bool
    shape: tuple[int, ...]
    name: str
    rest: Iterator[_Element]

    @classmethod
    def of(cls, element: _Element) -> "_Matrix":
        """Read the head of a matrix; the rest is read when it is asked for."""
        _require(element.kind == _MATRIX, f"the type {element.kind} is no matrix")
        if not element.content:
            # How an empty field of a struct is stored.
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
        _require(name.kind in _NAME_TYPES, "its name is no text")
        text = bytes(name.content).decode("utf-8", "replace")
        bits = flags[0] >> 8
        return cls(kind, bool(bits & _COMPLEX), bool(bits & _LOGICAL), shape, text, elements)

    def dense(self) -> Array:
        """Return an array of the matrix' class, with its shape."""
        values = next(self.rest).numbers()
        _require(len(values) == math.prod(self.shape), "values and shape differ in size")
        # Numbers are stored in the smallest type that holds them.
        with np.errstate(invalid="ignore", over="ignore"):
            array = values.astype(_CLASSES[self.kind])
            fits = array.dtype.kind == "f" or bool((array == values).all())
        _require(fits, "a number does not fit its class")
        return array.reshape(self.shape, order="F")

    def sparse(self) -> tuple[int, Array, Array, Array]:
        """Return the number of rows, and the rows, ends of columns and values of the entries."""
        _require(len(self.shape) == 2, "a sparse matrix has two sides")
        rows, columns = self.shape
        indices, indptr = next(self.rest), next(self.rest)
        rows_of_entries, ends = indices.sizes(), indptr.sizes()
        entries = next(self.rest)
        _require(len(ends) == columns + 1, f"{len(ends)} ends of {columns} columns")
        count = int(ends[-1])
        if self.logical and len(entries.content) < 8 * count:
            # MATLAB writes a byte each, and calls them doubles.
            entries = replace(entries, kind=2)
        values = entries.numbers()
        _require(0 <= count <= min(len(rows_of_entries), len(values)), "entries are missing")
        native = values.dtype.newbyteorder("=")
        return rows, rows_of_entries[:count], ends, values[:count].astype(native)

    def fields(self) -> dict[str, _Element]:
        """Return the elements of a struct of one element by the names of its fields."""
        if self.kind != _STRUCT or math.prod(self.shape) != 1:
            return {}
        width = next(self.rest).sizes().tolist()
        _require(len(width) == 1 and width[0] > 0, "the names of fields have no length")
        text = bytes(next(self.rest).content)
        starts = range(0, len(text), width[0])
        names = [text[i : i + width[0]].split(b"\0")[0].decode("utf-8", "replace") for i in starts]
        return {name: next(self.rest) for name in names}


def _elements(content: memoryview, order: str) -> Iterator[_Element]:
    """Yield the elements that stand one after the other; raises `ValueError`."""
    at = 0
    while at < len(content):
        kind, size = _words(content[at : at + 8], order)
        if kind >> 16:
            # Up to 4 bytes stand in the tag itself.
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
