"""What tables of nodes hold: labels, splits and features, in the order of the nodes."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import RankGroup
from hpcgnn.convert.nodes import labelled, split_from_masks
from hpcgnn.convert.pieces import PLACE_BITS, Piece, divide, locate, own_rows, share
from hpcgnn.convert.read.features import array_features, finite_rows
from hpcgnn.convert.read.names import NameTable
from hpcgnn.convert.read.npy import open_npy
from hpcgnn.convert.read.tables import Kind, Table, classes_of
from hpcgnn.convert.source import (
    ConvertOptions,
    Features,
    FeatureStream,
    Labels,
    Nodes,
)
from hpcgnn.convert.tables.ids import Ids, Index, Numbers, has_names, id_rows, place_ids
from hpcgnn.convert.tables.nodes import NodeTable, files_of
from hpcgnn.errors import InputError
from hpcgnn.storage import Split, first_true
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
    known = nodes_of(index)
    _check_rows(nodes, known)
    ranks = options.ranks
    order = _Order.of(tables, index, ranks)
    fields: dict[str, Any] = {}
    if matrices:
        matrix = ranks.from_first(lambda: open_npy(matrices[0]))
        fields["features"] = array_features(matrix, options)
    elif any(table.features for table in tables):
        fields["features"] = _features(tables, order, options)
    if any(table.label >= 0 for table in tables):
        fields["labels"] = _labels(tables, order, options.take("label_separator"))
    if any(table.graph >= 0 for table in tables):
        fields["graph"] = _graphs(tables, order)
    fields["splits"] = _splits(tables, order)
    return replace(known, **fields)


def _check_rows(nodes: Sequence[NodeTable | Path], known: Nodes) -> None:
    """Raise `InputError` for rows without ids where these are not the numbers of the nodes."""
    bare = [each for each in nodes if isinstance(each, Path) or each.id < 0]
    tables = [each for each in bare if isinstance(each, NodeTable)]
    mixed = tables and any(isinstance(each, NodeTable) and each.id >= 0 for each in nodes)
    if bare and (mixed or known.names is not None or known.original_id is not None):
        (path,) = files_of(tables[:1] or bare[:1])
        raise InputError(
            f"{path}: its rows are nodes 0, 1, ..., but nodes have ids of their own; give it a "
            "column of ids"
        )


def nodes_of(index: Index | None) -> Nodes:
    """Return what ids tell of the nodes."""
    if index is None:
        return Nodes()
    if has_names(index):
        assert not isinstance(index, Numbers)
        return Nodes(names=index.blocks)
    assert not isinstance(index, NameTable)
    return Nodes(original_id=index.original)


def count_rows(known: Nodes, tables: Sequence[NodeTable | Path], ranks: RankGroup) -> int:
    """Return the number of rows of tables, of which `known` has been read; for all ranks."""
    for array in known.arrays().values():
        return sum(ranks.gather(len(array)))
    for path in (each for each in tables if isinstance(each, Path)):
        return ranks.from_first(partial(open_npy, path)).shape[0]
    given = [each for each in tables if isinstance(each, NodeTable)]
    return ranks.from_first(lambda: sum(t.num_rows for each in given for t in each.whole()))


@dataclass(frozen=True, slots=True)
class _Order:
    """Where the rows of the tables go that this rank has read: `places` among `num_nodes`.

    None stands for as they are, where one rank reads. `pieces` are those of all ranks, and
    `num_rows` the rows of each that this rank reads.
    """

    ranks: RankGroup
    pieces: Sequence[Piece]
    num_rows: Sequence[int]
    places: GlobalIndices | None
    num_nodes: int

    @classmethod
    def of(cls, tables: Sequence[NodeTable], index: Index | None, ranks: RankGroup) -> "_Order":
        """Find the places of all rows; raises `InputError` for an id that occurs twice."""
        pieces = divide([table.file for table in tables], ranks)
        if index is None or not any(table.id >= 0 for table in tables):
            if ranks.moves_rows:
                return cls._in_file_order(tables, pieces, ranks)
            return cls(ranks, pieces, (), None, 0)
        columns = [Ids(table.id, index, "node") for table in tables]
        places, orders = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        counts = dict.fromkeys((piece.number for piece in share(ranks, pieces)), 0)
        for rows, (these,) in place_ids(id_rows(ranks, pieces, columns), [(c,) for c in columns]):
            places.append(these)
            orders.append(rows.order + np.arange(len(these)))
            if len(these):
                counts[rows.order >> PLACE_BITS] += len(these)
        made = cls(ranks, pieces, list(counts.values()), np.concatenate(places), len(index))
        made._check_unique(tables, np.concatenate(orders))
        in_order = len(made) == len(index) and bool((np.diff(np.concatenate(places)) == 1).all())
        return replace(made, places=None) if in_order and not ranks.moves_rows else made

    @classmethod
    def _in_file_order(
        cls, tables: Sequence[NodeTable], pieces: Sequence[Piece], ranks: RankGroup
    ) -> "_Order":
        """Give rows their numbers, for which all ranks count theirs."""
        counts: dict[int, int] = {}
        with ranks.agree():
            for piece in share(ranks, pieces):
                column = tables[piece.place].any_column
                counts[piece.number] = sum(
                    table.num_rows for table in piece.file.blocks({column: "text"})
                )
        rows = np.zeros(len(pieces) + 1, np.int64)
        for each in ranks.gather(counts):
            for number, count in each.items():
                rows[number + 1] = count
        first = np.cumsum(rows)
        own = [np.arange(count) + first[number] for number, count in counts.items()]
        places = np.concatenate([np.zeros(0, np.int64), *own])
        return cls(ranks, pieces, list(counts.values()), places, int(first[-1]))

    def __len__(self) -> int:
        return sum(self.num_rows)

    @property
    def own(self) -> range:
        """The nodes whose data this rank keeps."""
        return self.ranks.range_of(self.num_nodes)

    def put(self, values: Array, none: float) -> Array:
        """Return the values of the nodes kept here, `none` for those without a row; for all ranks.

        `values` are of the rows that this rank has read.
        """
        if self.places is None:
            return values
        places, values = self._sent(self.places, values)
        found = np.full((len(self.own), *values.shape[1:]), none, values.dtype)
        found[places - self.own.start] = values
        return found

    def _sent(self, places: GlobalIndices, values: Array) -> tuple[Array, ...]:
        return self.ranks.exchange(self.ranks.keepers(places, self.num_nodes), places, values)

    def put_rows(self, blocks: Iterable[Array], width: int) -> Array:
        """Return matrix rows likewise, in a scratch file; zeros for nodes without a row.

        For all ranks, also those without blocks.
        """
        with tempfile.TemporaryFile(prefix="hpcgnn-features-") as scratch:
            shape = (len(self.own), width)
            scratch.truncate(max(1, 4 * shape[0] * shape[1]))
            whole = np.memmap(scratch, np.float32, "r+", shape=shape) if shape[0] else None
        first = 0
        for block in self.ranks.rounds(blocks, lambda: np.zeros((0, width), np.float32)):
            assert self.places is not None
            places, rows = self._sent(self.places[first : first + len(block)], block)
            first += len(block)
            if whole is not None:
                whole[places - self.own.start] = rows
        return np.zeros(shape, np.float32) if whole is None else whole

    def _check_unique(self, tables: Sequence[NodeTable], orders: GlobalIndices) -> None:
        assert self.places is not None
        places, orders = self._sent(self.places, orders)
        with self.ranks.agree():
            ordered = np.lexsort((orders, places))
            twice = first_true(places[ordered[1:]] == places[ordered[:-1]])
            if twice is not None:
                first, second = (int(orders[i]) for i in ordered[twice : twice + 2])
                raise InputError(
                    f"{self.locate(tables, second)}: the id occurs twice, first in "
                    f"{self.locate(tables, first).rpartition(': ')[2]}; remove one of them"
                )

    def locate(self, tables: Sequence[NodeTable], order: int) -> str:
        """Return the place of a row by its order."""
        return locate(self.pieces, lambda place: tables[place].any_column, order)

    def column(
        self,
        tables: Sequence[NodeTable],
        column: Callable[[NodeTable], int],
        kind: Kind,
        read: Callable[[Table, int], Array],
    ) -> list[Array]:
        """Return a column of the rows that this rank reads, in parts; for all ranks.

        Where a table lacks it (`column` below 0), its values are 0.
        """
        found = []
        with self.ranks.agree():
            for piece in share(self.ranks, self.pieces):
                table = tables[piece.place]
                place = column(table)
                for block in piece.file.blocks({max(place, 0): kind if place >= 0 else "text"}):
                    # A byte, since what is there is a role or a mask.
                    nothing = np.zeros(block.num_rows, np.uint8)
                    found.append(nothing if place < 0 else read(block, place))
        return found


def _graphs(tables: Sequence[NodeTable], order: _Order) -> GlobalIndices:
    for table in tables:
        if table.graph < 0:
            raise InputError(f"{table.file.path}: tells no graph, other tables of nodes do; add it")
    numbers = order.put(np.concatenate([table.integers(table.graph) for table in tables]), -1)
    # Nodes without a row are told by nothing.
    if (node := first_true(numbers < 0)) is not None:
        raise InputError(
            f"{tables[0].file.path}: node {node} is of graph {numbers[node]}; number graphs "
            "from 0, and give each node a row"
        )
    return numbers


def _labels(tables: Sequence[NodeTable], order: _Order, separator: str | None) -> Labels:
    ranks = order.ranks
    table = next(each for each in tables if each.label >= 0)
    path, column = table.file.path, table.label
    if not all(each.label >= 0 for each in tables):
        raise InputError(f"{path}: has labels, other tables of nodes have none; give them to all")
    where = f"{path}: {table.file.describe(column)}"
    if separator is None and all(each.file.numeric[each.label] for each in tables):
        parts = order.column(tables, lambda each: each.label, "number", Table.numbers)
        values = order.put(np.concatenate([np.zeros(0), *parts]), np.nan)
        with ranks.agree():
            found = labelled(values, where, first=order.own.start)
        return replace(found, num_classes=max(ranks.gather(found.num_classes)))
    chunks = order.column(tables, lambda each: each.label, "text", Table.texts)
    with ranks.agree():
        mine, codes = _classes(chunks, where)
    names = sorted(set[str]().union(*ranks.gather(mine)), key=str.encode)
    codes = _renumbered(mine, names)[codes]
    if separator is not None:
        return _several_labels(names, codes, separator, where, order)
    if names[:1] == [""]:
        names, codes = names[1:], codes - 1
    return Labels(order.put(codes.astype(np.int32), -1), len(names), tuple(names))


def _several_labels(
    names: Sequence[str], codes: NDArray[np.int64], separator: str, where: str, order: _Order
) -> Labels:
    """Return the labels of nodes whose one name, of `names`, holds all that a node has."""
    lists = [[part.strip() for part in name.split(separator)] for name in names]
    classes = sorted({part for parts in lists for part in parts} - {""}, key=str.encode)
    with order.ranks.agree():
        if not classes:
            raise InputError(
                f"{where}: holds no label; name another column with --node-columns label=NAME"
            )
    places = {name: place for place, name in enumerate(classes)}
    has = np.zeros((len(names), len(classes)), np.uint8)
    for row, parts in zip(has, lists, strict=True):
        row[[places[part] for part in parts if part]] = 1
    return Labels(order.put(has[codes], 0), len(classes), tuple(classes))


def _renumbered(own: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each of a rank's `own` names among those of all."""
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[name] for name in own], np.int64)


