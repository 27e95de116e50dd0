"""Turn blocks of numeric text into arrays without a Python step for each line.

A block is a byte array; NumPy finds the starts and ends of its fields, and its own text reader
makes the numbers. Only when a block is faulty are its lines looked at one by one, to name the line.
Fields are parted by blanks, tabs, commas or semicolons; lines that begin with `#` or `%` are
comments; empty lines are skipped. Line numbers count every line of the file from 1.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcgnn.convert.read.files import BLOCK_BYTES, TextBlock, read_blocks
from hpcgnn.errors import InputError
from hpcgnn.typing import Array, GlobalIndices

_TO_BLANK = bytes.maketrans(b",;\t\r\v\f", b"      ")
_COMMENT = re.compile(rb"(?m)^ *[#%][^\n]*")
_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(
    rb"(?i)[+-]?([0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|inf(inity)?|nan)"
)
_INT64 = np.iinfo(np.int64)
_LONGEST_TEXT = 255
_GATHER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Tokens:
    """The fields of a block: byte positions of their starts and ends, and of the line feeds."""

    block: TextBlock
    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    newlines: NDArray[np.int64]

    def per_line(self) -> NDArray[np.int64]:
        """Return the number of fields of each line."""
        return np.diff(np.searchsorted(self.starts, self.newlines), prepend=0)


def tokenise(block: TextBlock) -> Tokens:
    """Find the fields of `block`; comments become empty lines."""
    data = block.data.translate(_TO_BLANK)
    if b"#" in data or b"%" in data:
        data = _COMMENT.sub(b"", data)
    view = np.frombuffer(data, np.uint8)
    filled = np.concatenate(([False], view > ord(" ")))
    # A block ends with a line feed, so starts and ends alternate and come in pairs.
    turns = np.flatnonzero(filled[1:] != filled[:-1])
    newlines = np.flatnonzero(view == ord("\n"))
    return Tokens(block, data, turns[0::2], turns[1::2], newlines)


@dataclass(frozen=True, slots=True)
class Table:
    """Lines with equally many fields: `starts` and `ends` are `[rows, columns]` byte positions."""

    tokens: Tokens
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lines: NDArray[np.int64]

    def locate(self, row: int) -> str:
        """Return the file and line of a row."""
        return f"{self.tokens.block.path}: line {self.lines[row]}"

    def integers(self, columns: Sequence[int]) -> NDArray[np.int64]:
        """Return whole numbers `[rows, len(columns)]`; `columns` ascend."""
        values = self._numbers(columns, np.int64)
        # NumPy's reader stops at the ends of int64 instead of failing.
        if values is None or (
            values.size and (values.max() == _INT64.max or values.min() == _INT64.min)
        ):
            raise self._fault(columns, _INTEGER, "a whole number that fits in 64 bits")
        return values

    def floats(self, columns: Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """Return numbers `[rows, len(columns)]`; `columns` ascend; NaN and inf pass."""
        values = self._numbers(columns, dtype)
        if values is None:
            raise self._fault(columns, _NUMBER, "a number")
        return values

    def texts(self, column: int) -> NDArray[np.bytes_]:
        """Return the fields of one column as fixed-length bytes `[rows]`."""
        starts, ends = self.starts[:, column], self.ends[:, column]
        width = int((ends - starts).max(initial=1))
        if width > _LONGEST_TEXT:
            row = int(np.argmax(ends - starts))
            raise InputError(
                f"{self.locate(row)}, column {column + 1} is {width} bytes long; "
                f"shorten it to {_LONGEST_TEXT}"
            )
        step = max(1, _GATHER_BYTES // width)
        padded = np.frombuffer(self.tokens.data + bytes(width), np.uint8)
        parts = [
            _gather(padded, starts[first : first + step], ends[first : first + step], width)
            for first in range(0, len(starts), step)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, "S1")

    def _numbers(self, columns: Sequence[int], dtype: DTypeLike) -> Array | None:
        shape = (len(self.starts), len(columns))
        if 0 in shape:
            return np.zeros(shape, dtype)
        text = self.tokens.data if shape[1] == self.starts.shape[1] else self._only(columns)
        try:
            with warnings.catch_warnings():
                # Before 2.3 NumPy only warns of text that is no number.
                warnings.simplefilter("error", DeprecationWarning)
                values = np.fromstring(text, dtype=dtype, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
        return values.reshape(shape) if values.size == shape[0] * shape[1] else None

    def _only(self, columns: Sequence[int]) -> bytes:
        """Return the text with blanks in place of all other columns."""
        depth = np.zeros(len(self.tokens.data) + 1, np.int8)
        depth[self.starts[:, columns]] = 1
        depth[self.ends[:, columns]] = -1
        inside = np.cumsum(depth[:-1], dtype=np.int8).astype(bool)
        return np.where(
            inside, np.frombuffer(self.tokens.data, np.uint8), np.uint8(ord(" "))
        ).tobytes()

    def _fault(self, columns: Sequence[int], pattern: re.Pattern[bytes], due: str) -> InputError:
        for row in range(len(self.starts)):
            for column in columns:
                first, last = self.starts[row, column], self.ends[row, column]
                field = self.tokens.data[first:last]
                if not pattern.fullmatch(field) or not _fits(field, pattern):
                    text = field[:40].decode("utf-8", "replace")
                    return InputError(
                        f"{self.locate(row)}, column {column + 1} holds {text!r} where {due} "
                        "is due; correct the line or remove it"
                    )
        lines = f"lines {self.lines[0]} to {self.lines[-1]}"
        return InputError(f"{self.tokens.block.path}: {lines} are not numeric text")


def _fits(field: bytes, pattern: re.Pattern[bytes]) -> bool:
    return pattern is not _INTEGER or _INT64.min < int(field) < _INT64.max


def _gather(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], width: int
) -> NDArray[np.bytes_]:
    positions = starts[:, None] + np.arange(width)
    letters = np.where(positions < ends[:, None], data[positions], np.uint8(0))
    return letters.view(f"S{width}")[:, 0]


def split_table(block: TextBlock, columns: int | None = None) -> Table:
    """Split a block into `columns` fields a line (None: as many as its first filled line has).

    Raises `InputError` that names the first line with another number of fields.
    """
    tokens = tokenise(block)
    if (width := columns) is None:
        widths = tokens.per_line()
        width = int(widths[np.argmax(widths > 0)]) or 1
    lines = np.arange(len(tokens.newlines)) + block.first_line
    if not _is_regular(tokens, width):
        per_line = tokens.per_line()
        wrong = np.flatnonzero((per_line != width) & (per_line > 0))
        if len(wrong):
            raise InputError(
                f"{block.path}: line {block.first_line + wrong[0]} has {per_line[wrong[0]]} fields "
                f"where {width} are due; correct the line or remove it"
            )
        lines = lines[per_line > 0]
    shape = (len(lines), width)
    return Table(tokens, tokens.starts.reshape(shape), tokens.ends.reshape(shape), lines)


def _is_regular(tokens: Tokens, width: int) -> bool:
    """Tell whether each line has exactly `width` fields, without counting them line by line."""
    starts, newlines = tokens.starts, tokens.newlines
    if len(starts) != width * len(newlines):
        return False
    return bool(
        (starts[width - 1 :: width] < newlines).all()
        and (starts[width::width] > newlines[:-1]).all()
    )


def read_tables(
    path: Path, columns: int | None = None, *, skip_line: int = 0, block_bytes: int = BLOCK_BYTES
) -> Iterator[Table]:
    """Yield the tables of a file, all with the same number of columns; empty ones are left out.

    `skip_line` is the number of a line to leave out, such as a header; 0 for none.
    """
    for block in read_blocks(path, block_bytes):
        table = split_table(without_line(block, skip_line), columns)
        if len(table.lines):
            columns = table.starts.shape[1]
            yield table


def without_line(block: TextBlock, number: int) -> TextBlock:
    """Return the block with line `number` of the file emptied, if it is in the block."""
    position = number - block.first_line
    if not 0 <= position < block.data.count(b"\n"):
        return block
    lines = block.data.split(b"\n", position + 1)
    lines[position] = b""
    return TextBlock(block.path, b"\n".join(lines), block.first_line)


def first_fields(path: Path) -> tuple[list[bytes], int]:
    """Return the fields of the first line that is neither empty nor a comment, and its number."""
    for block in read_blocks(path):
        tokens = tokenise(block)
        filled = np.flatnonzero(tokens.per_line())
        if len(filled):
            line = int(filled[0])
            inside = range(int(np.searchsorted(tokens.starts, tokens.newlines[line])))
            fields = [tokens.data[tokens.starts[i] : tokens.ends[i]] for i in inside]
            return fields, block.first_line + line
    raise InputError(f"{path}: holds nothing but comments and empty lines; check the file")


def read_column(path: Path) -> GlobalIndices:
    """Return the whole numbers of a file that has one on each line, `[rows]` int64."""
    parts: list[GlobalIndices] = [table.integers([0])[:, 0] for table in read_tables(path, 1)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
