"""Graphs in tables: edge lists, beside them tables of nodes, and folders with a graph.toml.

An edge list has a line an edge, `src dst` or `src dst weight`, as SNAP and many others publish it;
a typed one `src dst relation` or `src dst relation weight`. Columns are told by the names of a
header, by `columns`, or by their number. Ids are whole numbers or names of any kind: names, and
numbers with `relabel`, are numbered in their order. A table of nodes gives them ids, labels, splits
and features.

A folder whose `graph.toml` names node types and relations has tables for each of them.
"""

import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import (
    SPLIT_NAMES,
    SPLIT_PREFIXES,
    EdgeType,
    check_nodes,
    edge_ends,
    join_types,
    labelled,
    relation_names,
    split_from_indices,
    split_from_masks,
)
from hpcgnn.convert.read.features import array_features
from hpcgnn.convert.read.names import NameSurvey, NameTable, first_of_each
from hpcgnn.convert.read.npy import open_npy
from hpcgnn.convert.read.tables import Kind, Table, TableFile, classes_of, vectors
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    Features,
    FeatureStream,
    GraphSource,
    Labels,
    NameBlocks,
    Nodes,
    TypeRange,
    first_fault,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array, GlobalIndices

ROLES = ("src", "dst", "weight", "relation", "skip")
NODE_ROLES = ("id", "label", "split", "features", "ignore")

_USUAL = {2: ("src", "dst"), 3: ("src", "dst", "weight")}
_USUAL_TYPED = {3: ("src", "dst", "relation"), 4: ("src", "dst", "relation", "weight")}
_EDGE_NAMES = {
    "src": ("src", "source", "from", "head", "subject"),
    "dst": ("dst", "target", "to", "tail", "object"),
    "weight": ("weight", "weights", "w"),
    "relation": ("relation", "rel", "predicate", "etype", "edge_type"),
}
_NODE_NAMES = {
    "id": ("id", "node_id", "node", "name", "nid"),
    "label": ("label", "labels", "class", "y"),
    "split": ("split", "set"),
}
_MASKS = {f"{each}_mask": part for part, names in SPLIT_PREFIXES.items() for each in names}
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
_KNOWN_EDGES = frozenset(name for names in _EDGE_NAMES.values() for name in names)
_KNOWN_NODES = frozenset(name for names in _NODE_NAMES.values() for name in names) | set(_MASKS)
_PENDING_IDS = 1 << 23
_SCRATCH_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """Files of edges of one type, `places` of the roles of their columns for each."""

    kind: EdgeType
    files: tuple[TableFile, ...]
    places: tuple[Mapping[str, int], ...]

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""
        return any("weight" in places for places in self.places)

    def tables(self, roles: Mapping[str, Kind]) -> Iterator[tuple[Table, Mapping[str, int]]]:
        """Yield the rows of all files with the columns of those `roles` that they have."""
        for file, places in zip(self.files, self.places, strict=True):
            for table in file.blocks({places[r]: k for r, k in roles.items() if r in places}):
                yield table, places

    def ignored(self) -> Iterator[str]:
        """Yield what of the files is left out."""
        for file, places in zip(self.files, self.places, strict=True):
            if file.header_line and not file.is_parquet:
                yield f"header in line {file.header_line}"
            used = set(places.values())
            yield from (file.describe(i) for i in range(len(file.names)) if i not in used)


@dataclass(frozen=True, slots=True)
class NodeTable:
    """A file of nodes: the place of the ids or -1, of the labels or -1, of splits and features."""

    file: TableFile
    id: int
    label: int
    splits: Mapping[str, int]
    masks: Mapping[str, int]
    features: tuple[int, ...]

    def ignored(self) -> Iterator[str]:
        """Yield the columns that are left out."""
        used = {self.id, self.label, *self.splits.values(), *self.masks.values(), *self.features}
        for column in range(len(self.file.names)):
            if column not in used:
                yield f"{self.file.path.name}: {self.file.describe(column)}"


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


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read an edge list without relations; raises `InputError`."""
    table = _edge_table(("", "", ""), _paths(path, options), options.take("columns"), _USUAL)
    if any("relation" in places for places in table.places):
        raise InputError("--columns: an edge list has no relation; use --format typed-edge-list")
    return _read_plain(path, table, options)


def read_typed(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a typed edge list in two passes, the first for its relations; raises `InputError`."""
    table = _edge_table(("", "", ""), _paths(path, options), options.take("columns"), _USUAL_TYPED)
    if any("relation" not in places for places in table.places):
        raise InputError("--columns: a typed edge list needs a column called relation")
    return _read_plain(path, table, options)


