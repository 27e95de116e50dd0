"""Tables of edges: which column is what, the relations that they name, and their edges."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.comm import RankGroup
from hpcgnn.convert.nodes import EdgeType
from hpcgnn.convert.pieces import Rows, SharedFiles
from hpcgnn.convert.read.files import decoded
from hpcgnn.convert.read.tables import Kind, TableFile, numbers_of
from hpcgnn.convert.source import EdgeChunk, EdgeStream
from hpcgnn.convert.tables.ids import Column, Ids, Index, place_ids
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeColumns, EdgeData, Split

ROLES = ("src", "dst", "weight", "relation", "skip")
USUAL = {2: ("src", "dst"), 3: ("src", "dst", "weight")}
"""What the columns are without a header, by their number."""

USUAL_TYPED = {3: ("src", "dst", "relation"), 4: ("src", "dst", "relation", "weight")}
"""The same where they name relations."""

_EDGE_NAMES = {
    "src": ("src", "source", "from", "head", "subject"),
    "dst": ("dst", "target", "to", "tail", "object"),
    "weight": ("weight", "weights", "w"),
    "relation": ("relation", "rel", "predicate", "etype", "edge_type"),
}
KNOWN_EDGES = frozenset(name for names in _EDGE_NAMES.values() for name in names)


@dataclass(frozen=True, slots=True)
class EdgeFile:
    """A file of edges: the `columns` of roles, and those of `features`.

    `part` is the role of its edges where links are predicted.
    """

    table: TableFile
    columns: Mapping[str, int]
    features: tuple[int, ...]
    part: Split | None = None

    def kinds(self, roles: Mapping[str, Kind]) -> dict[int, Kind]:
        """Return how the columns of `roles` and of features are read."""
        kinds = {self.columns[role]: kind for role, kind in roles.items() if role in self.columns}
        return kinds | self.table.feature_kinds(self.features)

    def ignored(self) -> Iterator[str]:
        """Yield what is left out."""
        if self.table.header_line and not self.table.is_parquet:
            yield f"header in line {self.table.header_line}"
        for column in range(len(self.table.names)):
            if column not in {*self.columns.values(), *self.features}:
                yield self.table.describe(column)


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """Files of edges of one type."""

    kind: EdgeType
    files: tuple[EdgeFile, ...]

    @property
    def columns(self) -> EdgeColumns:
        """What the edges have; raises `InputError` where files differ in it."""
        first = self.files[0]
        widths = [file.table.width(file.features) if file.features else 0 for file in self.files]
        for file, width in zip(self.files, widths, strict=True):
            if width != widths[0]:
                raise InputError(
                    f"{file.table.path}: has {width} columns of features where "
                    f"{first.table.path} has {widths[0]}; give all edges the same"
                )
        weighted = any("weight" in file.columns for file in self.files)
        return EdgeColumns(weighted, first.part is not None, widths[0])

    def ends(self, *roles: str) -> list[Column]:
        """Return the columns of some roles, of all files."""
        return [(file.table, file.columns[role]) for role in roles for file in self.files]

    def rows(
        self, roles: Mapping[str, Kind], ranks: RankGroup, *, sample: bool = False, after: int = 0
    ) -> Iterator[Rows]:
        """Yield rows of all files, or a `sample`, from the order `after` on; for all ranks.

        They have columns of features, and those of `roles` that the files have.
        """
        files = SharedFiles([file.table for file in self.files], ranks)

        def kinds(number: int) -> dict[int, Kind]:
            return self.files[number].kinds(roles)

        def check(rows: Rows) -> None:
            for role in {"src", "dst"} & set(roles):
                ids = rows.table.texts if roles[role] == "text" else rows.table.integers
                ids(self.files[rows.file_number].columns[role])

        rows = files.sample(kinds) if sample else files.rows(kinds, after)
        return files.rounds(rows, kinds, check)

    def ignored(self) -> Iterator[str]:
        """Yield what of the files is left out."""
        for file in self.files:
            yield from file.ignored()


def open_edges(
    kind: EdgeType,
    paths: Sequence[Path],
    columns: Sequence[str] | None,
    usual: Mapping[int, tuple[str, ...]],
    features: Sequence[str] = (),
    section: str = "",
) -> EdgeTable:
    """Return the table of some files; raises `InputError` where its columns cannot be told.

    `columns` are the roles in their order or "role=name", None to find out by the header or by
    their number (`usual`); `features` are names of columns. Both are of a `section` of a file where
    one is given, and of the command otherwise.
    """
    by_name = columns is not None and any("=" in word for word in columns)
    files = []
    for path in paths:
        table = TableFile.open(path, KNOWN_EDGES, header=True if by_name else None)
        numbers = tuple(table.column(name, section or "--edge-features") for name in features)
        roles = _edge_places(table, columns, usual, len(features), section)
        files.append(EdgeFile(table, roles, numbers))
    return EdgeTable(kind, tuple(files))


def _edge_places(
    file: TableFile,
    columns: Sequence[str] | None,
    usual: Mapping[int, tuple[str, ...]],
    num_features: int,
    section: str,
) -> dict[str, int]:
    """Return the places of the roles of a file of edges."""
    if columns is not None and any("=" in word for word in columns):
        pairs = [word.partition("=")[::2] for word in columns]
        _check_roles([role for role, _ in pairs])
        option = section or "--columns"
        return {role: file.column(name, option) for role, name in pairs if role != "skip"}
    if columns is None:
        named = named_places(file, _EDGE_NAMES)
        if "src" in named and "dst" in named:
            return named if 4 in usual else {k: v for k, v in named.items() if k != "relation"}
        columns = usual.get(len(file.names) - num_features)
        if columns is not None and num_features:
            columns = (*columns, *["skip"] * num_features)
    if columns is None:
        line = file.header_line or first_line(file)
        remedy = f"with --columns, a list of {', '.join(ROLES)}, or of src=NAME and the like"
        if section:
            remedy = f'in {section}, src = "NAME" and dst = "NAME"'
        raise InputError(
            f"{file.path}: line {line} has {len(file.names)} fields; say what they are {remedy}"
        )
    _check_roles(columns)
    if len(columns) != len(file.names):
        raise InputError(
            f"{file.path}: has {len(file.names)} columns where --columns names {len(columns)}; "
            "name each, with skip for those to leave out"
        )
    return {role: number for number, role in enumerate(columns) if role != "skip"}


def first_line(file: TableFile) -> int:
    """Return the number of the first line that is neither empty nor a comment."""
    for table in file.blocks({0: "text"}):
        return int(table.locate(0).rpartition(" ")[2])
    return 1


def named_places(file: TableFile, names_of_roles: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Return the places of columns by the names that roles go by."""
    lower = [name.lower() for name in file.names]
    columns = {}
    for role, names in names_of_roles.items():
        column = next((lower.index(name) for name in names if name in lower), None)
        if column is not None:
            columns[role] = column
    return columns


