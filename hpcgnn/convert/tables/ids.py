"""The ids of nodes in tables: whole numbers or names of any kind, and their places in order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hpcgnn.convert.read.names import NameSurvey, NameTable, first_not_utf8, first_of_each, parts_of
from hpcgnn.convert.read.tables import Kind, Table, TableFile
from hpcgnn.convert.source import ConvertOptions, first_fault
from hpcgnn.errors import InputError
from hpcgnn.typing import Array, GlobalIndices

Column: TypeAlias = tuple[TableFile, int]
"""A file and the place of a column in it."""

_PENDING_IDS = 1 << 23
_BLANK, _DELETE = ord(" "), 0x7F


@dataclass(frozen=True, slots=True)
class Numbers:
    """Ids that are whole numbers: their sorted distinct values."""

    ids: GlobalIndices

    def __len__(self) -> int:
        return len(self.ids)

    def positions(self, values: GlobalIndices) -> GlobalIndices:
        """Return the place of each of `values`, -1 for none."""
        order = np.argsort(values)
        ordered = values[order]
        found = np.empty(len(values), np.int64)
        places = np.searchsorted(self.ids, ordered)
        if len(self.ids):
            inside = np.minimum(places, len(self.ids) - 1)
            places = np.where(self.ids[inside] == ordered, inside, -1)
        else:
            places = np.full(len(values), -1)
        found[order] = places
        return found

    @property
    def original(self) -> GlobalIndices | None:
        """The ids, None where they are 0..n - 1."""
        size = len(self.ids)
        return None if size and self.ids[0] == 0 and self.ids[-1] == size - 1 else self.ids


Index: TypeAlias = Numbers | NameTable


def find_index(
    tables: Sequence[Column],
    ends: Sequence[Column],
    options: ConvertOptions,
    *,
    relabel: bool,
    without_ids: Path | None = None,
) -> Index | None:
    """Return the ids of the nodes of a type, None where they are their numbers 0, 1, ...

    They are those of the columns of `tables` of nodes, or without any (or with
    `options.nodes_from_edges`) those of the `ends` of edges. `without_ids` is a table of nodes that
    has none. Raises `InputError` for faulty ids.
    """
    from_edges = options.take("nodes_from_edges") or not tables
    is_text = options.take("names") or any(
        file.has_names(place) for file, place in [*tables, *ends]
    )
    if is_text and without_ids is not None and not tables:
        raise InputError(
            f"{without_ids}: has no column of ids; name it with --node-columns id=NAME"
        )
    if not (is_text or relabel or tables):
        return None
    every = [*tables, *(ends if from_edges else [])]
    if not is_text:
        merger = _IdMerger()
        for file, place in every:
            for table in file.blocks({place: "integer"}):
                merger.add(table.integers(place))
        return Numbers(merger.ids())
    survey = NameSurvey(options.memory_bytes)
    for group in _by_file(every):
        for table in group[0].blocks(dict.fromkeys(group[1], "text")):
            for place in group[1]:
                _check_texts(table, place)
                survey.add(table.texts(place))
    return survey.finish()


def _by_file(columns: Sequence[tuple[TableFile, int]]) -> list[tuple[TableFile, list[int]]]:
    groups: dict[Path, tuple[TableFile, list[int]]] = {}
    for file, place in columns:
        groups.setdefault(file.path, (file, []))[1].append(place)
    return list(groups.values())


def _check_texts(table: Table, place: int) -> None:
    """Raise `InputError` for the first id that cannot be the name of a node."""
    texts = table.texts(place)
    offsets, data = parts_of(texts)
    where = f"column {place + 1}"
    if (row := first_fault(offsets[1:] == offsets[:-1])) is not None:
        raise InputError(f"{table.locate(row)}, {where}: the id is empty; give each node a name")
    if (at := first_fault((data < _BLANK) | (data == _DELETE))) is not None:
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        raise InputError(
            f"{table.locate(row)}, {where}: the id {texts[row].as_py()!r} has unprintable "
            "characters; give the node another name"
        )
    if (row := first_not_utf8(texts)) is not None:
        raise InputError(
            f"{table.locate(row)}, {where}: the id {texts[row].as_py()!r} is not UTF-8; encode the "
            "file anew"
        )


class _IdMerger:
    """Collect the distinct ids of many arrays; they take eight bytes each.

    Everything here sorts: for millions of ids that is many times faster than hashing or searching
    them in the order of the edges, which misses the cache at every step.
    """

    def __init__(self) -> None:
        self._merged: GlobalIndices = np.zeros(0, np.int64)
        self._pending: list[GlobalIndices] = []
        self._count = 0

    def add(self, values: GlobalIndices) -> None:
        """Take some ids."""
        ids = _distinct(values)
        self._pending.append(ids)
        self._count += len(ids)
        if self._count > max(_PENDING_IDS, len(self._merged)):
            self.ids()

    def ids(self) -> GlobalIndices:
        """Return the distinct ids so far, sorted."""
        self._merged = _distinct(np.concatenate([self._merged, *self._pending]))
        self._pending, self._count = [], 0
        return self._merged


def _distinct(values: Array) -> GlobalIndices:
    ordered = np.sort(values)
    return ordered[first_of_each(ordered)]


@dataclass(frozen=True, slots=True)
class Ids:
    """A column of ids and those that it is to hold; `role` names them where one is not known."""

    column: int
    index: Index | None
    role: str

    @property
    def kind(self) -> Kind:
        """How the column is read."""
        return "text" if isinstance(self.index, NameTable) else "integer"


def place_ids(
    blocks: Iterable[tuple[Table, int]], columns: Sequence[Sequence[Ids]]
) -> Iterator[tuple[Table, int, list[GlobalIndices]]]:
    """Yield blocks of tables, with the places of the ids of the `columns` of their file.

    A block comes with the number of its file. Blocks are searched together where names outgrow
    memory. Raises `InputError` for an id that is not known.
    """
    limit = max((_batch_bytes(ids) for each in columns for ids in each), default=0)
    group: list[tuple[Table, int]] = []
    size = 0
    for table, file in blocks:
        group.append((table, file))
        size += sum(_search_bytes(table.texts(ids.column)) for ids in columns[file] if limit)
        if size >= limit:
            yield from _placed(group, columns)
            group, size = [], 0
    yield from _placed(group, columns)


def _batch_bytes(ids: Ids) -> int:
    return ids.index.batch_bytes if isinstance(ids.index, NameTable) else 0


def _search_bytes(texts: Any) -> int:
    """Return what texts and their search take at most, with the lines that they come from."""
    return 3 * int(texts.nbytes) + 48 * len(texts)


def _placed(
    group: Sequence[tuple[Table, int]], columns: Sequence[Sequence[Ids]]
) -> Iterator[tuple[Table, int, list[GlobalIndices]]]:
    named: dict[int, list[Any]] = {}
    for table, file in group:
        for ids in columns[file]:
            if isinstance(ids.index, NameTable):
                named.setdefault(id(ids.index), []).append((ids.index, table.texts(ids.column)))
    found = {
        key: iter(each[0][0].positions([texts for _, texts in each])) for key, each in named.items()
    }
    for table, file in group:
        places = []
        for ids in columns[file]:
            if ids.index is None:
                places.append(table.integers(ids.column))
                continue
            if isinstance(ids.index, Numbers):
                these = ids.index.positions(table.integers(ids.column))
            else:
                these = next(found[id(ids.index)])
            _check_known(table, ids, these)
            places.append(these)
        yield table, file, places


def _check_known(table: Table, ids: Ids, places: GlobalIndices) -> None:
    if (row := first_fault(places < 0)) is not None:
        if isinstance(ids.index, NameTable):
            raw = table.texts(ids.column)[row].as_py()
            shown = repr(raw.decode("utf-8", "replace"))
        else:
            shown = str(table.integers(ids.column)[row])
        raise InputError(
            f"{table.locate(row)}: {ids.role} id {shown} is not in the table of nodes; add it "
            "there, or take nodes of the edges too with --nodes-from-edges"
        )
