"""Matrix Market files, plain or gzipped: entry (i, j) is the edge i -> j.

Square coordinate matrices with pattern, integer or real values are read, general or symmetric.
Ids count from 1 in the file and from 0 in the store.
"""

from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn.convert.read.files import MATRIX_MARKET, read_blocks
from hpcgnn.convert.read.text import Table, first_fields, read_tables
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, EdgeStream, GraphSource, first_fault
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeColumns
from hpcgnn.typing import Array


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a Matrix Market file; raises `InputError`."""
    del options  # the file says all there is to say
    weighted, symmetric = _read_banner(path)
    num_nodes, num_entries, size_line = _read_size(path)
    return GraphSource(
        path=path,
        edges=partial(_stream, path, num_nodes, num_entries, size_line, weighted),
        inputs=(path,),
        num_nodes=num_nodes,
        columns={"": EdgeColumns(weighted)},
        undirected=symmetric,
    )


def _read_banner(path: Path) -> tuple[bool, bool]:
    """Return whether entries have values and whether the matrix is symmetric."""
    first = next(read_blocks(path, 1 << 16), None)
    banner = "" if first is None else first.data.split(b"\n", 1)[0].decode("latin1").lower()
    words = banner.split()
    if len(words) != 5 or words[0] != MATRIX_MARKET or words[1] != "matrix":
        raise InputError(
            f"{path}: line 1 is no Matrix Market banner; "
            "it reads '%%MatrixMarket matrix coordinate real general' or the like"
        )
    for word, admitted, remedy in (
        (words[2], ("coordinate",), "save it as a sparse matrix"),
        (words[3], ("pattern", "integer", "real"), "save it with real values"),
        (words[4], ("general", "symmetric"), "save it as a general matrix"),
    ):
        if word not in admitted:
            raise InputError(
                f"{path}: line 1: {word!r} matrices are not read, only {' or '.join(admitted)}; "
                f"{remedy}"
            )
    return words[3] != "pattern", words[4] == "symmetric"


def _read_size(path: Path) -> tuple[int, int, int]:
    """Return the numbers of nodes and entries, and the line they stand in."""
    fields, line = first_fields(path)
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise InputError(f"{path}: line {line} must hold rows, columns and entries; correct it")
    rows, columns, entries = (int(field) for field in fields)
    if rows != columns or rows == 0:
        raise InputError(
            f"{path}: line {line}: the matrix is {rows} by {columns}; an adjacency is square and "
            "not empty"
        )
    return rows, entries, line


def _stream(
    path: Path, num_nodes: int, num_entries: int, size_line: int, weighted: bool
) -> EdgeStream:
    found = 0
    for table in read_tables(path, 3 if weighted else 2, skip_line=size_line):
        ids = table.integers([0, 1])
        _check_range(table, ids, num_nodes)
        weights = table.floats([2], np.float64)[:, 0] if weighted else None
        found += len(ids)
        yield EdgeChunk(ids[:, 0] - 1, ids[:, 1] - 1, table.locate, weights)
    if found != num_entries:
        raise InputError(
            f"{path}: holds {found} entries where line {size_line} promises {num_entries}; "
            "the file is truncated or its size line wrong"
        )


def _check_range(table: Table, ids: Array, num_nodes: int) -> None:
    row = first_fault(((ids < 1) | (ids > num_nodes)).any(axis=1))
    if row is not None:
        raise InputError(
            f"{table.locate(row)}: entry ({ids[row, 0]}, {ids[row, 1]}) is outside 1..{num_nodes}; "
            "correct or remove it"
        )
