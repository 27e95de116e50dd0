"""Edge tables: the roles of columns, the relations that they name, and the stream of edges."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcgnn.comm import RankGroup
from hpcgnn.console import report
from hpcgnn.convert.divide_input import Rows, SharedFiles
from hpcgnn.convert.nodes import EdgeType
from hpcgnn.convert.read.files import decoded
from hpcgnn.convert.read.tables import (
    Kind,
    Table,
    TableFile,
    common_width,
    is_missing,
    numbers_of,
)
from hpcgnn.convert.source import EdgeChunk, EdgeStream
from hpcgnn.convert.tables.codes import NO_CLASS, READ_AS_CLASS, SIGNS, report_gaps, roles_of
from hpcgnn.convert.tables.ids import Column, Ids, Index, place_ids
from hpcgnn.errors import InputError, named
from hpcgnn.storage import EdgeColumns, EdgeData, Split, first_true
from hpcgnn.typing import Array

ROLES = ("src", "dst", "weight", "relation", "skip")
USUAL = {2: ("src", "dst"), 3: ("src", "dst", "weight")}
"""Roles of the columns in a table without a header, by the number of columns."""

USUAL_TYPED = {3: ("src", "dst", "relation"), 4: ("src", "dst", "relation", "weight")}
"""Roles of the columns in a table with relations and without a header."""

WEIGHTS = ("weight", "weights", "w")
_EDGE_NAMES = {
    "src": ("src", "source", "from", "head", "subject"),
    "dst": ("dst", "target", "to", "tail", "object"),
    "weight": WEIGHTS,
    "relation": ("relation", "rel", "predicate", "etype", "edge_type"),
}
_DICTIONARY = re.compile(r" \{('.*)?\}$")
"""End of lines to which networkx has appended the dict of an edge's data."""

_KNOWN_EDGES = frozenset(name for names in _EDGE_NAMES.values() for name in names)


@dataclass(frozen=True, slots=True)
class EdgeColumnNames:
    """Names of the columns of edge data: `features`, a `split`, and `labels` or `targets`.

    A single column of labels holds classes, several hold 0 and 1; targets are numbers.
    """

    features: Sequence[str] = ()
    labels: Sequence[str] = ()
    targets: Sequence[str] = ()
    split: str | None = None

    def __post_init__(self) -> None:
        if self.labels and self.targets:
            raise InputError("--edge-labels and --edge-targets: give edges classes or numbers")


@dataclass(frozen=True, slots=True)
class EdgeFile:
    """A file of edges: `columns` maps roles to columns, `features` are the feature columns.

    `part` is the split role of all its edges, if the file determines it; `targets` are columns of
    numbers, or of 0 and 1, to predict.
    """

    table: TableFile
    columns: Mapping[str, int]
    features: tuple[int, ...]
    part: Split | None = None
    targets: tuple[int, ...] = ()

    def kinds(self, roles: Mapping[str, Kind]) -> dict[int, Kind]:
        """Return the kinds that the columns of `roles`, features and targets are read as."""
        kinds = {self.columns[role]: kind for role, kind in roles.items() if role in self.columns}
        return kinds | self.table.feature_kinds((*self.features, *self.targets))

    def ignored(self) -> Iterator[str]:
        """Yield the header line and the columns that are not stored."""
        if self.table.header_line and not self.table.is_parquet:
            yield f"header in line {self.table.header_line}"
        for column in range(len(self.table.names)):
            if column not in {*self.columns.values(), *self.features, *self.targets}:
                yield self.table.describe(column)


