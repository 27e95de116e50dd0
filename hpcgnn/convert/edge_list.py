"""Edge lists: a line an edge, `src dst` or `src dst weight`, as SNAP and many others publish them.

A first line of words is taken for a header and left out. `columns` names what each field of a line
is when it is something else: src, dst, weight, relation, or skip.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.convert.relabel import compact, distinct_ids
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, EdgeStream, GraphSource, Nodes
from hpcgnn.convert.text import Table
from hpcgnn.convert.text_reader import first_fields, read_tables
from hpcgnn.errors import InputError

__all__ = ["EdgeText", "read"]

_ROLES = ("src", "dst", "weight", "relation", "skip")
_USUAL = {2: ("src", "dst"), 3: ("src", "dst", "weight")}


@dataclass(frozen=True, slots=True)
class EdgeText:
    """A text file of edges: the role of each column, and the number of its header line or 0."""

    path: Path
    roles: tuple[str, ...]
    header_line: int

    @classmethod
    def open(
        cls, path: Path, options: ConvertOptions, usual: Mapping[int, tuple[str, ...]]
    ) -> "EdgeText":
        """Look at the first line; `usual` gives the roles for each number of fields."""
        fields, line = first_fields(path)
        roles = options.columns or usual.get(len(fields))
        if roles is None:
            raise InputError(
                f"{path}: line {line} has {len(fields)} fields; "
                f"say what they are with --columns, a list of {', '.join(_ROLES)}"
            )
        check_roles(roles)
        is_header = all(not field[:1].isdigit() and field[:1] not in b"+-." for field in fields)
        return cls(path, roles, line if is_header else 0)

    @property
    def weighted(self) -> bool:
        """Whether a column holds weights."""
        return "weight" in self.roles

    @property
    def ignored(self) -> tuple[str, ...]:
        """What of the file is left out."""
        header = (f"header in line {self.header_line}",) if self.header_line else ()
        return header + tuple(f"column {i + 1}" for i, r in enumerate(self.roles) if r == "skip")

    def tables(self) -> Iterator[Table]:
        """Yield the lines of the file."""
        return read_tables(self.path, len(self.roles), skip_line=self.header_line)

    def edges(self, table: Table) -> EdgeChunk:
        """Return the edges of a table."""
        columns = [self.roles.index("src"), self.roles.index("dst")]
        src, dst = table.integers(sorted(columns)).T[np.argsort(columns)]
        weights = None
        if self.weighted:
            weights = table.floats([self.roles.index("weight")], np.float64)[:, 0]
        return EdgeChunk(src, dst, table.locate, weights)


def check_roles(roles: tuple[str, ...]) -> None:
    """Raise `InputError` unless `roles` names one source, one target and no unknown column."""
    for role in roles:
        if role not in _ROLES:
            raise InputError(f"--columns: {role!r} is none of {', '.join(_ROLES)}")
    for role in _ROLES[:-1]:
        if roles.count(role) > 1 or (role in ("src", "dst") and role not in roles):
            raise InputError(f"--columns: {role} occurs {roles.count(role)} times; name it once")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read an edge list without relations; raises `InputError`."""
    text = EdgeText.open(path, options, _USUAL)
    if "relation" in text.roles:
        raise InputError("--columns: an edge list has no relation; use --format typed-edge-list")
    ids = distinct_ids(text.edges(table) for table in text.tables()) if options.relabel else None

    def stream() -> EdgeStream:
        for table in text.tables():
            yield compact(text.edges(table), ids)

    return GraphSource(
        path=path,
        edges=stream,
        inputs=(path,),
        num_nodes=options.num_nodes if ids is None else len(ids),
        weighted=text.weighted,
        nodes=Nodes(original_id=ids),
        ignored=text.ignored,
    )
