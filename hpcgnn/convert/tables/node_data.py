"""Read labels, splits and features from node tables, and bring them into node order."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import RankGroup
from hpcgnn.console import report
from hpcgnn.convert.divide_input import SharedFiles
from hpcgnn.convert.nodes import class_numbers, labelled, split_from_masks
from hpcgnn.convert.read.arrays import (
    Narrowing,
    file_features,
    file_shape,
    scratch_array,
)
from hpcgnn.convert.read.tables import (
    NAMES_OF_CLASSES,
    Kind,
    Table,
    classes_of,
    common_width,
    is_missing,
)
from hpcgnn.convert.source import (
    ConvertOptions,
    Features,
    FeatureStream,
    Labels,
    NodeArrays,
)
from hpcgnn.convert.tables.codes import NO_CLASS, READ_AS_CLASS, mask_of, roles_of
from hpcgnn.convert.tables.ids import Ids, Index, Numbers, id_rows, place_ids
from hpcgnn.convert.tables.nodes import NodeTable, NodeTables, open_nodes
from hpcgnn.errors import InputError, named
from hpcgnn.storage import first_true
from hpcgnn.typing import Array, GlobalIndices

_SCRATCH_BYTES = 1 << 26


def read_nodes(node_tables: NodeTables, index: Index | None, options: ConvertOptions) -> NodeArrays:
    """Return the data of the nodes of one type, in the order of `index`; raises `InputError`."""
    tables = node_tables.tables
    nodes = NodeArrays() if index is None else index.nodes()
    without_ids = [table.file.path for table in tables if table.id < 0]
    mixed = 0 < len(without_ids) < len(tables)
    without_ids += [] if node_tables.matrix is None else [node_tables.matrix]
    if without_ids and (mixed or nodes.names is not None or nodes.original_id is not None):
        raise InputError(
            f"{without_ids[0]}: its rows are nodes 0, 1, ..., but nodes have ids of their own, or "
            "tables list only some of the numbers; list all from 0, or give it a column of ids"
        )
    ranks = options.ranks
    fields: dict[str, Any] = {"splits": {}}
    if (matrix := node_tables.matrix) is not None:
        fields["features"] = file_features(matrix, options)
    for group in _groups(tables):
        group = [_like(group[0], table) for table in group]
        rows = _Rows.of(group, index, ranks)
        if matrix is None and any(table.features for table in group):
            if len(group) < len(tables) and not options.nodes_from_edges:
                rows.check_all()
            fields["features"] = _features(rows, options)
        if any(table.label >= 0 for table in group):
            fields["labels"] = _labels(rows, options.take("label_separator"))
        if any(table.graph >= 0 for table in group):
            fields["graph"] = _graphs(rows)
        fields["splits"] |= _splits(rows)
    return replace(nodes, **fields)


def _groups(tables: Sequence[NodeTable]) -> list[list[NodeTable]]:
    """Group tables by their kinds of data: rows are concatenated in a group, groups joined by ids.

    If two groups share a kind of data, all tables are one group.
    """
    groups: dict[frozenset[str], list[NodeTable]] = {}
    for table in tables:
        groups.setdefault(table.contents, []).append(table)
    overlap = len(frozenset[str]().union(*groups)) < sum(map(len, groups))
    return [list(tables)] if overlap else list(groups.values())


def count_rows(nodes: NodeArrays, node_tables: NodeTables, ranks: RankGroup) -> int:
    """Return the number of rows of tables; `nodes` is what was read from them. Collective."""
    for array in nodes.arrays().values():
        return sum(ranks.gather(len(array)))
    if (matrix := node_tables.matrix) is not None:
        return ranks.from_first(lambda: file_shape(matrix)[0])
    blocks = (t.file.blocks({t.any_column: "text"}) for t in node_tables.tables)
    return ranks.from_first(lambda: sum(b.num_rows for b in chain.from_iterable(blocks)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of `tables` that this rank reads; row i belongs to `nodes[i]` of `num_nodes`.

    `nodes` is None if one rank reads all rows and they are in node order.
    """

    tables: Sequence[NodeTable]
    files: SharedFiles
    nodes: GlobalIndices | None
    num_nodes: int

    @classmethod
    def of(cls, tables: Sequence[NodeTable], index: Index | None, ranks: RankGroup) -> "_Rows":
        """Find the node of each row; raises `InputError` for an id that occurs twice."""
        files = SharedFiles([table.file for table in tables], ranks)
        if index is None or not any(table.id >= 0 for table in tables):
            if ranks.moves_rows:
                return cls._in_file_order(tables, files)
            return cls(tables, files, None, 0)
        columns = [Ids(table.id, index, "node") for table in tables]
        parts, orders = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for block, (part,) in place_ids(id_rows(files, columns), [(ids,) for ids in columns]):
            parts.append(part)
            orders.append(block.order + np.arange(len(part)))
        nodes = np.concatenate(parts)
        rows = cls(tables, files, nodes, len(index))
        rows._check_unique(np.concatenate(orders))
        in_order = len(nodes) == len(index) and bool((np.diff(nodes) == 1).all())
        return replace(rows, nodes=None) if in_order and not ranks.moves_rows else rows

    @classmethod
    def _in_file_order(cls, tables: Sequence[NodeTable], files: SharedFiles) -> "_Rows":
        """Assign numbers to rows in the order of the files; collective."""
        counts = np.zeros(files.num_pieces, np.int64)
        with files.ranks.agree():
            for piece in files.share:
                blocks = piece.file.blocks({tables[piece.file_number].any_column: "text"})
                counts[piece.number] = sum(block.num_rows for block in blocks)
        starts = np.append(0, np.cumsum(files.ranks.sum(counts)))
        numbers = [starts[i] + np.arange(counts[i]) for i in np.flatnonzero(counts)]
        nodes = np.concatenate([np.zeros(0, np.int64), *numbers])
        return cls(tables, files, nodes, int(starts[-1]))

    @property
    def own(self) -> range:
        """The range of nodes whose data this rank keeps."""
        return self.files.ranks.range_of(self.num_nodes)

    def put(self, parts: Sequence[Array], none: float) -> Array:
        """Return the values of this rank's nodes, `none` for nodes without a row; collective.

        `parts`, at least one, are the values of the rows that this rank has read.
        """
        values = np.concatenate(parts)
        if self.nodes is None:
            return values
        nodes, values = self._sent(self.nodes, values)
        result = np.full((len(self.own), *values.shape[1:]), none, values.dtype)
        result[nodes - self.own.start] = values
        return result

    def _sent(self, nodes: GlobalIndices, values: Array) -> tuple[Array, ...]:
        ranks = self.files.ranks
        return ranks.exchange(ranks.keepers(nodes, self.num_nodes), nodes, values)

    def put_features(self, blocks: Iterable[Array], none: Array) -> Array:
        """Return the feature rows of this rank's nodes, in a scratch file; collective.

        `blocks` are rows that this rank has read; `none` is a matrix of their width without rows.
        """
        shape = (len(self.own), none.shape[1])
        with self.files.ranks.agree():
            matrix = scratch_array(shape, none.dtype) if shape[0] else None
        first = 0
        for block in self.files.ranks.rounds(blocks, lambda: none):
            assert self.nodes is not None
            nodes, rows = self._sent(self.nodes[first : first + len(block)], block)
            first += len(block)
            if matrix is not None:
                matrix[nodes - self.own.start] = rows
        return none if matrix is None else matrix

    def _check_unique(self, orders: GlobalIndices) -> None:
        assert self.nodes is not None
        nodes, orders = self._sent(self.nodes, orders)
        with self.files.ranks.agree():
            ordered = np.lexsort((orders, nodes))
            repeated = first_true(nodes[ordered[1:]] == nodes[ordered[:-1]])
            if repeated is not None:
                columns = [table.any_column for table in self.tables]
                first, second = (
                    self.files.locate(columns, int(orders[i]))
                    for i in ordered[repeated : repeated + 2]
                )
                file = second.rpartition(": ")[0]
                raise InputError(
                    f"{second}: the id occurs twice, first in {first.removeprefix(f'{file}: ')}; "
                    "remove one of them"
                )

    def check_all(self) -> None:
        """Raise `InputError` if a node has no row; collective."""
        ranks = self.files.ranks
        count = sum(ranks.gather(self.num_nodes if self.nodes is None else len(self.nodes)))
        with ranks.agree():
            if count != self.num_nodes:
                raise InputError(
                    f"{self.tables[0].file.path}: has features of {count} nodes, and other tables "
                    f"of nodes list {self.num_nodes - count} more; add these, or accept nodes "
                    "without features with --nodes-from-edges"
                )

    def column(
        self, columns: Sequence[int], kind: Kind, read: Callable[[Table, int], Array]
    ) -> list[Array]:
        """Return a column of this rank's rows, in blocks; 0 for tables where it is -1."""
        blocks = []
        with self.files.ranks.agree():
            for piece in self.files.share:
                number = columns[piece.file_number]
                for block in piece.file.blocks({max(number, 0): kind if number >= 0 else "text"}):
                    # Only columns of roles and masks, which are uint8, may be missing.
                    zeros = np.zeros(block.num_rows, np.uint8)
                    blocks.append(zeros if number < 0 else read(block, number))
        return blocks