@dataclass(frozen=True, slots=True)
class EdgeFiles:
    """Files of edges of one type; `labels` names the classes or targets of edges."""

    kind: EdgeType
    files: tuple[EdgeFile, ...]
    labels: tuple[str, ...] = ()
    are_numbers: bool = False

    @property
    def columns(self) -> EdgeColumns:
        """The edge data in these files; raises `InputError` if files differ in it."""
        first = self.files[0]
        width = common_width([(file.table, file.features) for file in self.files], "edges")
        weighted = any("weight" in file.columns for file in self.files)
        columns = EdgeColumns(weighted, first.part is not None or "split" in first.columns, width)
        if "label" in first.columns:
            return replace(columns, num_labels=1)
        if not first.targets:
            return columns
        targets = [(file.table, file.targets) for file in self.files]
        if common_width(targets, "edges") != len(self.labels):
            raise InputError(
                f"{first.table.path}: {' and '.join(self.labels)} to predict for edges: a column "
                "has vectors; give each number a column of its own"
            )
        dtype = "<f4" if self.are_numbers else "|u1"
        return replace(columns, num_labels=len(first.targets), label_dtype=dtype)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the feature columns; () if some are vectors."""
        first = self.files[0]
        return first.table.named(first.features, self.columns.num_features)

    def with_ids(self, *, named: bool) -> "EdgeFiles":
        """Return the table as one between nodes whose ids are names, or numbers."""
        files = (replace(f, table=replace(f.table, has_name_ids=named)) for f in self.files)
        return replace(self, files=tuple(files))

    def ends(self, *roles: str) -> list[Column]:
        """Return the columns of some roles in all files."""
        return [(file.table, file.columns[role]) for role in roles for file in self.files]

    def rows(
        self, roles: Mapping[str, Kind], ranks: RankGroup, *, sample: bool = False, after: int = 0
    ) -> Iterator[Rows]:
        """Yield rows of all files, or a `sample`, from the order `after` on; collective.

        They have the columns of features and targets, and those of `roles` that the files have.
        """
        files = SharedFiles([file.table for file in self.files], ranks)
        kinds = [file.kinds(roles) for file in self.files]

        def check(rows: Rows) -> None:
            for role in {"src", "dst"} & set(roles):
                ids = rows.table.texts if roles[role] == "text" else rows.table.integers
                ids(self.files[rows.file_number].columns[role])

        rows = files.sample(kinds) if sample else files.rows(kinds, after)
        return files.rounds(rows, kinds, check)

    def ignored(self) -> Iterator[str]:
        """Yield what is not stored of the files."""
        for file in self.files:
            yield from file.ignored()


def open_file(path: Path, *, header: bool | None = None) -> TableFile:
    """Open a file of edges, with `header` as in `TableFile.open`; raises `InputError`."""
    file = TableFile.open(path, _KNOWN_EDGES, header=header)
    if _DICTIONARY.search(" ".join(file.head[0])):
        raise InputError(
            f"{path}: its lines end with dictionaries in braces; give --format networkx, or write "
            "columns with networkx's write_edgelist(..., data=False)"
        )
    return file


def open_edges(
    kind: EdgeType,
    paths: Sequence[Path],
    columns: Sequence[str] | None,
    usual: Mapping[int, tuple[str, ...]],
    more: EdgeColumnNames = EdgeColumnNames(),
    section: str = "",
) -> EdgeFiles:
    """Open files as an edge table; raises `InputError` if the roles of columns are unclear.

    `columns` are roles in the order of columns, or "role=name"; None finds them by the header or by
    the number of columns (`usual`). Messages attribute these and the names of `more` columns to the
    `section` of a description file, or to command-line options if it is "".
    """
    by_name = columns is not None and any("=" in word for word in columns)
    files = []
    for path in paths:
        table = open_file(path, header=True if by_name else None)
        features = tuple(table.column(name, section or "--edge-features") for name in more.features)
        splits = [table.column(more.split, "--edge-split")] if more.split is not None else []
        labels = [table.column(name, "--edge-labels") for name in more.labels]
        targets = [table.column(name, "--edge-targets") for name in more.targets]
        predicted = {*labels, *targets}
        roles = _edge_roles(table, columns, usual, {*features, *splits, *predicted}, section)
        for role in {"weight", "relation"} & roles.keys():
            if roles[role] in predicted:
                remedy = "--format edge-list" if role == "relation" else "--columns without it"
                raise InputError(
                    f"{path}: {table.describe(roles[role])} is the {role} of edges, and a model "
                    f"would read what it is to predict; name another column, or give {remedy}"
                )
        if splits:
            roles["split"] = splits[0]
        if len(labels) == 1:
            roles["label"] = labels.pop()
        files.append(EdgeFile(table, roles, features, targets=(*labels, *targets)))
    _check_alike(files)
    first = files[0].table
    column = files[0].columns.get("weight", -1)
    named = columns_by_role(first, _EDGE_NAMES).get("weight", -1)
    if columns is None and column not in (-1, named):
        report(
            f"{first.path}: column {column + 1} (first value {first.head[0][column]}) is read as "
            "edge weights; if it is a time or another number, name the columns with --columns"
        )
    several = more.labels if len(more.labels) > 1 else more.targets
    return EdgeFiles(kind, tuple(files), tuple(several), bool(more.targets))


def _check_alike(files: Sequence[EdgeFile]) -> None:
    """Raise `InputError` for a file without the weights of others, or with columns out of order."""
    columns: dict[str, int] = {}
    for file in files:
        columns |= file.columns if file.table.header_line else {}
    for file in files:
        if "weight" not in file.columns and any("weight" in other.columns for other in files):
            raise InputError(
                f"{file.table.path}: has no weights, and other files of these edges do; add the "
                "column, or name the columns to read with --columns"
            )
        odd = [role for role, number in file.columns.items() if columns.get(role, number) != number]
        if odd and not file.table.header_line:
            raise InputError(
                f"{file.table.path}: has no header, and those of other files have the {odd[0]} in "
                "another column; give it their header"
            )


def _edge_roles(
    file: TableFile,
    columns: Sequence[str] | None,
    usual: Mapping[int, tuple[str, ...]],
    data: Collection[int],
    section: str,
) -> dict[str, int]:
    """Return the column of each role in a file of edges.

    `data` are the columns of features and splits, and those to predict. They are not weights,
    whatever their name: edges of weight 0 are left out, and a model would read what it predicts.
    """
    if columns is not None and any("=" in word for word in columns):
        pairs = [word.partition("=")[::2] for word in columns]
        _check_roles([role for role, _ in pairs])
        option = section or "--columns"
        return {role: file.column(name, option) for role, name in pairs if role != "skip"}
    if columns is None:
        named = columns_by_role(file, _EDGE_NAMES)
        if named.get("weight") in data:
            del named["weight"]
        if "src" in named and "dst" in named:
            return named if 4 in usual else {k: v for k, v in named.items() if k != "relation"}
        others = [number for number in range(len(file.names)) if number not in data]
        if (roles := usual.get(len(others))) is not None:
            return dict(zip(roles, others, strict=True))
    if columns is None:
        line = file.header_line or first_line(file)
        remedy = f"with --columns, a list of {', '.join(ROLES)}, or of src=NAME and the like"
        if section:
            remedy = f'in {section}, src = "NAME" and dst = "NAME"'
        fields = f"{len(file.names)} fields"
        if len(file.names) == 1:
            fields = "1 field (tabs, commas, semicolons or blanks separate fields)"
        raise InputError(f"{file.path}: line {line} has {fields}; say what they are {remedy}")
    _check_roles(columns)
    if len(columns) != len(file.names):
        raise InputError(
            f"{file.path}: has {len(file.names)} columns, and --columns names {len(columns)}; "
            "name each, with skip for those to leave out"
        )
    return {role: number for number, role in enumerate(columns) if role != "skip"}


def first_line(file: TableFile) -> int:
    """Return the number of the first line that is neither empty nor a comment."""
    for table in file.blocks({0: "text"}):
        return int(table.locate(0).rpartition(" ")[2])
    return 1


def columns_by_role(file: TableFile, names_of_roles: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the column of each role that one of its usual names in the header identifies."""
    lower = [name.lower() for name in file.names]
    columns = {}
    for role, names in names_of_roles.items():
        column = next((lower.index(name) for name in names if name in lower), None)
        if column is not None:
            columns[role] = column
    return columns


