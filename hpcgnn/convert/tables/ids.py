"""Node ids in tables, integers or arbitrary names, and their positions in sorted order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from hpcgnn.comm import RankGroup
from hpcgnn.convert.divide_input import Rows, SharedFiles
from hpcgnn.convert.read.names import (
    NameSurvey,
    NameTable,
    join_texts,
    parts_of,
    prefixes,
    texts_of,
)
from hpcgnn.convert.read.tables import Kind, Table, TableFile, first_not_utf8
from hpcgnn.convert.source import ConvertOptions, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.storage import first_of_each, first_true
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

if TYPE_CHECKING:
    from pathlib import Path

Column: TypeAlias = tuple[TableFile, int]
"""A file and the index of a column in it."""

_PENDING_IDS = 1 << 23
_BLANK, _DELETE = ord(" "), 0x7F


@dataclass(frozen=True, slots=True)
class Numbers:
    """Integer ids: the sorted distinct values."""

    ids: GlobalIndices
    named: ClassVar[bool] = False
    batch_bytes: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.ids)

    def positions(self, values: GlobalIndices) -> GlobalIndices:
        """Return the position of each id, -1 for unknown ones."""
        positions = np.full(len(values), -1)
        if len(self.ids):
            order = np.argsort(values)
            ordered = values[order]
            near = np.minimum(np.searchsorted(self.ids, ordered), len(self.ids) - 1)
            positions[order] = np.where(self.ids[near] == ordered, near, -1)
        return positions

    def nodes(self) -> NodeArrays:
        """Return node data with the original ids, unless these are 0..n - 1."""
        size = len(self.ids)
        plain = size and self.ids[0] == 0 and self.ids[-1] == size - 1
        return NodeArrays(original_id=None if plain else self.ids)


class Divided:
    """Ids, numbers or names, sorted across ranks: each rank holds a range.

    `borders` are the least ids of the ranks after the first.
    """

    batch_bytes: ClassVar[int] = 0

    def __init__(self, ranks: RankGroup, borders: Array, own_ids: Numbers | NameTable) -> None:
        self._ranks, self._borders, self._own = ranks, borders, own_ids
        self.named = own_ids.named
        counts = ranks.gather(len(own_ids))
        self._start, self._total = sum(counts[: ranks.rank]), sum(counts)

    def __len__(self) -> int:
        return self._total

    def positions(self, ids: Any) -> GlobalIndices:
        """Return the position of each id, -1 for unknown ones; collective."""
        owners = self._ranks.ranks_of(_keys(ids), self._borders)
        received = send_ids(self._ranks, owners, ids)
        (senders,) = self._ranks.exchange(owners, np.full(len(owners), self._ranks.rank, np.int32))
        with self._ranks.agree():
            own_positions = self._own.positions(received)
        own_positions = np.where(own_positions < 0, -1, own_positions + self._start)
        (answers,) = self._ranks.exchange(senders, own_positions)
        # Answers arrive by owner, and those of one owner in the order of the requests.
        positions = np.empty(len(owners), np.int64)
        positions[np.argsort(owners, kind="stable")] = answers
        return positions

    def nodes(self) -> NodeArrays:
        """Return node data with this rank's names, or with the original ids of nodes it keeps."""
        if isinstance(self._own, NameTable):
            return self._own.nodes()
        ids, start = self._own.ids, self._start
        plain = not len(ids) or (ids[0] == start and ids[-1] == start + len(ids) - 1)
        if not self._ranks.any(not plain):
            return NodeArrays()
        keepers = self._ranks.keepers(np.arange(start, start + len(ids)), self._total)
        return NodeArrays(original_id=self._ranks.exchange(keepers, ids)[0])


Index: TypeAlias = Numbers | NameTable | Divided


def joined(columns: Sequence[Any], *, named: bool) -> Any:
    """Concatenate columns of names or numbers."""
    if len(columns) == 1:
        return columns[0]
    return join_texts(columns) if named else np.concatenate([np.zeros(0, np.int64), *columns])