def _graphs(rows: _Rows) -> GlobalIndices:
    tables = rows.tables
    for table in tables:
        if table.graph < 0:
            raise InputError(f"{table.file.path}: has no column graph, as other tables do; add it")
    numbers = rows.put([table.file.integers(table.graph) for table in tables], -1)
    # The graph of a node without a row is unknown.
    if (node := first_true(numbers < 0)) is not None:
        raise InputError(
            f"{tables[0].file.path}: node {node} is of graph {numbers[node]}; number graphs "
            "from 0, and give each node a row"
        )
    return numbers


def _labels(rows: _Rows, separator: str | None) -> Labels:
    tables, ranks = rows.tables, rows.files.ranks
    columns = [table.label for table in tables]
    first = next(table for table in tables if table.label >= 0)
    path = first.file.path
    with ranks.agree():
        if min(columns) < 0:
            raise InputError(f"{path}: has labels, and other node tables do not; give them to all")
    where = f"{path}: {first.file.describe(first.label)}"
    as_names = any(t.has_class_names or not t.file.numeric[t.label] for t in tables)
    if separator is None and not as_names:
        parts = rows.column(columns, "class", _classes)
        values = rows.put([np.zeros(0, np.int32), *parts], -1)
        with ranks.agree():
            labels = labelled(values, where, first=rows.own.start)
        return replace(labels, num_classes=max(ranks.gather(labels.num_classes)))
    chunks = rows.column(columns, "text", Table.texts)
    with ranks.agree():
        own_names, codes = classes_of(chunks, where)
    names = sorted(set[str]().union(*ranks.gather(own_names)), key=str.encode)
    listed = [name for name in names if separator is not None or name not in NO_CLASS]
    numbers = {name: number for number, name in enumerate(listed)}
    classes = np.array([numbers.get(name, -1) for name in own_names], np.int32)[codes]
    if separator is not None:
        return _several_labels(listed, classes, separator, where, rows)
    if (odd := list(filter(is_missing, listed))) and ranks.rank == 0:
        report(f"{where}: {named(odd)} {READ_AS_CLASS}")
    return Labels(rows.put([classes], -1), len(listed), tuple(listed))