def _classes(chunks: Sequence[Any], where: str) -> tuple[list[str], NDArray[np.int64]]:
    try:
        return classes_of(chunks)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _splits(tables: Sequence[NodeTable], order: _Order) -> dict[str, NDArray[np.uint8]]:
    found = {}
    for name in dict.fromkeys(name for table in tables for name in table.splits):
        parts = order.column(tables, partial(_place_in, "splits", name), "text", _roles)
        values = np.concatenate([np.zeros(0, np.uint8), *parts])
        found[name] = order.put(values, Split.NONE)
    if masks := {part: i for table in tables for part, i in table.masks.items()}:
        columns = {}
        for name in masks:
            parts = order.column(tables, partial(_place_in, "masks", name), "text", _mask)
            columns[name] = order.put(np.concatenate([np.zeros(0, np.uint8), *parts]), 0)
        with order.ranks.agree():
            where = str(tables[0].file.path)
            found[""] = split_from_masks(columns, where, order.own.start)
    return found


def _place_in(kind: str, name: str, table: NodeTable) -> int:
    return int(getattr(table, kind).get(name, -1))


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


def _roles(block: Table, column: int) -> NDArray[np.uint8]:
    names, codes = _classes([block.texts(column)], block.locate(0))
    roles = np.array([_SPLIT_WORDS.get(name.strip().lower(), -1) for name in names], np.int64)
    values = roles[codes]
    if (row := first_true(values < 0)) is not None:
        raise InputError(
            f"{block.locate(row)}, column {column + 1} holds {names[codes[row]]!r} where a "
            "split is due; give train, valid, test or none"
        )
    return values.astype(np.uint8)


