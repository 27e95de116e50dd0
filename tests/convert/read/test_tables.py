"""Text tables compared with a slow reader, and the lines named in errors."""

import csv
import gzip
import re
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcgnn.convert.read.files import read_blocks
from hpcgnn.convert.read.tables import Kind, TableFile, integer_lines, read_column
from hpcgnn.errors import InputError

INT64 = st.integers(-(2**63), 2**63 - 1)
GAPS = {" ": ["\t", "  ", " \t "], ",": [",", ", ", " ,"], "\t": ["\t", " \t"], ";": [";", "; "]}
FILLER = st.sampled_from(["\n", "  \n", "# a 1 2\n", "\t% 3\n", "#\n"])


@st.composite
def number_texts(draw: st.DrawFn) -> tuple[str, str, list[list[int]], list[int]]:
    """A separator, a text of rows with noise between them, its rows, and their line numbers."""
    columns = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(INT64, min_size=columns, max_size=columns), max_size=12))
    separator = draw(st.sampled_from(list(GAPS)))
    text, lines = "", []
    for row in rows:
        text += "".join(draw(st.lists(FILLER, max_size=2)))
        lines.append(text.count("\n") + 1)
        text += str(row[0])
        text += "".join(draw(st.sampled_from(GAPS[separator])) + str(value) for value in row[1:])
        text += draw(st.sampled_from(["\n", "\r\n", " \n"]))
    return separator, text, rows, lines


@hypothesis.given(data=number_texts(), block_bytes=st.integers(1, 60), packed=st.booleans())
def test_numbers_equal_those_of_a_slow_reader(
    tmp_path: Path,
    data: tuple[str, str, list[list[int]], list[int]],
    block_bytes: int,
    packed: bool,
) -> None:
    separator, text, rows, lines = data
    path = tmp_path / "numbers"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    width = len(rows[0]) if rows else 1
    file = TableFile.plain(path, width, separator)
    for kinds in (range(width), range(1)):
        every: dict[int, Kind] = dict.fromkeys(kinds, "integer")
        tables = list(file.blocks(every, block_bytes))
        found = [np.stack([table.integers(i) for i in kinds], axis=1).tolist() for table in tables]
        assert [row for each in found for row in each] == [row[: len(kinds)] for row in rows]
        places = [table.locate(row) for table in tables for row in range(table.num_rows)]
        assert places == [f"{path}: line {line}" for line in lines]


@hypothesis.given(st.lists(st.tuples(st.integers(0, 99), st.floats(width=32)), min_size=1))
def test_floats_equal_those_of_python(tmp_path: Path, rows: list[tuple[int, float]]) -> None:
    path = tmp_path / "floats"
    path.write_text("".join(f"{i} {value!r}\n" for i, value in rows))
    (table,) = TableFile.plain(path, 2, " ").blocks({0: "integer", 1: "number"})
    np.testing.assert_array_equal(table.numbers(1), np.array([v for _, v in rows]))
    assert table.integers(0).tolist() == [i for i, _ in rows]


FIELDS = st.text(st.sampled_from('ab ,;"é#\t'), max_size=5)


@hypothesis.given(
    rows=st.lists(st.tuples(FIELDS, FIELDS, st.integers(-9, 9)), min_size=1, max_size=9),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC, csv.QUOTE_ALL]),
    separator=st.sampled_from([",", ";", "\t"]),
    block_bytes=st.sampled_from([20, 1 << 20]),
)
def test_quoted_fields_are_those_of_the_csv_module(
    tmp_path: Path,
    rows: list[tuple[str, str, int]],
    quoting: int,
    separator: str,
    block_bytes: int,
) -> None:
    path = tmp_path / "quoted.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator="\n")
        writer.writerows([("a", "b", "c"), *rows])
    table = TableFile.plain(path, 3, separator, 1)
    blocks = list(table.blocks({0: "text", 1: "text", 2: "integer"}, block_bytes))
    for column in (0, 1):
        found = [word for block in blocks for word in block.words(column)]
        assert found == [row[column].strip() for row in rows]
    assert [n for block in blocks for n in block.integers(2).tolist()] == [r[2] for r in rows]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n3 4 5\n6\n", "line 2 has 3 fields where 2 are expected"),
        ("# one\n1 2\n\n3\n", "line 4 has 1 fields where 2 are expected"),
        ("1 2\n3 x4\n", "line 2, column 2 holds 'x4' where a whole number"),
        ("1 2\n3 4.0\n", "line 2, column 2 holds '4.0' where a whole number"),
        ("1 2\n1-2 4\n", "line 2, column 1 holds '1-2' where a whole number"),
        ("1 0x2\n", "line 1, column 2 holds '0x2' where a whole number"),
        ("9223372036854775808 2\n", "line 1, column 1 holds '9223372036854775808'"),
        ("-99999999999999999999 2\n", "line 1, column 1 holds '-99999999999999999999'"),
        ("1 2\n\x00 4\n", "line 2, column 1 holds"),
        ("1 2\n3 \xff\n", "line 2, column 2 holds"),
    ],
)
@pytest.mark.parametrize("separator", [" ", ",", "\t"])
def test_a_faulty_line_is_named(tmp_path: Path, text: str, message: str, separator: str) -> None:
    path = tmp_path / "edges.txt"
    lines = [line if line[:1] == "#" else line.replace(" ", separator) for line in text.split("\n")]
    path.write_bytes("\n".join(lines).encode("latin1"))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        list(TableFile.plain(path, 2, separator).blocks({0: "integer", 1: "integer"}))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("field", ["1.5.2", "0x1", "1e", "one", "--1", "1_0", "nan(1)x"])