def _classes(block: Table, column: int) -> NDArray[np.int32]:
    # Checked here, because rows that move could not be located later.
    try:
        return class_numbers(block.numbers(column), None, block.locate)
    except InputError as error:
        raise InputError(f"{error}; {NAMES_OF_CLASSES}") from error


def _several_labels(
    names: Sequence[str], codes: NDArray[np.int32], separator: str, where: str, rows: _Rows
) -> Labels:
    """Return the labels [n, classes] of nodes from `names`, each a list of labels in one text."""
    lists = [[part.strip() for part in name.split(separator)] for name in names]
    classes = sorted({part for parts in lists for part in parts} - NO_CLASS, key=str.encode)
    with rows.files.ranks.agree():
        if not classes:
            raise InputError(
                f"{where}: holds no label; name another column with --node-columns label=NAME"
            )
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.zeros((len(names), len(classes)), np.uint8)
    for row, parts in zip(labels, lists, strict=True):
        row[[numbers[part] for part in parts if part in numbers]] = 1
    return Labels(rows.put([labels[codes]], 0), len(classes), tuple(classes))


def _splits(rows: _Rows) -> dict[str, NDArray[np.uint8]]:
    tables = rows.tables

    def columns(kind: str, read: Callable[[Table, int], Array]) -> dict[str, Array]:
        arrays = {}
        for name in dict.fromkeys(name for table in tables for name in getattr(table, kind)):
            numbers = [getattr(table, kind).get(name, -1) for table in tables]
            parts = rows.column(numbers, "text", read)
            arrays[name] = rows.put([np.zeros(0, np.uint8), *parts], 0)
        return arrays

    splits, masks = columns("splits", roles_of), columns("masks", mask_of)
    if masks:
        with rows.files.ranks.agree():
            splits[""] = split_from_masks(masks, str(tables[0].file.path), rows.own.start)
    return splits