def _keys(ids: Any) -> Array:
    """Return sort keys: the numbers themselves, or prefixes of names."""
    return ids if isinstance(ids, np.ndarray) else prefixes(ids)


def send_ids(ranks: RankGroup, owners: LocalIndices, ids: Any) -> Any:
    """Send names or numbers to their owners; return those received. Collective."""
    if isinstance(ids, np.ndarray):
        return ranks.exchange(owners, ids)[0]
    return texts_of(*ranks.exchange_lists(owners, *parts_of(ids)))


def find_index(
    tables: Sequence[Column],
    ends: Sequence[Column],
    options: ConvertOptions,
    *,
    relabel: bool,
    without_ids: str = "",
) -> Index | None:
    """Return the ids of the nodes of a type, or None if the ids are the numbers 0, 1, ...

    They come from the id columns of node `tables`; without any, or with `options.nodes_from_edges`,
    also from the `ends` of edges. `without_ids` is the message if ids are needed and no table has
    any. Raises `InputError` for faulty ids.
    """
    from_edges = options.take("nodes_from_edges") or not tables
    as_names = options.take("names")
    with options.ranks.agree():
        is_text = as_names or any(file.has_names(column) for file, column in [*tables, *ends])
        if is_text and without_ids and not tables:
            raise InputError(without_ids)
    if not (is_text or relabel or tables):
        return None
    groups: dict[Path, tuple[TableFile, list[int]]] = {}
    for file, column in [*tables, *(ends if from_edges else [])]:
        groups.setdefault(file.path, (file, []))[1].append(column)
    ranks = options.ranks
    files = SharedFiles([file for file, _ in groups.values()], ranks)
    read = partial(_read_ids, [columns for _, columns in groups.values()], files, named=is_text)
    survey = NameSurvey(options.memory_bytes) if is_text else _IdMerger()
    borders = ranks.borders(lambda: _keys(joined(list(read(sample=True)), named=is_text)))
    for ids in read(sample=False):
        own = send_ids(ranks, ranks.ranks_of(_keys(ids), borders), ids) if len(borders) else ids
        with ranks.agree():
            survey.add(own)
    with ranks.agree():
        own_ids = survey.finish()
    return Divided(ranks, borders, own_ids) if len(borders) else own_ids


def _read_ids(
    columns: Sequence[Sequence[int]], files: SharedFiles, *, named: bool, sample: bool
) -> Iterator[Any]:
    """Yield the ids in columns, names or numbers, all or a `sample`; collective."""
    kind: Kind = "text" if named else "integer"
    kinds = [dict.fromkeys(of_file, kind) for of_file in columns]

    def ids_of(rows: Rows) -> Any:
        read = partial(_names, rows.table) if named else rows.table.integers
        return joined([read(column) for column in columns[rows.file_number]], named=named)

    rows = files.sample(kinds) if sample else files.rows(kinds)
    return files.ranks.rounds(map(ids_of, rows), lambda: joined([], named=named))


def _names(table: Table, column: int) -> Any:
    """Return a column of names; raises `InputError` for the first invalid one."""
    texts = table.texts(column)
    offsets, data = parts_of(texts)
    where = f"column {column + 1}"
    if (row := first_true(offsets[1:] == offsets[:-1])) is not None:
        raise InputError(f"{table.locate(row)}, {where}: the id is empty; give each node a name")
    if (at := first_true((data < _BLANK) | (data == _DELETE))) is not None:
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        raise InputError(
            f"{table.locate(row)}, {where}: the id {texts[row].as_py()!r} has unprintable "
            "characters; give the node another name"
        )
    if (row := first_not_utf8(texts)) is not None:
        raise InputError(
            f"{table.locate(row)}, {where}: the id {texts[row].as_py()!r} is not UTF-8; save the "
            "file as UTF-8"
        )
    return texts


