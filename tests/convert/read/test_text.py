"""The fast text parser against a slow one, and the lines it names."""

import gzip
import re
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from hpcgnn.convert.read.files import TextBlock, read_blocks
from hpcgnn.convert.read.text import first_fields, read_column, read_tables, split_table
from hpcgnn.errors import InputError

INT64 = st.integers(-(2**63) + 1, 2**63 - 2)
GAP = st.text(" \t,;", min_size=1, max_size=3)
EDGE_GAP = st.text(" \t,;", max_size=2)
FILLER = st.sampled_from(["\n", "  \n", "# a 1 2\n", "\t% 3\n", "#\n"])


@st.composite
def edge_texts(draw: st.DrawFn) -> tuple[str, list[list[int]], list[int]]:
    """A text of rows with noise between them, its rows, and the lines they stand in."""
    columns = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(INT64, min_size=columns, max_size=columns), max_size=12))
    text, lines = "", []
    for row in rows:
        text += "".join(draw(st.lists(FILLER, max_size=2)))
        lines.append(text.count("\n") + 1)
        text += draw(EDGE_GAP) + str(row[0])
        text += "".join(draw(GAP) + str(value) for value in row[1:])
        text += draw(EDGE_GAP) + draw(st.sampled_from(["\n", "\r\n"]))
    return text, rows, lines


@hypothesis.given(data=edge_texts(), block_bytes=st.integers(1, 60), packed=st.booleans())
def test_numbers_equal_those_of_a_slow_reader(
    tmp_path: Path, data: tuple[str, list[list[int]], list[int]], block_bytes: int, packed: bool
) -> None:
    text, rows, lines = data
    path = tmp_path / "numbers"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    tables = list(read_tables(path, block_bytes=block_bytes))
    found = [row for t in tables for row in t.integers(range(t.starts.shape[1])).tolist()]
    assert found == rows
    assert [int(line) for t in tables for line in t.lines] == lines
    for column in range(len(rows[0]) if rows else 0):
        parts = [t.integers([column])[:, 0] for t in tables]
        assert np.concatenate(parts).tolist() == [row[column] for row in rows]
        names = [name for t in tables for name in t.texts(column).tolist()]
        assert names == [str(row[column]).encode() for row in rows]


@hypothesis.given(st.lists(st.tuples(st.integers(0, 99), st.floats(width=32)), min_size=1))
def test_floats_equal_those_of_python(tmp_path: Path, rows: list[tuple[int, float]]) -> None:
    text = "".join(f"{i} {value!r}\n" for i, value in rows)
    table = split_table(TextBlock(tmp_path, text.encode(), 1), 2)
    np.testing.assert_array_equal(
        table.floats([1])[:, 0], np.array([v for _, v in rows], np.float32)
    )
    assert table.integers([0])[:, 0].tolist() == [i for i, _ in rows]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n3 4 5\n6\n", "line 2 has 3 fields where 2 are due"),
        ("# one\n1 2\n\n3\n", "line 4 has 1 fields where 2 are due"),
        ("1 2\n3 x4\n", "line 2, column 2 holds 'x4' where a whole number"),
        ("1 2\n3 4.0\n", "line 2, column 2 holds '4.0' where a whole number"),
        ("1 2\n1-2 4\n", "line 2, column 1 holds '1-2' where a whole number"),
        ("9223372036854775808 2\n", "line 1, column 1 holds '9223372036854775808'"),
        ("-99999999999999999999 2\n", "line 1, column 1 holds '-99999999999999999999'"),
        ("1 2\n\x00 4\n", "line 2 has 1 fields"),
        ("1 2\n3 \xff\n", "line 2, column 2 holds"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        [table.integers([0, 1]) for table in read_tables(path, 2)]
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("field", ["1.5.2", "0x1", "1e", "one", "--1", "1_0", "nan(1)x"])
def test_a_faulty_number_is_named(tmp_path: Path, field: str) -> None:
    table = split_table(TextBlock(tmp_path / "f", f"1 2\n3 {field}\n".encode(), 7))
    with pytest.raises(InputError, match=r"line 8, column 2 holds .* where a number is due"):
        table.floats([0, 1])


def test_a_long_word_is_refused(tmp_path: Path) -> None:
    table = split_table(TextBlock(tmp_path / "f", b"a b\nc " + b"d" * 300 + b"\n", 1))
    with pytest.raises(InputError, match="line 2, column 2 is 300 bytes long"):
        table.texts(1)


def test_a_byte_order_mark_is_no_field(tmp_path: Path) -> None:
    path = tmp_path / "bom.csv"
    path.write_bytes(b"\xef\xbb\xbf1,2\n")
    assert first_fields(path) == ([b"1", b"2"], 1)


def test_a_file_without_a_last_line_feed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("5\n6\n7")
    assert read_column(path).tolist() == [5, 6, 7]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("")
    assert read_column(path).tolist() == []
    assert list(read_blocks(path)) == []


@pytest.mark.parametrize("keep", [0.3, 0.97])
def test_a_truncated_gzip_file_is_named(tmp_path: Path, keep: float) -> None:
    whole = gzip.compress("".join(f"{i} {i * i}\n" for i in range(5000)).encode())
    path = tmp_path / "edges.txt.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(InputError, match=r"edges.txt.gz: the compressed file is truncated or dam"):
        list(read_tables(path))


def test_a_flipped_byte_in_a_gzip_file_is_found(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress("".join(f"{i} {i * i}\n" for i in range(5000)).encode()))
    whole[len(whole) // 2] ^= 4
    path = tmp_path / "edges.txt.gz"
    path.write_bytes(whole)
    with pytest.raises(InputError):
        list(read_tables(path))
