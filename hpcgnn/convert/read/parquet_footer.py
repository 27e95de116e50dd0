"""Read column sizes from the footer of a Parquet file without Arrow's objects.

Arrow builds an object for each column and row group on request, and a damaged footer crashes the
process there. The footer is a structure of Thrift's compact protocol; field numbers are those of
parquet.thrift of the Parquet format.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_END_BYTES = 8
"""Bytes of the footer's length and the magic number at the end of a file."""
_ROW_GROUPS, _COLUMNS, _ROWS, _META, _PATH, _VALUES, _BYTES = 4, 1, 3, 3, 3, 5, 6
_TRUE, _FALSE, _BYTE, _SHORT, _LONG, _DOUBLE, _TEXT = 1, 2, 3, 4, 6, 7, 8
_LIST, _SET, _STRUCT = 9, 10, 12
_MOST_DEPTH, _MOST_BITS = 16, 64


class ColumnChunk(NamedTuple):
    """A column of a row group: name, rows of the group, values, and bytes after decompression."""

    name: str
    num_rows: int
    num_values: int
    num_bytes: int


def column_chunks(path: Path) -> Iterator[ColumnChunk]:
    """Yield the columns of all row groups; raises `ValueError` if the footer is damaged."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(size - _END_BYTES)
        length = int.from_bytes(file.read(4), "little")
        if length > size - _END_BYTES:
            raise ValueError("the footer is longer than the file")
        file.seek(size - _END_BYTES - length)
        footer = _Thrift(file.read(length))
    try:
        for group in footer.struct()[_ROW_GROUPS]:
            for column in group[_COLUMNS]:
                meta = column[_META]
                name = b".".join(meta[_PATH]).decode("utf-8", "replace")
                yield ColumnChunk(name, group[_ROWS], meta[_VALUES], meta[_BYTES])
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("the footer is damaged") from error


class _Thrift:
    """Parses structures of the compact protocol into dicts keyed by field number."""

    def __init__(self, content: bytes) -> None:
        self._content, self._next = content, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _MOST_DEPTH:
            raise ValueError("the footer is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int, *, in_list: bool = False) -> Any:
        if kind in (_TRUE, _FALSE):
            return self._byte() == _TRUE if in_list else kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if _SHORT <= kind <= _LONG:
            return self._signed()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _TEXT:
            return self._bytes(self._unsigned())
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        # Parquet has no maps.
        raise ValueError(f"the footer has a value of type {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 != 15 else self._unsigned()
        if count > len(self._content) - self._next:
            raise ValueError("the footer ends within a list")
        return [self._value(head & 15, depth, in_list=True) for _ in range(count)]

    def _byte(self) -> int:
        value = self._content[self._next]
        self._next += 1
        return value

    def _bytes(self, count: int) -> bytes:
        value = self._content[self._next : self._next + count]
        if len(value) < count:
            raise ValueError("the footer ends within a text")
        self._next += count
        return value

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > _MOST_BITS:
                raise ValueError("the footer has a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