class _IdMerger:
    """Collects the distinct ids of many arrays; each takes eight bytes.

    It sorts, which for millions of ids is many times faster than hashing or searching in the order
    of the edges, where every access misses the cache.
    """

    def __init__(self) -> None:
        self._merged: GlobalIndices = np.zeros(0, np.int64)
        self._pending: list[GlobalIndices] = []

    def add(self, values: GlobalIndices) -> None:
        self._pending.append(_distinct(values))
        if sum(map(len, self._pending)) > max(_PENDING_IDS, len(self._merged)):
            self.finish()

    def finish(self) -> Numbers:
        self._merged = _distinct(np.concatenate([self._merged, *self._pending]))
        self._pending = []
        return Numbers(self._merged)


def _distinct(values: Array) -> GlobalIndices:
    ordered = np.sort(values)
    return ordered[first_of_each(ordered)]


@dataclass(frozen=True, slots=True)
class Ids:
    """A column of ids and the index that must contain them; messages call an id by its `role`."""

    column: int
    index: Index | None
    role: str

    @property
    def named(self) -> bool:
        """Whether the ids are names."""
        return self.index is not None and self.index.named

    @property
    def kind(self) -> Kind:
        """The kind that the column is read as."""
        return "text" if self.named else "integer"

    def values(self, table: Table) -> Any:
        """Return the ids of some rows."""
        return table.texts(self.column) if self.named else table.integers(self.column)


def id_rows(files: SharedFiles, columns: Sequence[Ids]) -> Iterator[Rows]:
    """Yield the rows of files with the id column of each; collective."""
    kinds = [{ids.column: ids.kind} for ids in columns]

    def check(rows: Rows) -> None:
        columns[rows.file_number].values(rows.table)

    return files.rounds(files.rows(kinds), kinds, check)


def place_ids(
    blocks: Iterable[Rows], columns: Sequence[Sequence[Ids]]
) -> Iterator[tuple[Rows, list[GlobalIndices]]]:
    """Yield blocks of tables with the node numbers of the ids in the `columns` of their file.

    If names outgrow memory, several blocks are looked up together. Raises `InputError` for an
    unknown id. Collective if one of the indices is `Divided`.
    """
    indices = [ids.index for ids in chain.from_iterable(columns)]
    limit = max((index.batch_bytes for index in indices if index is not None), default=0)
    group: list[Rows] = []
    size = 0
    for rows in blocks:
        group.append(rows)
        for texts in [rows.table.texts(ids.column) for ids in columns[rows.file_number] if limit]:
            # An upper bound for the texts, their lookup and the lines that they come from.
            size += 3 * int(texts.nbytes) + 48 * len(texts)
        if size >= limit:
            yield from _placed(group, columns)
            group, size = [], 0
    yield from _placed(group, columns)


def _placed(
    group: Sequence[Rows], columns: Sequence[Sequence[Ids]]
) -> Iterator[tuple[Rows, list[GlobalIndices]]]:
    lookups: dict[int, tuple[Index, list[Any]]] = {}
    for rows in group:
        for ids in columns[rows.file_number]:
            if ids.index is not None:
                _, parts = lookups.setdefault(id(ids.index), (ids.index, []))
                parts.append(ids.values(rows.table))
    positions = {}
    for key, (index, parts) in lookups.items():
        ends = np.cumsum([len(part) for part in parts])
        of_all = index.positions(joined(parts, named=index.named))
        positions[key] = iter(np.split(of_all, ends[:-1]))
    for rows in group:
        nodes = []
        for ids in columns[rows.file_number]:
            if ids.index is None:
                nodes.append(rows.table.integers(ids.column))
                continue
            nodes.append(next(positions[id(ids.index)]))
            _check_known(rows.table, ids, nodes[-1])
        yield rows, nodes


def _check_known(table: Table, ids: Ids, positions: GlobalIndices) -> None:
    if (row := first_true(positions < 0)) is not None:
        if ids.named:
            raw = table.texts(ids.column)[row].as_py()
            shown = repr(raw.decode("utf-8", "replace"))
        else:
            shown = str(table.integers(ids.column)[row])
        raise InputError(
            f"{table.locate(row)}: {ids.role} id {shown} is not in the table of nodes; add it "
            "there, or also take nodes from edges with --nodes-from-edges"
        )
