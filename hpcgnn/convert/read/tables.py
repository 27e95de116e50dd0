"""Read text and Parquet tables as streams of typed columns, using pyarrow.

The first line decides whether text is separated by tabs, commas, semicolons or blanks. Lines that
begin with `#` or `%` are comments: everywhere in a table whose ids are numbers, but only at the
head of one whose ids are names, or whose lines begin with a word, which may begin like that. Only
a faulty block is parsed line by line, to find the line.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from hpcgnn.convert.read.files import (
    BLOCK_BYTES,
    PARQUET,
    Span,
    TextBlock,
    decoded,
    is_packed,
    read_blocks,
)
from hpcgnn.convert.read.parquet_footer import column_chunks
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import first_true, require_file
from hpcgnn.typing import Array

Kind = Literal["integer", "number", "class", "text"]
"""How a column is read; a class is a number."""

MOST_COLUMNS = 100_000
_LONGEST_LINE_BYTES = 1 << 26
_BATCH_ROWS = 1 << 18
_BATCH_BYTES = 1 << 26
_GUARDED_BYTES = 1 << 24
MOST_NUMBERS = 1 << 20
"""Longest vector in a row of a Parquet file."""
MOST_TEXT_BYTES = 1 << 20
"""Longest text in a row of a Parquet file."""
_HEAD = re.compile(rb"\A(?:[ \t]*(?:[#%][^\n]*)?\r?\n)+")
_ODD_QUOTE = re.compile(rb'[ \t\r]"|"[ \t]|\r[^\n]')
_COMMENT = re.compile(rb"(?m)^[ \t]*[#%][^\n]*")
_BLANKS = " \t\n\v\f\r"
"""Blanks that are trimmed; as in Arrow, only ASCII ones."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"(?i)[+-]?([0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|inf|nan)")
_DIGITS = re.compile(r"[+-]*[0-9]+")
_INDEX = "__index_level_0__"
_NO_HEAD: tuple[tuple[str, ...], ...] = ((),)
_PADDED = re.compile(r"0[0-9]+")
_WHOLE_FLOAT = re.compile(r"[0-9]+(\.0*|(\.[0-9]+)?e\+[0-9]+)")
_TYPES = {"integer": pa.int64(), "number": pa.float64(), "class": pa.float64(), "text": pa.binary()}
_EXPECTED = {
    "integer": "a whole number that fits in 64 bits",
    "number": "a number",
    "class": "a number",
}
NAMES_OF_CLASSES = "correct it, or read all as names with --node-columns class=NAME"
"""Remedy for a label that is no number."""


def compute() -> Any:
    """Return ``pyarrow.compute``, whose import takes longer than reading most tables."""
    return import_module("pyarrow.compute")


def _parquet() -> Any:
    return import_module("pyarrow.parquet")


@dataclass(frozen=True, slots=True)
class Table:
    """Some columns of consecutive rows, by column index; `locate(row)` describes a row's place."""

    columns: Mapping[int, Any]
    num_rows: int
    locate: Callable[[int], str]

    def integers(self, column: int) -> NDArray[np.int64]:
        """Return a column of integers; raises `InputError` if one is missing."""
        values = self.columns[column]
        if values.null_count:
            row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise InputError(
                f"{self.locate(row)}, column {column + 1} is empty where {_EXPECTED['integer']} is "
                "expected; correct the line or remove it"
            )
        return values.to_numpy()

    def numbers(self, column: int) -> NDArray[np.float64]:
        """Return a column of numbers, NaN for missing ones."""
        return self.columns[column].to_numpy(zero_copy_only=False)

    def texts(self, column: int) -> Any:
        """Return a column of texts as a binary array, empty for missing ones.

        Raises `InputError` for a column of lists, which Parquet may hold.
        """
        values = self.columns[column]
        if not pa.types.is_binary(values.type):
            raise InputError(
                f"{self.locate(0)}, column {column + 1} holds {values.type} where a text is "
                "expected; name another column"
            )
        return values.fill_null(b"")

    def words(self, column: int) -> list[str]:
        """Return a column of texts; raises `InputError` for text that is not UTF-8."""
        texts = self.texts(column)
        row = first_not_utf8(texts)
        return decoded(texts.to_pylist(), "" if row is None else f"{self.locate(row)}:")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table file: its column names ("" without a header) and, for text, its `separator`.

    `header_line` is the line of the header, 0 without one. `numeric` tells for each column whether
    its first rows hold numbers; `head` are the fields of at least one of the first rows. With
    `span`, it stands for only some lines of text or row groups of Parquet. `lists` tells which
    columns of Parquet are lists, () for text. `has_name_ids` tells whether its ids are names, None
    if the columns that are read decide: names are texts.
    """

    path: Path
    names: tuple[str, ...]
    numeric: tuple[bool, ...]
    header_line: int
    separator: str
    head: tuple[tuple[str, ...], ...]
    span: Span | None = None
    lists: tuple[bool, ...] = ()
    has_name_ids: bool | None = None

    @property
    def is_parquet(self) -> bool:
        """Whether the file is Parquet."""
        return self.separator == ""

    @classmethod
    def open(
        cls,
        path: Path,
        header_names: frozenset[str],
        *,
        header: bool | None = None,
        separator: str | None = None,
    ) -> "TableFile":
        """Inspect the first rows; `header` says whether there is a header, None detects it.

        The first line is a header if one of its words is in `header_names`, or if a word has a
        number below it; it may contain numbers only if they count columns, as pandas writes them.
        `separator` None takes that of the first line.
        """
        if path.suffix.lower() in PARQUET:
            return _open_parquet(path)
        lines, separator = _first_lines(path, separator)
        number, first = lines[0]
        if header is None:
            below = lines[1][1] if len(lines) > 1 else ()
            is_header = any(field.lower() in header_names for field in first)
            numbers = [field for field in first if _NUMBER.fullmatch(field)]
            word_over_number = any(
                not _NUMBER.fullmatch(upper) and _NUMBER.fullmatch(lower)
                for upper, lower in zip(first, below, strict=False)
            )
            # A single number may be the weight of an edge between names.
            detected = is_header or (word_over_number and len(numbers) != 1)
            header = counts_columns(numbers) and detected
        rows = [fields for _, fields in lines[header:]]
        # A field further down that is no number is an error, not a reason to drop the column.
        heads = [_head([row[i] for row in rows if i < len(row)]) for i in range(len(first))]
        numeric = tuple(bool(_NUMBER.fullmatch(head)) for head in heads)
        names = first if header else ("",) * len(first)
        line = number if header else 0
        return cls(path, names, numeric, line, separator, tuple(rows) or (("",) * len(first),))

    @classmethod
    def plain(cls, path: Path, columns: int, separator: str, header_line: int = 0) -> "TableFile":
        """Return a text table whose layout the format defines; its rows are not inspected."""
        return cls(path, ("",) * columns, (False,) * columns, header_line, separator, _NO_HEAD)

    @property
    def index(self) -> int:
        """The column of an index written by pandas, or of R's row names; -1 without one."""
        if _INDEX in self.names:
            return self.names.index(_INDEX)
        # Only the first column: an unnamed one at the end comes from a trailing comma, as in Excel.
        return 0 if self.header_line and self.names[0] in ("", "Unnamed: 0") else -1

    def has_names(self, column: int) -> bool:
        """Tell whether ids in a column are names: words, or numbers with leading zeros.

        Raises `InputError` for floating-point numbers: as names, 5.0 and 5 are two nodes.
        """
        fields = [row[column] for row in self.head if column < len(row)]
        odd = next(filter(_WHOLE_FLOAT.fullmatch, fields), None)
        if odd is not None and all(map(_NUMBER.fullmatch, fields)):
            raise InputError(
                f"{self.path}: {self.describe(column)} has floating-point numbers as ids, such as "
                f"{odd}; save them as whole numbers, or read all ids as names with --names"
            )
        # Rows that are too short raise an error when they are read; below a header may be none.
        return (self.is_parquet or any(fields)) and (
            not _DIGITS.fullmatch(_head(fields))
            or any(_PADDED.fullmatch(field) for field in fields)
        )

    def column(self, name: str, option: str) -> int:
        """Return the index of a column given by name or by its number from 1; `InputError`."""
        if name in self.names:
            if self.names.count(name) > 1:
                raise InputError(f"{self.path}: two columns are called {name!r}; rename one")
            return self.names.index(name)
        if name.isdecimal() and 1 <= int(name) <= len(self.names):
            return int(name) - 1
        columns = ", ".join(filter(None, self.names)) or f"1 to {len(self.names)}, without a header"
        raise InputError(f"{option}: {self.path} has no column {name!r}; it has {columns[:200]}")

    def describe(self, column: int) -> str:
        """Return the name of a column for messages."""
        return self.names[column] or f"column {column + 1}"

    def named(self, columns: Sequence[int], width: int) -> tuple[str, ...]:
        """Return the column names, () if one has none or if vectors make `width` different."""
        names = tuple(self.names[column] for column in columns)
        return names if all(names) and len(names) == width else ()

    def feature_kinds(self, columns: Sequence[int]) -> dict[int, Kind]:
        """Return the kinds that feature columns are read as; vectors are read as texts."""
        return {column: "number" if self.numeric[column] else "text" for column in columns}

    def features(self, table: Table, columns: Sequence[int]) -> NDArray[np.float64]:
        """Return some columns of numbers and vectors as a matrix [rows, width].

        Raises `InputError` for anything but numbers and for vectors of unequal width.
        """
        parts = [
            table.numbers(column)[:, None] if self.numeric[column] else vectors(table, column)
            for column in columns
        ]
        return np.concatenate(parts, axis=1)

    def width(self, columns: Sequence[int]) -> int:
        """Return the width of the matrix that `features` makes, from the first rows, if any."""
        if all(self.numeric[column] for column in columns):
            return len(columns)
        for table in self.blocks(self.feature_kinds(columns)):
            return int(self.features(table, columns).shape[1])
        # Below a header without rows, nothing tells of vectors.
        return len(columns)

    def integers(self, column: int) -> NDArray[np.int64]:
        """Return a whole column of integers; raises `InputError`."""
        parts = [block.integers(column) for block in self.blocks({column: "integer"})]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def blocks(self, types: Mapping[int, Kind], block_bytes: int = BLOCK_BYTES) -> Iterator[Table]:
        """Yield the rows, with the columns of `types`; raises `InputError` with the place."""
        if self.is_parquet:
            yield from _parquet_blocks(self, types)
            return
        # All passes over a file must see the same rows, whatever columns they read.
        text = self.has_name_ids
        if text is None:
            text = any(type_name == "text" for type_name in types.values())
        text = text or (self.head != _NO_HEAD and not self.numeric[0])
        past_head = self.span is not None and self.span[0] > 0
        for block in read_blocks(self.path, block_bytes, _LONGEST_LINE_BYTES, self.span):
            data = block.data
            if not past_head and (head := _HEAD.match(data)):
                data = b"\n" * head[0].count(b"\n") + data[head.end() :]
            if not text and (b"#" in data or b"%" in data):
                data = _COMMENT.sub(b"", data)
            past_head = past_head or not data.isspace()
            table = self._parse(replace(block, data=data), types)
            if table.num_rows:
                yield table

    def no_rows(self, types: Mapping[int, Kind]) -> Table:
        """Return a table without rows, as from `blocks`."""
        columns = {column: pa.array([], _TYPES[type_name]) for column, type_name in types.items()}
        return Table(columns, 0, lambda _: str(self.path))

    def pieces(self, piece_bytes: int) -> "list[tuple[TableFile, int]]":
        """Divide the rows into spans of about `piece_bytes`, each a `TableFile` with its bytes.

        A compressed text is one piece; row groups are not divided.
        """
        if self.is_parquet:
            sizes = _group_bytes(self.path)
            starts = [0]
            for group in range(1, len(sizes)):
                if sum(sizes[starts[-1] : group + 1]) > piece_bytes:
                    starts.append(group)
            spans = list(zip(starts, [*starts[1:], len(sizes)], strict=True))
            return [(replace(self, span=span), sum(sizes[slice(*span)])) for span in spans]
        size, starts = self.path.stat().st_size, [0]
        if not is_packed(self.path) and size > piece_bytes:
            head = _head_bytes(self.path)
            starts += [start for start in range(piece_bytes, size, piece_bytes) if start > head]
        spans = list(zip(starts, [*starts[1:], size], strict=True))
        return [(replace(self, span=span), span[1] - span[0]) for span in spans]

    def _parse(self, block: TextBlock, types: Mapping[int, Kind]) -> Table:
        data = _without_line(block, self.header_line)
        if self.separator == " ":
            data = _single_blanks(data)
        block = replace(block, data=data)
        self._refuse_padded(block, types)
        odd = (b"x" in data or b"X" in data) and "text" not in types.values()
        # CSV readers disagree on blanks and carriage returns next to a quote.
        odd = odd or (b'"' in data and bool(_ODD_QUOTE.search(data)))
        columns = None if odd else self._fast(data, types)
        if columns is None:
            return self._by_line(block, types)
        return Table(columns, len(next(iter(columns.values()))), partial(_locate, block))

    def _refuse_padded(self, block: TextBlock, types: Mapping[int, Kind]) -> None:
        """Raise `InputError` for an id with leading zeros in a file whose ids are numbers."""
        ids: dict[int, Kind] = {c: "text" for c, kind in types.items() if kind == "integer"}
        if self.has_name_ids is not False or not ids or not _may_be_padded(block.data):
            return
        table = replace(self, has_name_ids=None)._parse(block, ids)
        for column in sorted(ids):
            texts = table.columns[column].cast(pa.string(), safe=False)
            padded = np.asarray(compute().match_substring_regex(texts, "^0[0-9]+$"), np.bool_)
            if (row := first_true(padded)) is not None:
                raise InputError(
                    f"{table.locate(row)}, column {column + 1}: the id {texts[row].as_py()!r} has "
                    "leading zeros, and ids before it have none; give --names, with which all ids "
                    "are names, or correct it"
                )

    def _fast(self, data: bytes, types: Mapping[int, Kind]) -> dict[int, Any] | None:
        """Return the columns of a block, None if it must be parsed line by line."""
        quoted = b'"' in data
        if data.isspace():
            return {number: pa.array([], _TYPES[type_name]) for number, type_name in types.items()}
        names = {number: str(number) for number in sorted(types)}
        try:
            read = pa_csv.read_csv(
                pa.BufferReader(data),
                pa_csv.ReadOptions(
                    use_threads=False,
                    block_size=len(data) + 1,
                    column_names=[str(i) for i in range(len(self.names))],
                ),
                pa_csv.ParseOptions(delimiter=self.separator, quote_char='"' if quoted else False),
                pa_csv.ConvertOptions(
                    check_utf8=False,
                    column_types={name: _TYPES[types[number]] for number, name in names.items()},
                    include_columns=list(names.values()),
                    null_values=[""],
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if quoted and read.num_rows != sum(1 for line in data.split(b"\n") if line.strip()):
            # Some quote is not closed in its line.
            return None
        blanks = {b" ", b"\t", b"\v", b"\f"} - {self.separator.encode()}
        padded = self.separator != " " and any(blank in data for blank in blanks)
        columns = {}
        for number, name in names.items():
            column = _whole(read.column(name))
            columns[number] = _trim(column) if padded and types[number] == "text" else column
        return columns

    def _by_line(self, block: TextBlock, types: Mapping[int, Kind]) -> Table:
        """Parse a block line by line; raises `InputError` for the first faulty line."""
        rows: list[tuple[str, ...]] = []
        lines: list[int] = []
        for line, text in _filled_lines(block):
            where = partial(_line, block, line)
            if text.count('"') % 2:
                raise InputError(
                    f"{where()} has a quote that is not closed in its line; correct the line"
                )
            fields = _split(text, self.separator, where)
            if len(fields) != len(self.names):
                if text.lstrip()[0] in "#%":
                    continue
                raise InputError(
                    f"{where()} has {len(fields)} fields where {len(self.names)} are expected; "
                    "correct the line or remove it"
                )
            for column, type_name in sorted(types.items()):
                _check_field(fields[column], type_name, column + 1, where)
            rows.append(fields)
            lines.append(line)
        columns = {line: _column([row[line] for row in rows], types[line]) for line in types}
        return Table(columns, len(rows), lambda row: _line(block, lines[row]))


def common_width(features: Sequence[tuple[TableFile, Sequence[int]]], owners: str) -> int:
    """Return the width of the features in columns of files; `InputError` if widths differ."""
    widths = [file.width(columns) for file, columns in features]
    for (file, _), width in zip(features, widths, strict=True):
        if width != widths[0]:
            raise InputError(
                f"{file.path}: has {width} columns of features and {features[0][0].path} has "
                f"{widths[0]}; give all {owners} equally many"
            )
    return widths[0]


def _may_be_padded(data: bytes) -> bool:
    """Tell whether a word of a block begins with a zero that a digit follows."""
    text = np.frombuffer(b"\n" + data, np.uint8)
    zeros = np.flatnonzero(text[1:-1] == ord("0")) + 1
    before, after = text[zeros - 1], text[zeros + 1]
    begins = np.isin(before, np.frombuffer(b'\n\r\t\v\f ,;"', np.uint8))
    return bool((begins & (after >= ord("0")) & (after <= ord("9"))).any())


def _filled_lines(block: TextBlock) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(block.data.split(b"\n")[:-1]):
        text = line.decode("utf-8", "surrogateescape").strip("\r")
        if text.strip():
            yield number, text


def _line(block: TextBlock, line: int) -> str:
    return f"{block.path}: line {block.first_line + line}"


def _locate(block: TextBlock, row: int) -> str:
    filled = [i for i, line in enumerate(block.data.split(b"\n")) if line.strip()]
    return _line(block, filled[row])


def _whole(column: Any) -> Any:
    column = column.combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def read_column(path: Path) -> NDArray[np.int64]:
    """Return the integers of a file that has one on each line; raises `InputError`."""
    return TableFile.plain(path, 1, ",").integers(0)


def integer_lines(
    lines: Sequence[bytes], locate: Callable[[int], str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the blank-separated integers of lines, and how many each line has; `InputError`."""
    texts = pa.array(lines, pa.binary()).cast(pa.string(), safe=False)
    words = compute().ascii_split_whitespace(compute().ascii_trim_whitespace(texts))
    fields = words.flatten()
    filled = np.asarray(compute().binary_length(fields)) > 0
    widths = np.diff(np.cumsum(np.concatenate([[0], filled]))[words.offsets.to_numpy()])
    try:
        if any(b"x" in line or b"X" in line for line in lines):
            raise pa.ArrowInvalid("Arrow would read hexadecimal numbers")
        values: NDArray[np.int64] = fields.filter(pa.array(filled)).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        numbers = []
        for row, line in enumerate(lines):
            for column, word in enumerate(line.decode("utf-8", "surrogateescape").split(), 1):
                _check_field(word, "integer", column, partial(locate, row))
                numbers.append(int(word))
        values = np.array(numbers, np.int64)
    return values, widths


def _column(values: list[str], type_name: Kind) -> Any:
    if type_name == "text":
        return pa.array([value.encode("utf-8", "surrogateescape") for value in values], pa.binary())
    convert: Callable[[str], Any] = int if type_name == "integer" else float
    return pa.array([convert(value) if value else None for value in values], _TYPES[type_name])


def _check_field(field: str, type_name: Kind, column: int, where: Callable[[], str]) -> None:
    if type_name == "text" or field == "":
        return
    pattern = _INTEGER if type_name == "integer" else _NUMBER
    if not pattern.fullmatch(field) or (
        type_name == "integer" and not -(2**63) <= int(field) < 2**63
    ):
        shown = field[:40].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        remedy = "correct the line or remove it"
        if type_name != "integer" and is_missing(field):
            remedy = "leave the field empty"
        elif type_name == "class":
            remedy = NAMES_OF_CLASSES
        raise InputError(
            f"{where()}, column {column} holds {shown!r} where {_EXPECTED[type_name]} is "
            f"expected; {remedy}"
        )


def _trim(column: Any) -> Any:
    return compute().ascii_trim_whitespace(column.cast(pa.string(), safe=False)).cast(pa.binary())


def _single_blanks(data: bytes) -> bytes:
    """Return lines whose fields are separated by single blanks."""
    if b"\t" in data or b"\r" in data:
        data = data.translate(bytes.maketrans(b"\t\r\v\f", b"    "))
    if b"  " in data:
        data = re.sub(rb"  +", b" ", data)
    if data.startswith(b" ") or b"\n " in data or b" \n" in data:
        data = re.sub(rb"(?m)^ | $", b"", data)
    return data


def _without_line(block: TextBlock, number: int) -> bytes:
    """Return the block with line `number` of the file emptied, if the block has it."""
    position = number - block.line
    # A span that does not begin at byte 0 begins after the header.
    if number == 0 or block.base or not 0 <= position < block.data.count(b"\n"):
        return block.data
    lines = block.data.split(b"\n", position + 1)
    lines[position] = b""
    return b"\n".join(lines)


def _split(text: str, separator: str, where: Callable[[], str]) -> tuple[str, ...]:
    plain = re.sub(r'"[^"]*"', "", text) if '"' in text else text
    count = 1 + len(re.findall(" +", plain)) if separator == " " else 1 + plain.count(separator)
    if count > MOST_COLUMNS:
        # Counted before splitting, because a line may be very long.
        raise InputError(
            f"{where()} has {count} fields; at most {MOST_COLUMNS} are read: save wide features as "
            ".npy or as a vector column of Parquet"
        )
    if separator == " ":
        return tuple(text.split())
    if plain is text:
        return tuple(field.strip(_BLANKS) for field in text.split(separator))
    try:
        fields = next(csv.reader([text], delimiter=separator, skipinitialspace=True))
    except csv.Error as error:
        raise InputError(f"{where()} is not a valid CSV line ({error}); check the file") from error
    return tuple(field.strip(_BLANKS) for field in fields)


def is_missing(field: str) -> bool:
    """Tell whether a field is empty or a common word for a missing value."""
    return field.lower() in ("", "na", "n/a", "<na>", "nan", "null", "none")


def has_decimal_comma(field: str) -> bool:
    """Tell whether a field may be a number with a decimal comma, as Excel writes it in Europe."""
    return re.fullmatch(r"[+-]?[0-9]+,[0-9]+", field) is not None


def _head(fields: Sequence[str]) -> str:
    """Return the first field that is not missing, or else the first that is not empty."""
    filled = (field for field in fields if not is_missing(field))
    return next(filled, next(filter(None, fields), ""))


def counts_columns(fields: Iterable[str]) -> bool:
    """Tell whether fields are 0, 1, 2 and so on, like pandas' default column names."""
    return all(field == str(number) for number, field in enumerate(fields))


def _first_lines(
    path: Path, fixed_separator: str | None
) -> tuple[list[tuple[int, tuple[str, ...]]], str]:
    """Return the numbers and fields of the first non-empty lines, and the separator."""
    head: list[tuple[int, tuple[str, ...]]] = []
    separator = ""
    for block in read_blocks(path, 1 << 16, _LONGEST_LINE_BYTES):
        for line, text in _filled_lines(block):
            if not head:
                if text.lstrip()[0] in "#%":
                    continue
                separator = _separator(text) if fixed_separator is None else fixed_separator
            fields = _split(text, separator, partial(_line, block, line))
            head.append((block.line + line, fields))
            if len(head) == 100:
                break
        if head:
            return head, separator
    raise InputError(f"{path}: holds nothing but comments and empty lines; check the file")


def _separator(text: str) -> str:
    plain = re.sub(r'"[^"]*"', "", text)
    if "\t" in plain.strip(" \r"):
        return "\t"
    comma, semicolon = plain.count(","), plain.count(";")
    if comma or semicolon:
        return "," if comma >= semicolon else ";"
    return " " if len(plain.split()) > 1 else ","


def _head_bytes(path: Path) -> int:
    """Return the byte at which the first line ends that is neither empty nor a comment."""
    with path.open("rb") as file:
        for line in file:
            text = line.removeprefix(b"\xef\xbb\xbf").lstrip()
            if text and text[0] not in b"#%":
                break
        return file.tell()


def _group_bytes(path: Path) -> list[int]:
    """Return the sizes of the row groups of a Parquet file; raises `InputError`."""

    def sizes() -> list[int]:
        metadata = _parquet().ParquetFile(path).metadata
        return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]

    return _reading(path, sizes) or [0]


def _open_parquet(path: Path) -> TableFile:
    parquet = _reading(path, lambda: _parquet().ParquetFile(require_file(path)))
    schema = parquet.schema_arrow
    lists = tuple(_is_list(t) for t in schema.types)
    types = pa.types
    numeric = tuple(
        types.is_integer(t) or types.is_floating(t) or types.is_boolean(t) or types.is_decimal(t)
        for t in schema.types
    )
    head = tuple(
        "0" if types.is_integer(t) else "0.0" if types.is_floating(t) else "" for t in schema.types
    )
    if len(schema.names) > MOST_COLUMNS:
        raise InputError(
            f"{path}: has {len(schema.names)} columns; at most {MOST_COLUMNS} are read: save wide "
            "features as a vector column"
        )
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise InputError(f"{path}: two columns are called {name!r}; rename one")
    _reading(path, lambda: _check_row_sizes(path))
    return TableFile(path, tuple(schema.names), numeric, 1, "", (head,), lists=lists)


def _check_row_sizes(path: Path) -> None:
    """Refuse files with huge rows, which a few compressed bytes can declare, before reading."""
    for column in column_chunks(path):
        rows = max(column.num_rows, 1)
        if column.num_values > MOST_NUMBERS * rows:
            size = f"{column.num_values // rows} numbers"
        elif column.num_bytes > 8 * MOST_NUMBERS * rows + MOST_TEXT_BYTES:
            size = f"{column.num_bytes // rows} bytes"
        else:
            continue
        raise InputError(
            f"{path}: the column {column.name!r} has {size} a row; at most "
            f"{MOST_NUMBERS} numbers or {MOST_TEXT_BYTES} bytes of text are read"
        )


def _reading(path: Path, step: Callable[[], Any]) -> Any:
    try:
        return step()
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = one_line(error)[:200]
        raise InputError(f"{path}: is no valid Parquet file ({reason}); copy it again") from error


def _parquet_blocks(file: TableFile, types: Mapping[int, Kind]) -> Iterator[Table]:
    names = [file.names[number] for number in sorted(types)]
    parquet = _reading(file.path, lambda: _parquet().ParquetFile(file.path))
    if file.path.stat().st_size < _GUARDED_BYTES:
        # A dictionary with one long text can expand to any number of rows, so lengths are checked
        # before decoding. In large files the check would take a third of the time.
        schema = parquet.schema_arrow
        texts = [name for name in names if _is_text(schema.field(name).type)]
        parquet = _reading(
            file.path, lambda: _parquet().ParquetFile(file.path, read_dictionary=texts)
        )
    groups = range(parquet.metadata.num_row_groups)
    first = 0
    if file.span is not None:
        first = sum(parquet.metadata.row_group(i).num_rows for i in groups[: file.span[0]])
        groups = groups[slice(*file.span)]
    batches = _reading(
        file.path, lambda: parquet.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=names)
    )
    while (batch := _reading(file.path, lambda: next(batches, None))) is not None:
        for rows in _moderate(batch, partial(_row, file.path, first)):
            columns = {
                number: _cast(file, rows.column(file.names[number]), number, type_name)
                for number, type_name in types.items()
            }
            yield Table(columns, rows.num_rows, partial(_row, file.path, first))
            first += rows.num_rows


def _is_text(arrow_type: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(arrow_type)
        or types.is_binary(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_large_binary(arrow_type)
    )


def _moderate(batch: Any, locate: Callable[[int], str]) -> Iterator[Any]:
    """Cut a batch so that no piece has more than `_BATCH_BYTES` of text."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if isinstance(column, pa.DictionaryArray) and _is_text(column.type.value_type):
            lengths = compute().binary_length(column.dictionary).take(column.indices)
            sizes += np.asarray(lengths.fill_null(0), np.int64)
        elif _is_text(column.type):
            sizes += np.asarray(compute().binary_length(column).fill_null(0), np.int64)
    if sizes.max(initial=0) > len(batch.columns) * MOST_TEXT_BYTES:
        row = int(sizes.argmax())
        raise InputError(
            f"{locate(row)}: has {sizes[row]} bytes of text; at most {MOST_TEXT_BYTES} per column "
            "are read"
        )
    starts = np.cumsum(sizes) // _BATCH_BYTES
    for start, stop in pairwise([*np.flatnonzero(np.diff(starts, prepend=-1)), batch.num_rows]):
        yield batch.slice(start, stop - start)


def _row(path: Path, first: int, row: int) -> str:
    return f"{path}: row {first + row + 1}"


def _cast(file: TableFile, column: Any, column_number: int, type_name: Kind) -> Any:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if type_name == "text" and _is_list(column.type):
        return column
    try:
        if type_name == "text" and not pa.types.is_binary(column.type):
            column = column.cast(pa.string())
        # Fields of text tables are trimmed as well.
        return _trim(column) if type_name == "text" else column.cast(_TYPES[type_name])
    except pa.ArrowException as error:
        raise InputError(
            f"{file.path}: the column {file.names[column_number]!r} holds {column.type} where "
            f"{_EXPECTED.get(type_name, 'a text')} is expected "
            f"({one_line(error)[:100]}); save it as that, or leave it out"
        ) from error


def _is_list(arrow_type: Any) -> bool:
    types = pa.types
    return bool(
        types.is_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
        or types.is_large_list(arrow_type)
    )


def vectors(table: Table, column: int) -> Array:
    """Return a column of vectors [rows, width]: lists, or texts such as "0.1 0.2" or "[1, 2]".

    Raises `InputError` for the first row with another width.
    """
    values = table.columns[column]
    if pa.types.is_binary(values.type):
        texts = table.texts(column).to_pylist()
        rows = [_vector(text, table, row, column) for row, text in enumerate(texts)]
        _check_widths(np.array([len(row) for row in rows]), table)
        return np.stack(rows)
    arrow_type = values.type.value_type
    if not (
        pa.types.is_integer(arrow_type)
        or pa.types.is_floating(arrow_type)
        or pa.types.is_boolean(arrow_type)
    ):
        raise InputError(
            f"{table.locate(0)}, column {column + 1} holds {values.type} where vectors of numbers "
            "are expected; name another column"
        )
    lengths = compute().fill_null(compute().list_value_length(values), 0).to_numpy()
    _check_widths(lengths, table)
    flat = values.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(values), int(lengths[0]))


def _check_widths(widths: Array, table: Table) -> None:
    """Raise `InputError` for the first vector that is empty or differs in length from row 0."""
    wrong = (widths != widths[0]) | (widths == 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{table.locate(row)}: the vector has {widths[row]} numbers where the first has "
            f"{widths[0]}; give all the same width"
        )


def _vector(text: bytes, table: Table, row: int, column: int) -> Array:
    whole = text.decode("utf-8", "replace")
    if has_decimal_comma(whole):
        raise InputError(
            f"{table.locate(row)}, column {column + 1} holds {whole[:40]!r}; write numbers with a "
            "decimal point, or a vector in brackets"
        )
    words = whole.strip("[]() ").replace(",", " ").replace(";", " ")
    for word in words.split():
        if not _NUMBER.fullmatch(word):
            raise InputError(
                f"{table.locate(row)}, column {column + 1} holds {word[:40]!r} where a vector of "
                "numbers is expected; correct the line"
            )
    return np.array(words.split(), np.float64)


def first_not_utf8(texts: Any) -> int | None:
    """Return the index of the first text (binary) that is not UTF-8, or None."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        for row, text in enumerate(texts.to_pylist()):
            if text.decode("utf-8", "ignore").encode() != text:
                return row
    return None


def numbers_of(texts: Any, names: Sequence[str]) -> NDArray[np.int32]:
    """Return the index of each text in `names`, -1 if absent."""
    value_set = pa.array([name.encode() for name in names], pa.binary())
    numbers = compute().index_in(texts, value_set=value_set)
    return numbers.fill_null(-1).to_numpy()


def classes_of(chunks: Sequence[Any], where: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts, sorted as bytes, and each row's index in them; `InputError`."""
    encoded = pa.chunked_array(chunks, pa.binary()).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    distinct = encoded.dictionary.to_pylist()
    order = sorted(range(len(distinct)), key=distinct.__getitem__)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    texts = decoded((distinct[i] for i in order), f"{where}:")
    return texts, ranks[encoded.indices.to_numpy()]
