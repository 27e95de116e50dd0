"""What tables of nodes hold: labels, splits and features, in the order of the nodes."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import labelled, split_from_masks
from hpcgnn.convert.read.features import array_features
from hpcgnn.convert.read.npy import open_npy
from hpcgnn.convert.read.tables import Table, classes_of
from hpcgnn.convert.source import (
    ConvertOptions,
    Features,
    FeatureStream,
    Labels,
    Nodes,
    first_fault,
)
from hpcgnn.convert.tables.ids import Ids, Index, Numbers, place_ids
from hpcgnn.convert.tables.nodes import NodeTable
from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array, GlobalIndices

_SPLIT_WORDS = {
    "train": Split.TRAIN,
    "training": Split.TRAIN,
    "valid": Split.VALID,
    "val": Split.VALID,
    "validation": Split.VALID,
    "test": Split.TEST,
    "none": Split.NONE,
    "": Split.NONE,
    **{str(int(part)): part for part in Split},
}
_SCRATCH_BYTES = 1 << 26


def read_nodes(
    nodes: Sequence[NodeTable | Path], index: Index | None, options: ConvertOptions
) -> Nodes:
    """Return what the tables say of the nodes of one type, in the order of `index`."""
    tables = [each for each in nodes if isinstance(each, NodeTable)]
    matrices = [each for each in nodes if isinstance(each, Path)]
    if len(matrices) > 1 or (matrices and any(table.features for table in tables)):
        raise InputError(f"--nodes {matrices[0]}: features are given twice; keep one of them")
    order = _order(tables, index)
    fields: dict[str, Any] = {}
    if matrices:
        fields["features"] = array_features(open_npy(matrices[0]), options)
    elif any(table.features for table in tables):
        fields["features"] = _features(tables, order)
    if any(table.label >= 0 for table in tables):
        fields["labels"] = _labels(tables, order)
    if any(table.graph >= 0 for table in tables):
        fields["graph"] = _graphs(tables, order)
    fields["splits"] = _splits(tables, order)
    if isinstance(index, Numbers):
        fields["original_id"] = index.original
    elif index is not None:
        fields["names"] = index.blocks
    return Nodes(**fields)


def count_rows(known: Nodes, tables: Sequence[NodeTable | Path]) -> int:
    """Return the number of rows of tables, of which `known` has been read."""
    for array in known.arrays().values():
        return len(array)
    for each in tables:
        if isinstance(each, Path):
            return open_npy(each).shape[0]
    return sum(t.num_rows for each in tables if isinstance(each, NodeTable) for t in each.whole())


@dataclass(frozen=True, slots=True)
class _Order:
    """Where the rows of the tables go: `places` [rows] among `num_nodes`, None for as they are."""

    places: GlobalIndices | None
    num_nodes: int

    def put(self, values: Array, none: float) -> Array:
        """Return the values of all nodes, `none` for those without a row."""
        if self.places is None:
            return values
        found = np.full((self.num_nodes, *values.shape[1:]), none, values.dtype)
        found[self.places] = values
        return found


def _order(tables: Sequence[NodeTable], index: Index | None) -> _Order:
    """Find the places of all rows; raises `InputError` for an id that occurs twice."""
    if index is None or not any(table.id >= 0 for table in tables):
        return _Order(None, 0)
    columns = [(Ids(table.id, index, "node"),) for table in tables]
    blocks = (
        (block, number)
        for number, (table, (ids,)) in enumerate(zip(tables, columns, strict=True))
        for block in table.file.blocks({ids.column: ids.kind})
    )
    parts = [places for _, _, (places,) in place_ids(blocks, columns)]
    places = np.concatenate([np.zeros(0, np.int64), *parts])
    ordered = np.argsort(places, kind="stable")
    twice = first_fault(places[ordered[1:]] == places[ordered[:-1]])
    if twice is not None:
        first, second = sorted(int(i) for i in ordered[twice : twice + 2])
        raise InputError(
            f"{_place_of(tables, second)}: the id occurs twice, first in "
            f"{_place_of(tables, first).rpartition(': ')[2]}; remove one of them"
        )
    if len(places) == len(index) and (np.diff(places) == 1).all():
        return _Order(None, len(index))
    return _Order(places, len(index))


def _place_of(tables: Sequence[NodeTable], row: int) -> str:
    for table in tables:
        for block in table.file.blocks({table.id: "text"}):
            if row < block.num_rows:
                return block.locate(row)
            row -= block.num_rows
    return str(tables[0].file.path)


def _graphs(tables: Sequence[NodeTable], order: _Order) -> GlobalIndices:
    for table in tables:
        if table.graph < 0:
            raise InputError(f"{table.file.path}: tells no graph, other tables of nodes do; add it")
    numbers = order.put(np.concatenate([table.integers(table.graph) for table in tables]), -1)
    # Nodes without a row are told by nothing.
    if (node := first_fault(numbers < 0)) is not None:
        raise InputError(
            f"{tables[0].file.path}: node {node} is of graph {numbers[node]}; number graphs "
            "from 0, and give each node a row"
        )
    return numbers


def _labels(tables: Sequence[NodeTable], order: _Order) -> Labels:
    table = next(each for each in tables if each.label >= 0)
    path, column = table.file.path, table.label
    if not all(each.label >= 0 for each in tables):
        raise InputError(f"{path}: has labels, other tables of nodes have none; give them to all")
    where = f"{path}: {table.file.describe(column)}"
    if all(each.file.numeric[each.label] for each in tables):
        parts = [
            block.numbers(each.label)
            for each in tables
            for block in each.file.blocks({each.label: "number"})
        ]
        return labelled(order.put(np.concatenate([np.zeros(0), *parts]), np.nan), where)
    chunks = [
        block.texts(each.label)
        for each in tables
        for block in each.file.blocks({each.label: "text"})
    ]
    names, codes = _classes(chunks, where)
    if names[:1] == [""]:
        names, codes = names[1:], codes - 1
    return Labels(order.put(codes.astype(np.int32), -1), len(names), tuple(names))


def _classes(chunks: Sequence[Any], where: str) -> tuple[list[str], NDArray[np.int64]]:
    try:
        return classes_of(chunks)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _splits(tables: Sequence[NodeTable], order: _Order) -> dict[str, NDArray[np.uint8]]:
    found = {}
    for name in dict.fromkeys(name for table in tables for name in table.splits):
        parts = [_roles_of(table, table.splits.get(name, -1)) for table in tables]
        found[name] = order.put(np.concatenate(parts), Split.NONE)
    if masks := {part: i for table in tables for part, i in table.masks.items()}:
        columns = {}
        for part in masks:
            values = [
                _mask(block, table.masks[part])
                for table in tables
                if part in table.masks
                for block in table.file.blocks({table.masks[part]: "text"})
            ]
            columns[part] = order.put(np.concatenate([np.zeros(0, np.uint8), *values]), 0)
        found[""] = split_from_masks(columns, str(tables[0].file.path))
    return found


def _mask(block: Table, column: int) -> NDArray[np.uint8]:
    words = [text.lower() for text in block.texts(column).to_pylist()]
    values = {b"1": 1, b"true": 1, b"1.0": 1, b"0": 0, b"false": 0, b"0.0": 0, b"": 0}
    for row, word in enumerate(words):
        if word not in values:
            raise InputError(
                f"{block.locate(row)}, column {column + 1} holds "
                f"{word.decode('utf-8', 'replace')!r} where 0 or 1 is due; correct it"
            )
    return np.array([values[word] for word in words], np.uint8)


def _roles_of(table: NodeTable, column: int) -> NDArray[np.uint8]:
    parts = [np.zeros(0, np.uint8)]
    if column < 0:
        return np.zeros(sum(block.num_rows for block in table.whole()), np.uint8)
    for block in table.file.blocks({column: "text"}):
        names, codes = _classes([block.texts(column)], block.locate(0))
        roles = np.array([_SPLIT_WORDS.get(name.strip().lower(), -1) for name in names], np.int64)
        values = roles[codes]
        if (row := first_fault(values < 0)) is not None:
            raise InputError(
                f"{block.locate(row)}, column {column + 1} holds {names[codes[row]]!r} where a "
                "split is due; give train, valid, test or none"
            )
        parts.append(values.astype(np.uint8))
    return np.concatenate(parts)


def _features(tables: Sequence[NodeTable], order: _Order) -> Features:
    """Return the features of the rows, put in order through a scratch file where need be."""
    widths = [table.file.width(table.features) for table in tables]
    for table, width in zip(tables, widths, strict=True):
        if width != widths[0]:
            raise InputError(
                f"{table.file.path}: has {width} columns of features where {tables[0].file.path} "
                f"has {widths[0]}; give all nodes the same"
            )

    def rows() -> FeatureStream:
        for table in tables:
            for block in table.file.blocks(table.file.feature_kinds(table.features)):
                yield table.file.features(block, table.features)

    def ordered() -> FeatureStream:
        if order.places is None:
            yield from rows()
            return
        with tempfile.TemporaryFile(prefix="hpcgnn-features-") as scratch:
            shape = (order.num_nodes, widths[0])
            scratch.truncate(4 * shape[0] * shape[1])
            whole = np.memmap(scratch, np.float32, "r+", shape=shape)
            first = 0
            for block in rows():
                whole[order.places[first : first + len(block)]] = block
                first += len(block)
            step = max(1, _SCRATCH_BYTES // (4 * widths[0]))
            for start in range(0, shape[0], step):
                yield np.array(whole[start : start + step])

    def locate(row: int) -> str:
        given = row
        if order.places is not None:
            # Rows that no table gives are zeros, which nothing complains of.
            given = int(np.flatnonzero(order.places == row)[0])
        return _place_of([replace(table, id=table.features[0]) for table in tables], given)

    return Features(widths[0], np.dtype(np.float32), ordered, locate)