def read_folder(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph that the graph.toml of a folder describes; raises `InputError`."""
    return _Folder(path, options).read()


def first_line_says(path: Path) -> tuple[str, str]:
    """Return which kind of edge list a text file is, and the reason."""
    file = TableFile.open(path, _KNOWN_EDGES)
    names = {name.lower() for name in file.names}
    if names & set(_EDGE_NAMES["relation"]):
        return "typed-edge-list", "its header names a relation"
    fields, line = file.first_fields, file.header_line + 1
    if not file.header_line and len(fields) > 2 and file.numeric[0] and not file.numeric[2]:
        return "typed-edge-list", f"line {line} has a word in it"
    return "edge-list", f"line {file.header_line or line} has {len(fields)} fields"


def _paths(path: Path, options: ConvertOptions) -> tuple[Path, ...]:
    return (path, *map(Path, options.take("more_inputs")))


def _edge_table(
    kind: EdgeType,
    paths: Sequence[Path],
    columns: Sequence[str] | None,
    usual: Mapping[int, tuple[str, ...]],
) -> EdgeTable:
    by_name = columns is not None and any("=" in each for each in columns)
    header = True if by_name else None
    files = tuple(TableFile.open(path, _KNOWN_EDGES, header=header) for path in paths)
    return EdgeTable(kind, files, tuple(_edge_places(file, columns, usual) for file in files))


def _edge_places(
    file: TableFile, columns: Sequence[str] | None, usual: Mapping[int, tuple[str, ...]]
) -> dict[str, int]:
    """Return the places of the roles of a file of edges."""
    if columns is not None and any("=" in each for each in columns):
        given = [each.partition("=")[::2] for each in columns]
        _check_roles([role for role, _ in given])
        return {role: file.column(name, "--columns") for role, name in given if role != "skip"}
    if columns is None:
        found = _named_places(file, _EDGE_NAMES)
        if "src" in found and "dst" in found:
            return found if 4 in usual else {k: v for k, v in found.items() if k != "relation"}
        columns = usual.get(len(file.names))
    if columns is None:
        line = file.header_line or _first_line(file)
        raise InputError(
            f"{file.path}: line {line} has {len(file.names)} fields; say what they are with "
            f"--columns, a list of {', '.join(ROLES)}, or of src=NAME and the like"
        )
    _check_roles(columns)
    if len(columns) != len(file.names):
        raise InputError(
            f"{file.path}: has {len(file.names)} columns where --columns names {len(columns)}; "
            "name each, with skip for those to leave out"
        )
    return {role: place for place, role in enumerate(columns) if role != "skip"}


def _first_line(file: TableFile) -> int:
    for table in file.blocks({0: "text"}):
        return int(table.locate(0).rpartition(" ")[2])
    return 1


def _named_places(file: TableFile, known: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    lower = [name.lower() for name in file.names]
    found = {}
    for role, names in known.items():
        place = next((lower.index(name) for name in names if name in lower), None)
        if place is not None:
            found[role] = place
    return found


def _check_roles(roles: Sequence[str]) -> None:
    """Raise `InputError` unless `roles` names one source, one target and no unknown column."""
    for role in roles:
        if role not in ROLES:
            raise InputError(f"--columns: {role!r} is none of {', '.join(ROLES)}")
    for role in ROLES[:-1]:
        count = list(roles).count(role)
        if count > 1 or (role in ("src", "dst") and count == 0):
            raise InputError(f"--columns: {role} occurs {count} times; name it once")


def _read_plain(path: Path, edges: EdgeTable, options: ConvertOptions) -> GraphSource:
    nodes = _node_tables(options)
    tables = [each for each in nodes if isinstance(each, NodeTable)]
    if any(isinstance(each, Path) for each in nodes) and options.relabel:
        raise InputError("--relabel: rows of --nodes without ids are nodes 0, 1, ...; leave it out")
    ends = [(edges, "src"), (edges, "dst")]
    index = _index(tables, ends, options, relabel=options.take("relabel"))
    names, numbers = np.zeros(0, np.str_), np.zeros(0, np.int64)
    relations: tuple[str, ...] = ("",)
    if "relation" in edges.places[0]:
        names, relations, numbers = _relations(edges, path)
    known = Nodes()
    if nodes:
        known = _read_nodes(nodes, index, options)
    elif isinstance(index, Numbers):
        known = Nodes(original_id=index.original)
    elif index is not None:
        known = Nodes(names=index.blocks)
    num_nodes = options.take("num_nodes") if index is None else len(index)
    if index is None and nodes:
        num_nodes = _num_rows(known, nodes)
    known = _with_split_files(known, index, num_nodes, options)

    def stream() -> EdgeStream:
        for chunk, texts in _chunks(edges, index, index):
            if texts is None:
                yield chunk
            else:
                places = numbers[np.searchsorted(names, _decoded(texts))]
                yield from chunk.by_relation(places, relations)

    return GraphSource(
        path=path,
        edges=stream,
        inputs=(*(f.path for f in edges.files), *_files_of(nodes)),
        relations=relations,
        num_nodes=num_nodes,
        weighted=edges.weighted,
        nodes=known,
        ignored=(*edges.ignored(), *chain.from_iterable(t.ignored() for t in tables)),
    )


def _files_of(nodes: Sequence["NodeTable | Path"]) -> Iterator[Path]:
    for each in nodes:
        yield each if isinstance(each, Path) else each.file.path


def _decoded(texts: Any) -> NDArray[np.str_]:
    return np.array([text.decode("utf-8", "surrogateescape") for text in texts.to_pylist()])


def _relations(
    edges: EdgeTable, path: Path
) -> tuple[NDArray[np.str_], tuple[str, ...], NDArray[np.int64]]:
    """Return the sorted names of relations, the relations in stored order, the place of each."""
    found: set[bytes] = set()
    for table, places in edges.tables({"relation": "text"}):
        found.update(table.texts(places["relation"]).unique().to_pylist())
    if not found:
        raise InputError(f"{path}: the graph has no edges; check the input")
    try:
        texts = [name.decode("utf-8") for name in sorted(found)]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the relation column holds text that is not UTF-8 ({error}); encode it anew"
        ) from error
    order = list(range(len(texts)))
    if all(text.isdecimal() for text in texts):
        order = sorted(order, key=lambda i: (int(texts[i]), texts[i]))
    return np.array(texts), tuple(texts[i] for i in order), np.argsort(order)


def _index(
    nodes: Sequence[NodeTable],
    edges: Sequence[tuple[EdgeTable, str]],
    options: ConvertOptions,
    *,
    relabel: bool,
) -> Index | None:
    """Return the ids of the nodes of a type, None where they are their numbers 0, 1, ...

    They are those of its tables of nodes, or those of the edges' `src` or `dst` that belong to it.
    """
    given = [table for table in nodes if table.id >= 0]
    from_edges = options.take("nodes_from_edges") or not given
    columns = [(table.file, table.id) for table in given]
    ends = [
        (file, places[role])
        for table, role in edges
        for file, places in zip(table.files, table.places, strict=True)
    ]
    is_text = options.take("names") or any(_is_text(*each) for each in [*columns, *ends])
    if is_text and nodes and not given:
        path = nodes[0].file.path
        raise InputError(f"{path}: has no column of ids; name it with --node-columns id=NAME")
    if not (is_text or relabel or given):
        return None
    every = columns + (ends if from_edges else [])
    if not is_text:
        merger = _IdMerger()
        for file, place in every:
            for table in file.blocks({place: "integer"}):
                merger.add(table.integers(place))
        return Numbers(merger.ids())
    survey = NameSurvey(options.memory_bytes, str(every[0][0].path))
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


def _is_text(file: TableFile, place: int) -> bool:
    field = file.first_fields[place]
    return not (field.lstrip("+-").isdecimal() and (file.numeric[place] or field != ""))


def _check_texts(table: Table, place: int) -> None:
    texts = table.texts(place)
    lengths = np.diff(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1])
    if (row := first_fault(lengths == 0)) is not None:
        raise InputError(
            f"{table.locate(row)}, column {place + 1}: the id is empty; give each node a name"
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


def _chunks(
    edges: EdgeTable, source: Index | None, target: Index | None
) -> Iterator[tuple[EdgeChunk, Any]]:
    """Yield the edges of a table with the places of their ends, and their relations if any."""
    kinds: dict[str, Kind] = {
        "src": "text" if isinstance(source, NameTable) else "integer",
        "dst": "text" if isinstance(target, NameTable) else "integer",
        "weight": "number",
        "relation": "text",
    }
    for table, places in edges.tables(kinds):
        src = _ends(table, places["src"], source, "source")
        dst = _ends(table, places["dst"], target, "target")
        weights = table.numbers(places["weight"]) if "weight" in places else None
        texts = table.texts(places["relation"]) if "relation" in places else None
        yield EdgeChunk(src, dst, table.locate, weights), texts


def _ends(table: Table, place: int, index: Index | None, role: str) -> GlobalIndices:
    if index is None:
        return table.integers(place)
    if isinstance(index, NameTable):
        found, values = index.positions(table.texts(place)), None
    else:
        values = table.integers(place)
        found = index.positions(values)
    if (row := first_fault(found < 0)) is not None:
        raw = table.texts(place)[row].as_py() if values is None else values[row]
        shown = repr(raw.decode("utf-8", "replace")) if isinstance(raw, bytes) else raw
        raise InputError(
            f"{table.locate(row)}: {role} id {shown} is not in the table of nodes; add it there, "
            "or take nodes of the edges too with --nodes-from-edges"
        )
    return found


def _node_tables(options: ConvertOptions) -> tuple["NodeTable | Path", ...]:
    """Return the tables of nodes that `--nodes` names."""
    paths = [Path(text) for text in options.take("nodes")]
    if not paths:
        return ()
    columns = dict(each.partition("=")[::2] for each in options.take("node_columns") or ())
    features = options.take("features")
    return tuple(open_nodes(path, columns, features) for path in paths)


def open_nodes(
    path: Path, columns: Mapping[str, str], features: Sequence[str] | None
) -> "NodeTable | Path":
    """Return a table of nodes, or the path of a matrix of features (.npy); raises `InputError`.

    `columns` maps roles to the names of columns, `features` are those to take (None: all others of
    numbers).
    """
    if path.suffix.lower() == ".npy":
        open_npy(path)
        return path
    for role in columns:
        if role not in NODE_ROLES:
            raise InputError(f"--node-columns: {role!r} is none of {', '.join(NODE_ROLES)}")
    file = TableFile.open(path, _KNOWN_NODES)
    places = _named_places(file, _NODE_NAMES)
    option = "--node-columns"
    for role in ("id", "label"):
        if role in columns:
            places[role] = file.column(columns[role], option)
    lower = [name.lower() for name in file.names]
    splits = {
        file.names[i].lower().removeprefix("split").strip("_"): i
        for i, name in enumerate(lower)
        if name == "split" or name.startswith("split_")
    }
    if "split" in columns:
        chosen = columns["split"].split("+")
        found = [file.column(name, option) for name in chosen]
        splits = {"" if len(found) == 1 else file.names[i]: i for i in found}
    elif not splits and "split" in places:
        splits = {"": places["split"]}
    masks = {} if splits else {_MASKS[n]: i for i, n in enumerate(lower) if n in _MASKS}
    taken = {places.get("id", -1), places.get("label", -1), *splits.values(), *masks.values()}
    taken |= {file.column(name, option) for name in columns.get("ignore", "").split("+") if name}
    if features is not None:
        chosen_features = tuple(file.column(name, "--features") for name in features)
    else:
        numeric = enumerate(file.numeric)
        chosen_features = tuple(i for i, is_number in numeric if is_number and i not in taken)
    return NodeTable(
        file, places.get("id", -1), places.get("label", -1), splits, masks, chosen_features
    )


def _num_rows(known: Nodes, tables: Sequence["NodeTable | Path"]) -> int:
    for array in known.arrays().values():
        return len(array)
    for each in tables:
        if isinstance(each, Path):
            return open_npy(each).shape[0]
    return sum(t.num_rows for each in tables if isinstance(each, NodeTable) for t in _whole(each))


def _whole(table: NodeTable) -> Iterator[Table]:
    column = next(iter(table.features), max(table.label, 0))
    return table.file.blocks({column: "text"})


def _read_nodes(
    nodes: Sequence["NodeTable | Path"], index: Index | None, options: ConvertOptions
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
    fields["splits"] = _splits(tables, order)
    if isinstance(index, Numbers):
        fields["original_id"] = index.original
    elif index is not None:
        fields["names"] = index.blocks
    return Nodes(**fields)


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
    kind: Kind = "text" if isinstance(index, NameTable) else "integer"
    parts = [
        _ends(block, table.id, index, "node")
        for table in tables
        for block in table.file.blocks({table.id: kind})
    ]
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
        return labelled(order.put(np.concatenate(parts), np.nan), where)
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
            columns[part] = order.put(np.concatenate(values), 0)
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
        return np.zeros(sum(block.num_rows for block in _whole(table)), np.uint8)
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
    widths = [_width(table) for table in tables]
    for table, width in zip(tables, widths, strict=True):
        if width != widths[0]:
            raise InputError(
                f"{table.file.path}: has {width} columns of features where {tables[0].file.path} "
                f"has {widths[0]}; give all nodes the same"
            )

    def rows() -> FeatureStream:
        for table in tables:
            kinds: dict[int, Kind] = {
                i: "number" if table.file.numeric[i] else "text" for i in table.features
            }
            for block in table.file.blocks(kinds):
                yield _feature_rows(table, block)

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
            found = np.flatnonzero(order.places == row)
            given = int(found[0]) if len(found) else 0
        return _place_of([replace(table, id=table.features[0]) for table in tables], given)

    return Features(widths[0], np.dtype(np.float32), ordered, locate)


def _feature_rows(table: NodeTable, block: Table) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        if all(table.file.numeric[i] for i in table.features):
            columns = [block.numbers(i) for i in table.features]
            return np.stack(columns, axis=1).astype(np.float32)
        parts = [
            block.numbers(i)[:, None] if table.file.numeric[i] else vectors(block, i)
            for i in table.features
        ]
        return np.concatenate(parts, axis=1).astype(np.float32)


def _width(table: NodeTable) -> int:
    if all(table.file.numeric[i] for i in table.features):
        return len(table.features)
    kinds: dict[int, Kind] = {
        i: "number" if table.file.numeric[i] else "text" for i in table.features
    }
    for block in table.file.blocks(kinds):
        return int(_feature_rows(table, block).shape[1])
    return 0


def _with_split_files(
    nodes: Nodes, index: Index | None, num_nodes: int | None, options: ConvertOptions
) -> Nodes:
    """Return the nodes with the splits that `--split-file` names."""
    splits = dict(nodes.splits)
    for text in options.take("split_files"):
        name, _, rest = text.rpartition("=")
        paths = rest.split(",")
        if len(paths) != len(SPLIT_NAMES):
            raise InputError(f"--split-file {text}: give [NAME=]train.txt,valid.txt,test.txt")
        if num_nodes is None:
            raise InputError("--split-file: give the number of nodes, with --num-nodes or --nodes")
        ids, where = {}, {}
        for part, path in zip(SPLIT_NAMES, paths, strict=True):
            # A line is one name, whatever stands in it.
            file = TableFile.open(Path(path), frozenset(), header=False, separator="\t")
            kind: Kind = "text" if isinstance(index, NameTable) else "integer"
            found = [_ends(block, 0, index, part) for block in file.blocks({0: kind})]
            ids[part], where[part] = np.concatenate([np.zeros(0, np.int64), *found]), path
        splits[name] = split_from_indices(ids, num_nodes, where)
    return replace(nodes, splits=splits)


def with_nodes(source: GraphSource, options: ConvertOptions) -> GraphSource:
    """Return a graph of another format with the tables of nodes and split files of the options.

    Its nodes are 0..n - 1, and ids in the tables these numbers.
    """
    tables = _node_tables(options)
    files = options.take("split_files")
    if not tables and not files:
        return source
    known, count = source.nodes, source.num_nodes
    index: Index | None = None
    if tables:
        given = [each for each in tables if isinstance(each, NodeTable)]
        found = _index(given, [], options, relabel=False)
        if isinstance(found, NameTable) or (found is not None and found.original is not None):
            raise InputError(
                f"{given[0].file.path}: the nodes of {source.path} are numbers from 0; give the "
                "table each of these once, or no ids"
            )
        index = found
        more = _read_nodes(tables, index, options)
        count = count or _num_rows(more, tables)
        if known.kinds or any(
            getattr(known, name) is not None and getattr(more, name) is not None
            for name in ("features", "labels")
        ):
            raise InputError(f"--nodes: {source.path} has data of nodes; leave one of them out")
        check_nodes(
            more, count, str(tables[0]) if isinstance(tables[0], Path) else str(given[0].file.path)
        )
        known = replace(
            known,
            features=known.features or more.features,
            labels=known.labels or more.labels,
            splits={**known.splits, **more.splits},
        )
    known = _with_split_files(known, index, count, options)
    return replace(
        source, nodes=known, num_nodes=count, inputs=(*source.inputs, *_files_of(tables))
    )


class _Folder:
    """A folder whose graph.toml names the tables of node types and relations."""

    def __init__(self, path: Path, options: ConvertOptions) -> None:
        self._path, self._options = path, options
        self._file = path / "graph.toml"
        try:
            self._tables = tomllib.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{self._file}: cannot be read ({reason}); correct it") from error

    def read(self) -> GraphSource:
        """Return the graph."""
        self._check(self._tables, {"name", "undirected", "nodes", "edges"}, "")
        edges = [self._edges(name, table) for name, table in self._section("edges").items()]
        if not edges:
            raise InputError(f'{self._file}: names no [edges."SOURCE,RELATION,TARGET"]; add one')
        nodes = {name: self._nodes(name, table) for name, table in self._section("nodes").items()}
        for each in edges:
            for name in (each.kind[0], each.kind[2]):
                nodes.setdefault(name, ())
        indices = self._indices(nodes, edges, as_names=False)
        if len(nodes) > 1 and any(
            isinstance(each, NameTable) or each.original is not None for each in indices.values()
        ):
            # Numbers of several types would be told apart by nothing.
            indices = self._indices(nodes, edges, as_names=True)
        counts = {name: len(index) for name, index in indices.items()}
        relations = relation_names(each.kind for each in edges)
        by_name = {relations[each.kind]: each for each in edges}
        known = {
            name: replace(_read_nodes(tables, indices[name], self._options), original_id=None)
            for name, tables in nodes.items()
        }
        inputs = [file.path for each in edges for file in each.files]
        inputs += [path for tables in nodes.values() for path in _files_of(tables)]
        ignored = [f"{name}: {what}" for name, each in by_name.items() for what in each.ignored()]
        for tables in nodes.values():
            for table in tables:
                if isinstance(table, NodeTable):
                    ignored += table.ignored()
        return GraphSource(
            path=self._path,
            edges=partial(_typed_stream, by_name, indices, edge_ends(relations, counts)),
            inputs=(self._file, *inputs),
            relations=tuple(by_name) if len(counts) > 1 or len(by_name) > 1 else ("",),
            num_nodes=sum(counts.values()),
            weighted=any(each.weighted for each in edges),
            undirected=bool(self._tables.get("undirected", False)),
            nodes=self._joined(known, indices, counts),
            ignored=tuple(ignored),
        )

    def _indices(
        self,
        nodes: Mapping[str, Sequence["NodeTable | Path"]],
        edges: Sequence[EdgeTable],
        *,
        as_names: bool,
    ) -> dict[str, Index]:
        indices: dict[str, Index] = {}
        for name, tables in nodes.items():
            ends = [(each, "src") for each in edges if each.kind[0] == name]
            ends += [(each, "dst") for each in edges if each.kind[2] == name]
            given = [table for table in tables if isinstance(table, NodeTable)]
            options = replace(self._options, names=as_names) if as_names else self._options
            if as_names and tables and not any(table.id >= 0 for table in given):
                raise InputError(
                    f"{self._file}: the nodes of {name!r} have no ids where others have names; "
                    "give their table a column id"
                )
            index = _index(given, ends, options, relabel=not tables)
            if index is None:
                rows = _num_rows(_read_nodes(tables, None, options), tables)
                index = Numbers(np.arange(rows))
            indices[name] = index
        return indices

    def _joined(
        self, known: Mapping[str, Nodes], indices: Mapping[str, Index], counts: Mapping[str, int]
    ) -> Nodes:
        if len(known) == 1:
            ((name, nodes),) = known.items()
            index = indices[name]
            return replace(
                nodes, original_id=index.original if isinstance(index, Numbers) else None
            )
        joined = join_types(known, counts, str(self._file))
        tables = [index for index in indices.values() if isinstance(index, NameTable)]
        return replace(joined, names=partial(_chained, tables)) if tables else joined

    def _section(self, name: str) -> dict[str, Any]:
        section = self._tables.get(name, {})
        if not isinstance(section, dict) or not all(isinstance(v, dict) for v in section.values()):
            raise InputError(f"{self._file}: [{name}] must hold tables such as [{name}.NAME]")
        return section

    def _check(self, table: Mapping[str, Any], known: set[str], where: str) -> None:
        for key in table:
            if key not in known:
                place = f" in [{where}]" if where else ""
                raise InputError(
                    f"{self._file}: {key!r}{place} is none of {', '.join(sorted(known))}"
                )

    def _paths(self, table: Mapping[str, Any], where: str) -> tuple[Path, ...]:
        files = table.get("files", table.get("file"))
        files = [files] if isinstance(files, str) else files
        if not isinstance(files, list) or not files or not all(isinstance(f, str) for f in files):
            raise InputError(f'{self._file}: [{where}] needs files = ["FILE", ...]')
        return tuple(self._path / file for file in files)

    def _edges(self, name: str, table: dict[str, Any]) -> EdgeTable:
        where = f'edges."{name}"'
        kind = tuple(name.split(","))
        self._check(table, {"file", "files", "src", "dst", "weight"}, where)
        if len(kind) != 3 or not all(kind):
            raise InputError(f"{self._file}: [{where}] must be named SOURCE,RELATION,TARGET")
        named = [f"{role}={table[role]}" for role in ("src", "dst", "weight") if role in table]
        if named and not {"src", "dst"} <= set(table):
            raise InputError(f"{self._file}: [{where}] must name both src and dst, or neither")
        source, relation, target = kind
        paths = self._paths(table, where)
        return _edge_table((source, relation, target), paths, named or None, _USUAL)

    def _nodes(self, name: str, table: dict[str, Any]) -> tuple["NodeTable | Path", ...]:
        where = f"nodes.{name}"
        self._check(table, {"file", "files", "id", "label", "split", "features", "ignore"}, where)
        columns: dict[str, str] = {}
        for role in ("id", "label", "split", "ignore"):
            if role in table:
                value = table[role]
                columns[role] = "+".join(value) if isinstance(value, list) else str(value)
        features = table.get("features")
        features = [features] if isinstance(features, str) else features
        return tuple(open_nodes(path, columns, features) for path in self._paths(table, where))


def _chained(tables: Sequence[NameTable]) -> NameBlocks:
    for table in tables:
        yield from table.blocks()


def _typed_stream(
    edges: Mapping[str, EdgeTable],
    indices: Mapping[str, Index],
    ends: Mapping[str, tuple[TypeRange, TypeRange]],
) -> EdgeStream:
    for relation, table in edges.items():
        source, target = ends[relation]
        one = len(edges) == 1 and len(indices) == 1
        for chunk, _ in _chunks(table, indices[source.name], indices[target.name]):
            named = replace(chunk, relation="" if one else relation)
            yield named.between(source, target)