def _features(tables: Sequence[NodeTable], order: _Order, options: ConvertOptions) -> Features:
    """Return the features of the rows, put in order through a scratch file where need be."""
    ranks = order.ranks
    widths = ranks.from_first(lambda: [table.file.width(table.features) for table in tables])
    for table, width in zip(tables, widths, strict=True):
        if width != widths[0]:
            raise InputError(
                f"{table.file.path}: has {width} columns of features where {tables[0].file.path} "
                f"has {widths[0]}; give all nodes the same"
            )
    dtype = np.dtype(np.float32)

    def kinds(place: int) -> dict[int, Kind]:
        return tables[place].file.feature_kinds(tables[place].features)

    def rows() -> FeatureStream:
        for block, place, _ in own_rows(ranks, order.pieces, kinds):
            features = tables[place].file.features(block, tables[place].features)
            # Where rows change ranks or places, none could be named later on.
            yield finite_rows(features, np.dtype(options.dtype or dtype), block.locate)

    if order.places is None:
        return Features(widths[0], dtype, rows, lambda _: str(tables[0].file.path))
    whole = order.put_rows(rows(), widths[0])

    def ordered() -> FeatureStream:
        step = max(1, _SCRATCH_BYTES // (4 * widths[0]))
        for start in range(0, len(whole), step):
            yield np.array(whole[start : start + step])

    where = str(tables[0].file.path)
    return Features(widths[0], dtype, ordered, lambda _: where, order.own.start)