def names_relation(file: TableFile) -> bool:
    """Tell whether the header of a file names a column of relations."""
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


def _find_words(edges: EdgeFiles, role: str, path: Path, ranks: RankGroup) -> list[str]:
    """Return the distinct words in the column of a role, sorted as bytes; collective."""
    local_names: set[bytes] = set()
    for table, number, _ in edges.rows({role: "text"}, ranks):
        column = edges.files[number].columns[role]
        local_names.update(table.texts(column).unique().to_pylist())
    all_names = set[bytes]().union(*ranks.gather(local_names))
    with ranks.agree():
        if not all_names:
            raise InputError(f"{path}: the graph has no edges; check the input")
        return decoded(sorted(all_names), f"{path}: the {role} column")


_MOST_CLASSES = 1 << 20
_NEGATIVE = re.compile(r"-\d+")


def find_classes(edges: EdgeFiles, path: Path, ranks: RankGroup) -> EdgeFiles:
    """Return the table with the names of its edge classes, if it has any; collective.

    Integers are classes from 0 up to the largest; empty, -1 and nan mean no class.
    """
    if "label" not in edges.files[0].columns:
        return edges
    all_words = _find_words(edges, "label", path, ranks)
    words = [word for word in all_words if word not in NO_CLASS]
    if words == ["1"] and "-1" in all_words and ranks.rank == 0:
        report(f"{path}: --edge-labels: edges with -1 {SIGNS}")
    if (odd := list(filter(is_missing, words))) and ranks.rank == 0:
        report(f"{path}: --edge-labels: {named(odd)} {READ_AS_CLASS}")
    with ranks.agree():
        if not words:
            raise InputError(f"{path}: --edge-labels: no edge has a label; name another column")
        if "-1" in all_words and (negative := list(filter(_NEGATIVE.fullmatch, words))):
            raise InputError(
                f"{path}: --edge-labels: -1 is no label, but {negative[0]} would be a class; write "
                "classes as words, or as whole numbers from 0"
            )
        if all(word.isdecimal() and len(word) < 20 and str(int(word)) == word for word in words):
            highest = max(map(int, words))
            if highest >= _MOST_CLASSES:
                raise InputError(f"{path}: --edge-labels: class {highest}; number classes from 0")
            if ranks.rank == 0:
                report_gaps(f"{path}: --edge-labels", highest + 1, len(words))
            words = [str(number) for number in range(highest + 1)]
    return replace(edges, labels=tuple(words))


