"""Matrix Market files, plain or gzipped: entry (i, j), counted from 1, is the edge i -> j."""

from functools import partial
from pathlib import Path

from hpcgnn.convert.read.files import MATRIX_MARKET, read_blocks
from hpcgnn.convert.read.tables import Kind, TableFile
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, EdgeStream, GraphSource
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeColumns, first_true


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a Matrix Market file; raises `InputError`."""
    del options  # no option applies
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
            "it should be like '%%MatrixMarket matrix coordinate real general'"
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
    """Return the numbers of nodes and entries, and the line that gives them."""
    file = TableFile.open(path, frozenset(), header=True, separator=" ")
    fields, line = file.names, file.header_line
    if len(fields) != 3 or not all(field.isdecimal() and len(field) < 40 for field in fields):
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
    num_read = 0
    file = TableFile.plain(path, 3 if weighted else 2, " ", size_line)
    columns: dict[int, Kind] = {0: "integer", 1: "integer"}
    if weighted:
        columns[2] = "number"
    for table in file.blocks(columns):
        rows, cols = table.integers(0), table.integers(1)
        entry = first_true((rows < 1) | (rows > num_nodes) | (cols < 1) | (cols > num_nodes))
        if entry is not None:
            raise InputError(
                f"{table.locate(entry)}: entry ({rows[entry]}, {cols[entry]}) is outside "
                f"1..{num_nodes}; correct or remove it"
            )
        num_read += table.num_rows
        weights = table.numbers(2) if weighted else None
        yield EdgeChunk(rows - 1, cols - 1, table.locate, weights)
    if num_read != num_entries:
        raise InputError(
            f"{path}: holds {num_read} entries where line {size_line} promises {num_entries}; "
            "the file is truncated or its size line is wrong"
        )
