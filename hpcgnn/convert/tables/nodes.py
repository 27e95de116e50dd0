"""Node tables: find the columns of ids, labels, splits and features."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcgnn.console import report
from hpcgnn.convert.nodes import MASK_NAMES
from hpcgnn.convert.read.arrays import file_shape
from hpcgnn.convert.read.tables import TableFile, counts_columns, has_decimal_comma
from hpcgnn.convert.source import ConvertOptions
from hpcgnn.convert.tables.edges import columns_by_role
from hpcgnn.convert.tables.ids import Column
from hpcgnn.errors import InputError

NODE_ROLES = ("id", "graph", "label", "class", "split", "features", "ignore")
NODE_NAMES = {
    "id": ("id", "node_id", "node", "name", "nid"),
    "graph": ("graph", "graph_id"),
    "label": ("label", "labels", "class", "y"),
    "split": ("split", "set"),
}
_KNOWN_NODES = frozenset(name for names in NODE_NAMES.values() for name in names) | set(MASK_NAMES)


@dataclass(frozen=True, slots=True)
class NodeTable:
    """A file of nodes and its columns: ids, graphs, labels (-1: none), splits, masks, features.

    With `has_class_names` its labels are names, even if they look like numbers.
    """

    file: TableFile
    id: int
    graph: int
    label: int
    splits: Mapping[str, int]
    masks: Mapping[str, int]
    features: tuple[int, ...]
    has_class_names: bool = False

    @property
    def any_column(self) -> int:
        """One of the columns, for code that only counts or locates rows."""
        return next(iter(self.features), max(self.label, 0))

    @property
    def contents(self) -> frozenset[str]:
        """The kinds of data in the table; masks are the split without a name."""
        kinds = {"graph": self.graph >= 0, "label": self.label >= 0, "features": self.features}
        splits = [f"split {name}" for name in (*self.splits, *([""] if self.masks else []))]
        return frozenset([*(kind for kind, present in kinds.items() if present), *splits])

    def ignored(self) -> Iterator[str]:
        """Yield the columns that are left out, and a header of numbers."""
        if len(self.file.names) > 1 and counts_columns(self.file.names):
            yield f"{self.file.path.name}: header in line {self.file.header_line}"
        used = {
            self.id,
            self.graph,
            self.label,
            *self.splits.values(),
            *self.masks.values(),
            *self.features,
        }
        for column in range(len(self.file.names)):
            if column not in used:
                name = self.file.describe(column)
                hint = ""
                if any(self.file.lists[column : column + 1]):
                    hint = f" (a column of lists; --features {name} takes vectors of numbers)"
                elif any(has_decimal_comma(r[column]) for r in self.file.head if column < len(r)):
                    hint = " (numbers have a decimal point, not a comma)"
                yield f"{self.file.path.name}: {name}{hint}"


@dataclass(frozen=True, slots=True)
class NodeTables:
    """The tables of the nodes of one type, and a file with a matrix of features or None.

    `section` is the section of the description file that names them, "" for the command line.
    """

    paths: tuple[Path, ...] = ()
    tables: tuple[NodeTable, ...] = ()
    matrix: Path | None = None
    section: str = ""

    def __bool__(self) -> bool:
        return bool(self.paths)

    @property
    def ids(self) -> list[Column]:
        """The id columns of the tables that have one."""
        return [(table.file, table.id) for table in self.tables if table.id >= 0]

    @property
    def lack_of_ids(self) -> str:
        """The error message for the first table if ids are needed; "" without tables."""
        remedy = (
            f'in {self.section}, id = "NAME"' if self.section else "with --node-columns id=NAME"
        )
        faults = (f"{t.file.path}: has no column of ids; name it {remedy}" for t in self.tables)
        return next(faults, "")

    def with_ids(self, *, named: bool) -> "NodeTables":
        """Return the tables as those of nodes whose ids are names, or numbers."""
        tables = (replace(t, file=replace(t.file, has_name_ids=named)) for t in self.tables)
        return replace(self, tables=tuple(tables))

    def ignored(self) -> Iterator[str]:
        """Yield the columns that are left out."""
        for table in self.tables:
            yield from table.ignored()


def node_tables(options: ConvertOptions) -> NodeTables:
    """Return the node tables that `--nodes` names."""
    paths = [Path(text) for text in options.take("nodes")]
    if not paths:
        return NodeTables()
    columns = dict(word.partition("=")[::2] for word in options.take("node_columns") or ())
    features = options.take("features")
    return options.ranks.from_first(lambda: open_nodes(paths, columns, features))


def open_nodes(
    paths: Sequence[Path],
    columns: Mapping[str, str],
    features: Sequence[str] | None,
    section: str = "",
) -> NodeTables:
    """Open files as node tables; raises `InputError`.

    `columns` maps roles to the names of columns, `features` are those to use (None: all other
    columns of numbers). Messages attribute both to the `section` of a description file, or to
    command-line options if it is "".
    """
    matrices = [path for path in paths if path.suffix.lower() in (".npy", ".npz")]
    for path in matrices:
        file_shape(path)
    table_paths = [path for path in paths if path not in matrices]
    given = [name for text in columns.values() for name in text.split("+")]
    known = _KNOWN_NODES | {
        name.lower() for name in (*given, *(features or ())) if not name.isdecimal()
    }
    files = [_open_file(path, known) for path in table_paths]
    tables = tuple(_read_roles(file, columns, features, section, files) for file in files)
    if len(matrices) > 1 or (matrices and any(table.features for table in tables)):
        raise InputError(f"--nodes {matrices[0]}: features are given twice; keep one of them")
    return NodeTables(tuple(paths), tables, next(iter(matrices), None), section)


def _open_file(path: Path, known: frozenset[str]) -> TableFile:
    file = TableFile.open(path, known)
    if not file.header_line and len(file.head) > 1:
        first, below = file.head[:2]
        # Columns are numbered from 0, above numbers with decimal points.
        if len(first) > 2 and counts_columns(first) and any("." in field for field in below):
            return TableFile.open(path, known, header=True)
    return file


def _read_roles(
    file: TableFile,
    columns: Mapping[str, str],
    features: Sequence[str] | None,
    section: str,
    files: Sequence[TableFile],
) -> NodeTable:
    for role in columns:
        if role not in NODE_ROLES:
            raise InputError(f"--node-columns: {role!r} is none of {', '.join(NODE_ROLES)}")
    if "features" in columns:
        features = [*(features or ()), *columns["features"].split("+")]
    elsewhere = {name for other in files for name in other.names}

    def find(names: Iterable[str], option: str) -> list[int]:
        """Return the columns with these names, except names that only other files have."""
        own = (name for name in names if name in file.names or name not in elsewhere)
        return [file.column(name, option) for name in own]

    roles = columns_by_role(file, NODE_NAMES)
    option = section or "--node-columns"
    if has_class_names := "class" in columns:
        if "label" in columns:
            raise InputError(f"{option}: label and class name the same column; give one of them")
        columns = {**columns, "label": columns["class"]}
    for role in ("id", "graph", "label"):
        if role in columns and (numbers := find([columns[role]], option)):
            roles[role] = numbers[0]
        elif role in columns and role != "id":
            roles.pop(role, None)
    lower = [name.lower() for name in file.names]
    splits = {
        name.removeprefix("split").strip("_"): i
        for i, name in enumerate(lower)
        if name == "split" or name.startswith("split_")
    }
    if "split" in columns:
        split_names = columns["split"].split("+")
        split_columns = find(split_names, option)
        splits = {"" if len(split_names) == 1 else file.names[i]: i for i in split_columns}
    elif not splits and "split" in roles:
        splits = {"": roles["split"]}
    masks = {}
    if not splits and "split" not in columns:
        masks = {MASK_NAMES[name]: i for i, name in enumerate(lower) if name in MASK_NAMES}
    ignored = set(find(filter(None, columns.get("ignore", "").split("+")), option))
    if roles.get("graph") in ignored:
        del roles["graph"]
    if file.index >= 0 and file.index not in ignored:
        roles.setdefault("id", file.index)
    ids, graph, label = (roles.get(role, -1) for role in ("id", "graph", "label"))
    # A second split, in masks, is no feature.
    used = {ids, graph, label, *splits.values(), *ignored, file.index}
    used |= {i for i, name in enumerate(lower) if name in MASK_NAMES}
    if features is not None:
        chosen = tuple(find(features, section or "--features"))
    else:
        chosen = tuple(i for i, number in enumerate(file.numeric) if number and i not in used)
        if odd := [file.names[i] for i in chosen if lower[i] in NODE_NAMES["label"]]:
            remedy = "[" + ", ".join(map(repr, odd)) + "]" if section else "+".join(odd)
            report(
                f"{file.path}: features are also {', '.join(odd)}; leave out what tells the label, "
                f"{'with ignore = ' if section else 'with --node-columns ignore='}{remedy}"
            )
    return NodeTable(file, ids, graph, label, splits, masks, chosen, has_class_names)