def find_relations(edges: EdgeFiles, path: Path, ranks: RankGroup) -> tuple[str, ...]:
    """Return the relations that edges name, sorted as numbers or as bytes; collective."""
    texts = _find_words(edges, "relation", path, ranks)
    if all(text.isdecimal() and len(text) < 20 for text in texts):
        texts.sort(key=lambda text: (int(text), text))
    return tuple(texts)


def _labels(edges: EdgeFiles, file: EdgeFile, table: Table) -> Array | None:
    """Return the labels of edges as in `EdgeData`; raises `InputError`."""
    if "label" in file.columns:
        return numbers_of(table.texts(file.columns["label"]), edges.labels)[:, None]
    if not file.targets or not table.num_rows:
        return None
    values = file.table.features(table, file.targets)
    if edges.are_numbers:
        return values
    if (row := first_true(((values != 0) & (values != 1)).any(axis=1))) is not None:
        raise InputError(
            f"{table.locate(row)}: several labels of an edge must be 0 or 1; correct it"
        )
    return values.astype(np.uint8)


def edge_chunks(
    edges: EdgeFiles,
    source: Index | None,
    target: Index | None,
    ranks: RankGroup,
    *,
    relations: Sequence[str] = (),
    sample: bool = False,
    after: int = 0,
) -> EdgeStream:
    """Yield the edges of a table with node numbers as ends and indices into `relations`.

    Collective on all ranks, which divide the edges: all from the order `after` on, or a `sample`.
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
        "label": "text",
        "split": "text",
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
        if "split" in roles:
            split = roles_of(table, roles["split"])
        end = order + table.num_rows
        numbers = order + np.arange(table.num_rows, dtype=np.uint64)
        data = EdgeData(features, split, numbers, _labels(edges, file, table))
        yield EdgeChunk(sources, targets, table.locate, weights, "", data, relation_ids, end)
