"""Footers of Parquet files: as Arrow reads them; damaged ones give an error of one line."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcgnn.convert import convert
from hpcgnn.convert.read.parquet_footer import column_chunks
from hpcgnn.errors import InputError


def write(path: Path, rows: int = 7) -> None:
    columns = {"src": range(rows), "dst": range(rows), "x": [[1.5, 2.0]] * rows, "t": "a" * rows}
    pq.write_table(
        pa.table({name: list(of) for name, of in columns.items()}), path, row_group_size=3
    )


def test_equals_what_arrow_says(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    write(path)
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    expected = [
        (each.path_in_schema, group.num_rows, each.num_values, each.total_uncompressed_size)
        for group in groups
        for each in (group.column(number) for number in range(group.num_columns))
    ]
    assert len(expected) == 3 * 4
    assert [tuple(each) for each in column_chunks(path)] == expected


def test_damage_anywhere_in_the_footer_never_ends_the_process(tmp_path: Path) -> None:
    path, rng = tmp_path / "e.parquet", np.random.default_rng(3)
    write(path, rows=3)
    whole = path.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    refused: list[str] = []
    for place in range(len(whole) - 8 - length, len(whole), 3):
        content = bytearray(whole)
        content[place] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        try:
            convert(path, tmp_path / "out.h5", format_name="edge-list")
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in each for each in refused)


@pytest.mark.parametrize("length", [0, 5, 2**31])
def test_a_footer_of_no_length(tmp_path: Path, length: int) -> None:
    path = tmp_path / "e.parquet"
    write(path)
    content = path.read_bytes()
    path.write_bytes(content[:-8] + length.to_bytes(4, "little") + content[-4:])
    with pytest.raises(ValueError, match="footer"):
        list(column_chunks(path))


def test_a_number_without_end(tmp_path: Path) -> None:
    path, length = tmp_path / "e.parquet", 1 << 20
    path.write_bytes(b"PAR1\x15" + b"\xff" * (length - 1) + length.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="more than 64 bits"):
        list(column_chunks(path))
