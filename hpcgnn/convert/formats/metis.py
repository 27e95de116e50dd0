"""METIS graph files: line i after the header lists the neighbours of node i, counted from 1.

The header is `nodes edges [fmt [ncon]]`. The digits of fmt say whether a line begins with a vertex
size, continues with ncon vertex weights, and has a weight after each neighbour.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn.convert.read.files import TextBlock, read_blocks
from hpcgnn.convert.read.tables import TableFile, integer_lines
from hpcgnn.convert.send_edges import SymmetryCheck
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, EdgeStream, GraphSource
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeColumns, first_true


@dataclass(frozen=True, slots=True)
class Header:
    """Contents of the header line; the first `leading` fields of other lines are no neighbours."""

    line: int
    num_nodes: int
    num_edges: int
    leading: int
    weighted: bool


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a METIS graph; raises `InputError`."""
    header = _read_header(path)
    return GraphSource(
        path=path,
        edges=partial(_stream, path, header),
        inputs=(path,),
        num_nodes=header.num_nodes,
        counted=True,
        columns={"": EdgeColumns(header.weighted)},
        # Both directions are in the file: adding them again would double summed weights.
        undirected=options.duplicates == "first",
        ignored=("vertex sizes and weights",) if header.leading else (),
    )


def _read_header(path: Path) -> Header:
    file = TableFile.open(path, frozenset(), header=True, separator=" ")
    fields, line = file.names, file.header_line
    decimal = all(field.isdecimal() and len(field) < 40 for field in fields)
    if not 2 <= len(fields) <= 4 or not decimal:
        raise InputError(f"{path}: line {line} must hold 'nodes edges [fmt [ncon]]'; correct it")
    flags = fields[2].rjust(3, "0") if len(fields) > 2 else "000"
    if len(flags) != 3 or flags.strip("01"):
        raise InputError(
            f"{path}: line {line}: fmt is {fields[2]!r}; give up to three digits 0 or 1"
        )
    constraints = int(fields[3]) if len(fields) > 3 else 1
    leading = (flags[0] == "1") + (constraints if flags[1] == "1" else 0)
    if int(fields[0]) == 0:
        raise InputError(f"{path}: line {line}: the graph has no nodes; check the file")
    return Header(line, int(fields[0]), int(fields[1]), leading, flags[2] == "1")


def _stream(path: Path, header: Header) -> EdgeStream:
    node, entries = 0, 0
    symmetry = SymmetryCheck()
    for block in read_blocks(path):
        chunk, num_nodes = _lists(block, header, node)
        node += num_nodes
        entries += len(chunk.src)
        edge = first_true((chunk.src < 0) | (chunk.src >= header.num_nodes))
        if edge is not None:
            raise InputError(
                f"{chunk.locate(edge)}: neighbour {chunk.src[edge] + 1} is outside "
                f"1..{header.num_nodes}; correct or remove it"
            )
        symmetry.update(chunk.src, chunk.dst, chunk.weights)
        yield chunk
    if node < header.num_nodes or entries != 2 * header.num_edges:
        raise InputError(
            f"{path}: lists {entries} neighbours of {node} nodes where line {header.line} promises "
            f"{2 * header.num_edges} (each edge twice) of {header.num_nodes}; "
            "the file is truncated or its header is wrong"
        )
    if not symmetry.symmetric:
        raise InputError(
            f"{path}: an edge is not listed at both of its nodes with the same weight; complete "
            "the lists, or convert the graph as an edge list"
        )


def _lists(block: TextBlock, header: Header, first_node: int) -> tuple[EdgeChunk, int]:
    """Return the edges of a block whose first list is `first_node`'s, and the number of lists."""
    texts = block.data.split(b"\n")[:-1]
    lines = block.first_line + np.arange(len(texts))
    is_list = (lines > header.line) & [text.lstrip()[:1] not in (b"%", b"#") for text in texts]
    list_texts = [text if keep else b"" for text, keep in zip(texts, is_list, strict=True)]
    values, widths = integer_lines(list_texts, lambda row: f"{block.path}: line {lines[row]}")
    nodes = first_node + np.cumsum(is_list) - 1
    lists = widths - header.leading
    wrong = (lists < 0) | (header.weighted & (lists % 2 != 0))
    if (row := first_true(is_list & (nodes < header.num_nodes) & wrong)) is not None:
        expected = f"{header.leading} leading fields and then " if header.leading else ""
        expected += "neighbours each with a weight" if header.weighted else "neighbours"
        raise InputError(
            f"{block.path}: line {lines[row]} has {widths[row]} fields where {expected} are "
            "expected; correct the line or the fmt of the header"
        )
    surplus = lines[(nodes >= header.num_nodes) & (widths > 0)]
    if len(surplus):
        raise InputError(
            f"{block.path}: line {surplus[0]} comes after the lists of all {header.num_nodes} "
            "nodes; remove it or correct the header"
        )
    lists_of, lines_of = np.repeat(nodes, widths), np.repeat(lines, widths)
    before = np.cumsum(widths) - widths
    field = np.arange(len(values)) - np.repeat(before, widths) - header.leading
    neighbours = np.flatnonzero((field >= 0) & (field % (1 + header.weighted) == 0))
    chunk = EdgeChunk(
        values[neighbours] - 1,
        lists_of[neighbours],
        lambda edge: f"{block.path}: line {lines_of[neighbours[edge]]}",
        values[neighbours + 1] if header.weighted else None,
    )
    return chunk, min(int(is_list.sum()), header.num_nodes - first_node)