def _features(rows: _Rows, options: ConvertOptions) -> Features:
    """Return the features of the rows, brought into node order in a scratch file if necessary."""
    tables, files = rows.tables, rows.files
    columns = [(table.file, table.features) for table in tables]
    width = files.ranks.from_first(lambda: common_width(columns, "nodes"))
    none = np.zeros((0, width), options.dtype or np.float32)
    where = str(tables[0].file.path)
    kinds = [table.file.feature_kinds(table.features) for table in tables]

    def as_read() -> FeatureStream:
        narrowing = Narrowing(none.dtype)
        for block, number, _ in files.rows(kinds):
            features = tables[number].file.features(block, tables[number].features)
            # Checked here, because rows that move could not be located later.
            yield narrowing.rows(features, block.locate)

    names = tables[0].file.named(tables[0].features, width)
    if rows.nodes is None:
        return Features(width, none.dtype, as_read, lambda _: where, names=names)
    matrix = rows.put_features(as_read(), none)

    def in_order() -> FeatureStream:
        step = max(1, _SCRATCH_BYTES // (none.itemsize * width))
        for start in range(0, len(matrix), step):
            yield np.array(matrix[start : start + step])

    return Features(width, none.dtype, in_order, lambda _: where, rows.own.start, names=names)


def _like(first: NodeTable, table: NodeTable) -> NodeTable:
    """Return a table with its features in the order of the first one's; raises `InputError`.

    Without a header, or if widths differ, they stay as they are.
    """
    wanted, names = ([t.file.names[i] for i in t.features] for t in (first, table))
    if wanted == names or not all((*wanted, *names)) or len(wanted) != len(names):
        return table
    if sorted(wanted) != sorted(names) or len(set(names)) < len(names):
        raise InputError(
            f"{table.file.path}: has the features {named(names)}, and {first.file.path} has "
            f"{named(wanted)}; one table must have all features of a node, and tables of other "
            "nodes the same columns"
        )
    return replace(table, features=tuple(table.features[names.index(name)] for name in wanted))


def with_graphs(nodes: NodeArrays, options: ConvertOptions) -> tuple[NodeArrays, tuple[str, ...]]:
    """Add labels and splits from the table of graphs that the options name; `InputError`.

    Also return what is left out: other columns, and graphs without nodes.
    """
    if options.graphs is None or nodes.graph is None:
        # For a single graph, `check_used` reports that the option has no effect.
        return nodes, ()
    path = Path(options.take("graphs"))
    tables = open_nodes([path], {}, ())
    if not tables.tables or max(tables.tables[0].graph, tables.tables[0].id) < 0:
        raise InputError(f"--graphs {path}: needs a table with a header and a column graph")
    (table,) = tables.tables
    numbers = Numbers(table.file.integers(table.id if table.graph < 0 else table.graph))
    order = np.argsort(numbers.ids, kind="stable")
    numbers = Numbers(numbers.ids[order])
    if (repeated := first_true(np.diff(numbers.ids) == 0)) is not None:
        raise InputError(f"--graphs {path}: graph {numbers.ids[repeated]} occurs twice")
    positions = numbers.positions(nodes.graph)
    if (node := first_true(positions < 0)) is not None:
        raise InputError(
            f"--graphs {path}: has no row for graph {nodes.graph[node]}, which has nodes; add it"
        )
    rows = order[positions]
    # Read the rows in file order, without taking ids or graphs for those of nodes.
    data = read_nodes(replace(tables, tables=(replace(table, id=-1, graph=-1),)), None, options)
    labels, splits = data.labels, {name: split[rows] for name, split in data.splits.items()}
    for field, old, new in (("labels", nodes.labels, labels), ("splits", nodes.splits, splits)):
        if old and new:
            raise InputError(f"--graphs {path}: nodes also have {field}; keep one of them")
    if labels is not None:
        labels = replace(labels, values=labels.values[rows])
    without = np.setdiff1d(numbers.ids, nodes.graph).tolist()
    ignored = (
        *table.ignored(),
        *([f"{path.name}: graphs without nodes: {named(without)}"] if without else []),
    )
    return replace(nodes, labels=labels or nodes.labels, splits=splits or nodes.splits), ignored
