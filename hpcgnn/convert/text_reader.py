"""Text files as tables of numbers, a block of lines at a time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.convert.files import BLOCK_BYTES, TextBlock, read_blocks
from hpcgnn.convert.text import Table, split_table, tokenise
from hpcgnn.errors import InputError
from hpcgnn.typing import GlobalIndices

__all__ = ["first_fields", "read_column", "read_tables", "without_line"]


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