def test_a_faulty_number_is_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "f"
    path.write_text(f"1 2\n3 {field}\n")
    with pytest.raises(InputError, match=r"line 2, column 2 holds .* where a number is expected"):
        list(TableFile.plain(path, 2, " ").blocks({0: "number", 1: "number"}))


@hypothesis.given(st.lists(st.lists(INT64, max_size=5), max_size=8), st.sampled_from([" ", " \t "]))
def test_lines_of_unequal_length_are_whole(rows: list[list[int]], gap: str) -> None:
    lines = [gap.join(["", *map(str, row), "\r"]).encode() for row in rows]
    values, widths = integer_lines(lines, str)
    assert values.tolist() == [value for row in rows for value in row]
    assert widths.tolist() == [len(row) for row in rows]


@pytest.mark.parametrize("word", ["x", "0x1", "1.0", "9223372036854775808", "\xff", "1\x00"])
def test_a_faulty_word_of_a_line_is_named(word: str) -> None:
    with pytest.raises(InputError, match=r"place 1, column 2 holds .* where a whole number"):
        integer_lines([b"1", b"2 " + word.encode("latin1")], lambda row: f"place {row}")


def test_a_byte_order_mark_is_no_field(tmp_path: Path) -> None:
    path = tmp_path / "bom.csv"
    path.write_bytes(b"\xef\xbb\xbf1,2\n")
    assert TableFile.open(path, frozenset()).head == (("1", "2"),)
    (table,) = TableFile.plain(path, 2, ",").blocks({0: "integer"})
    assert table.integers(0).tolist() == [1]


def test_a_file_without_a_last_line_feed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("5\n6\n7")
    assert read_column(path).tolist() == [5, 6, 7]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("")
    assert read_column(path).tolist() == []
    assert list(read_blocks(path)) == []


def test_a_parquet_file_without_row_groups_has_one_piece_of_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    pq.ParquetWriter(path, pa.schema([("a", pa.int64())])).close()
    assert [size for _, size in TableFile.open(path, frozenset()).pieces(1)] == [0]


def test_pieces_of_a_parquet_file_are_row_groups_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    pq.write_table(pa.table({"a": np.arange(70)}), path, row_group_size=10, compression="none")
    file = TableFile.open(path, frozenset())
    size = pq.ParquetFile(path).metadata.row_group(0).total_byte_size
    for least, rows in ((1, [10] * 7), (2 * size, [20, 20, 20, 10]), (3 * size, [30, 30, 10])):
        found = [
            sum(each.num_rows for each in piece.blocks({0: "integer"}))
            for piece, _ in file.pieces(least)
        ]
        assert found == rows


@pytest.mark.parametrize("keep", [0.3, 0.97])
def test_a_truncated_gzip_file_is_named(tmp_path: Path, keep: float) -> None:
    whole = gzip.compress("".join(f"{i} {i * i}\n" for i in range(5000)).encode())
    path = tmp_path / "edges.txt.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(InputError, match=r"edges.txt.gz: the compressed file is truncated or dam"):
        list(TableFile.plain(path, 2, " ").blocks({0: "integer"}))


def test_a_flipped_byte_in_a_gzip_file_is_found(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress("".join(f"{i} {i * i}\n" for i in range(5000)).encode()))
    whole[len(whole) // 2] ^= 4
    path = tmp_path / "edges.txt.gz"
    path.write_bytes(whole)
    with pytest.raises(InputError):
        list(TableFile.plain(path, 2, " ").blocks({0: "integer"}))