def names_relation(file: TableFile) -> bool:
    """Tell whether the header of a file has a name for relations."""
    return bool({name.lower() for name in file.names} & set(_EDGE_NAMES["relation"]))


def _check_roles(roles: Sequence[str]) -> None:
    """Raise `InputError` unless `roles` names one source, one target and no unknown column."""
    for role in roles:
        if role not in ROLES:
            raise InputError(f"--columns: {role!r} is none of {', '.join(ROLES)}")
    for role in ROLES[:-1]:
        count = list(roles).count(role)
        if count > 1 or (role in ("src", "dst") and count == 0):
            raise InputError(f"--columns: {role} occurs {count} times; name it once")


def find_relations(edges: EdgeTable, path: Path, ranks: RankGroup) -> tuple[str, ...]:
    """Return the relations that edges name, sorted as numbers or as bytes; for all ranks."""
    own_names: set[bytes] = set()
    for table, number, _ in edges.rows({"relation": "text"}, ranks):
        column = edges.files[number].columns["relation"]
        own_names.update(table.texts(column).unique().to_pylist())
    all_names = set[bytes]().union(*ranks.gather(own_names))
    if not all_names:
        raise InputError(f"{path}: the graph has no edges; check the input")
    texts = decoded(sorted(all_names), f"{path}: the relation column")
    if all(text.isdecimal() for text in texts):
        texts.sort(key=lambda text: (int(text), text))
    return tuple(texts)


def edge_chunks(
    edges: EdgeTable,
    source: Index | None,
    target: Index | None,
    ranks: RankGroup,
    *,
    relations: Sequence[str] = (),
    sample: bool = False,
    after: int = 0,
) -> EdgeStream:
    """Yield the edges of a table with the places of their ends, and numbers of their `relations`.

    For all ranks, which divide them; all from the order `after` on, or a `sample`.
    """
    columns = [
        (
            Ids(file.columns["src"], source, "source"),
            Ids(file.columns["dst"], target, "target"),
        )
        for file in edges.files
    ]
    src, dst = columns[0]
    kinds: dict[str, Kind] = {
        "src": src.kind,
        "dst": dst.kind,
        "weight": "number",
        "relation": "text",
    }
    blocks = edges.rows(kinds, ranks, sample=sample, after=after)
    for (table, number, order), (sources, targets) in place_ids(blocks, columns):
        file = edges.files[number]
        roles = file.columns
        weights = table.numbers(roles["weight"]) if "weight" in roles else None
        features = split = relation_ids = None
        if "relation" in roles:
            relation_ids = numbers_of(table.texts(roles["relation"]), relations)
        if file.features and table.num_rows:
            features = file.table.features(table, file.features)
        if file.part is not None:
            split = np.full(table.num_rows, file.part, np.uint8)
        end = order + table.num_rows
        data = EdgeData(features, split, order + np.arange(table.num_rows, dtype=np.uint64))
        yield EdgeChunk(sources, targets, table.locate, weights, "", data, relation_ids, end)
