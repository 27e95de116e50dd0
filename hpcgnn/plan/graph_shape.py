"""The shape of a graph, for plans without the graph itself: node types and degree distributions.

A shape is a TOML file:

    name = "papers100M"
    classes = 172
    training = 0.0109                # share of training nodes among those of the first type
    [nodes.paper]
    count = 111_059_956
    features = 128
    [edges.cites]
    from = "paper"
    to = "paper"
    count = 1_615_685_872
    features = 0                     # of an edge, equal for all relations
    outside = 1.0                    # share of neighbours in a random part, not the node's own
    degrees = {exponent = 2.9, min = 1, max = 250_000}

`degrees` count edges in both directions; a directed relation has `out_degrees` of its sources and
`in_degrees` of its targets instead. Each is a power law as above, whose mean follows from the
counts, or the name of a file with a line ``degree,count`` for every degree.
"""

import io
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.config.file import dump_value
from hpcgnn.errors import InputError
from hpcgnn.storage import NodeType, read_whole, write_whole
from hpcgnn.typing import Array

_EXACT = 1024
"""In a power law, degrees above this share classes that are 2 % wide."""

_LARGEST = 10**9
"""Limit of nodes of a type: NumPy can draw without replacement only from fewer."""

_KEYS = ("from", "to", "count", "features", "outside", "degrees", "out_degrees", "in_degrees")


@dataclass(frozen=True, eq=False)
class EndDegrees:
    """The degrees of the nodes of a type in a relation, at one end of its edges.

    `degrees` (classes,) float64 ascend; `counts` (classes,) int64 are the nodes of each degree.
    """

    type: int
    degrees: Array
    counts: Array

    @property
    def total(self) -> float:
        """Number of ends of all nodes."""
        return float(self.degrees @ self.counts)


@dataclass(frozen=True, eq=False)
class RelationShape:
    """A relation.

    `sources` and `targets` are the ends at the nodes that are aggregated from, and at those that
    aggregate; the same object if edges go both ways. `outside` is the share of a node's neighbours
    that are in a random part; the others are in its own part. With 1, parts are random.
    """

    name: str
    sources: EndDegrees
    targets: EndDegrees
    outside: float
    num_features: int = 0

    @property
    def is_directed(self) -> bool:
        """Whether edges go in one direction only."""
        return self.sources is not self.targets


@dataclass(frozen=True, eq=False)
class EntryShape:
    """The entries of a matrix by which nodes aggregate from their neighbours in a relation.

    `rows` are the ends at the nodes that aggregate, `columns` those at their neighbours. `relation`
    is the relation's number if rows are by relation, else 0. `outside` is as in `RelationShape`.
    """

    rows: EndDegrees
    columns: EndDegrees
    relation: int
    outside: float


@dataclass(frozen=True, eq=False)
class Shape:
    """Sizes and degrees of a graph.

    `training` is the share of training nodes among those of the first type.
    """

    name: str
    num_classes: int
    training: float
    types: tuple[NodeType, ...]
    edges: tuple[RelationShape, ...]

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(kind.num_nodes for kind in self.types)

    @property
    def store_bytes(self) -> int:
        """Bytes of a store: int32 columns, int64 offsets, float32 features, labels, split, ids."""
        entries = 4 * sum(edge.targets.total * (1 + edge.num_features) for edge in self.edges)
        offsets = 8 * len(self.edges) * (self.num_nodes + 1)
        features = sum(4 * kind.num_features * kind.num_nodes for kind in self.types)
        # With several types, each node has its type and its row among them.
        bytes_of_node = 13 + 9 * (len(self.types) > 1)
        return round(entries + offsets + features) + bytes_of_node * self.num_nodes

    @classmethod
    def read(cls, path: Path) -> "Shape":
        """Return the shape in a file.

        Raises `InputError` if a key is missing, unknown or out of range, or if degrees and counts
        disagree.
        """
        table = ShapeTable(
            str(path), read_tables(path), ("name", "classes", "training", "nodes", "edges")
        )
        types = []
        for name, node in table.tables("nodes", ("count", "features")):
            count = node.get("count", int)
            if not 0 < count < _LARGEST:
                raise InputError(f"{node.name}: count must be from 1 to {_LARGEST - 1}")
            features = node.get("features", int, default=0)
            if not 0 <= features < _LARGEST:
                raise InputError(f"{node.name}: features must be from 0 to {_LARGEST - 1}")
            types.append(NodeType(name, count, features, np.dtype(np.float32)))
        edges = [_edges(path, name, entry, types) for name, entry in table.tables("edges", _KEYS)]
        if len({edge_type.num_features for edge_type in edges}) != 1:
            raise InputError(f"shape {path}: give all relations the same number of edge features")
        if len({edge_type.is_directed for edge_type in edges}) != 1:
            raise InputError(
                f"shape {path}: give all relations degrees, or all out_degrees and in_degrees"
            )
        training = table.get("training", int, float)
        if not 0 < training <= 1:
            raise InputError(f"shape {path}: training = {training} must be above 0 and at most 1")
        name = str(table.get("name", str))
        return cls(name, table.get("classes", int), training, tuple(types), tuple(edges))


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a shape; raises `InputError` for a file that is not TOML."""
    try:
        return tomllib.loads(read_whole(path, "give a shape").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"shape {path} is not valid TOML: {error}") from error


class ShapeTable:
    """A table of a shape; errors name it."""

    def __init__(self, name: str, values: Mapping[str, Any], keys: Collection[str]) -> None:
        self.name, self._values = name, values
        for key in values:
            if key not in keys:
                raise InputError(f"{name}: {key} is unknown; keys are {', '.join(keys)}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, *kinds: type, default: Any = None) -> Any:
        """Return a value of one of `kinds`; an integer becomes a float if float is among them."""
        value = self._values.get(key, default)
        fits = isinstance(value, kinds) and not isinstance(value, bool)
        if not fits:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise InputError(f"{self.name}: {key} must be a {expected}, not {value!r}")
        return float(value) if float in kinds else value

    def table(self, key: str, keys: Collection[str]) -> "ShapeTable":
        """Return the table `key` in this one."""
        return ShapeTable(f"{self.name}: {key}", self.get(key, dict), keys)

    def tables(self, key: str, keys: Collection[str]) -> list[tuple[str, "ShapeTable"]]:
        """Return the tables in table `key`, which must not be empty."""
        inner = self.get(key, dict)
        if not inner:
            raise InputError(f"{self.name}: {key} is empty")
        return [
            (name, ShapeTable(f"{self.name}: {key}.{name}", table, keys))
            for name, table in inner.items()
        ]


def _edges(path: Path, name: str, table: ShapeTable, types: list[NodeType]) -> RelationShape:
    numbers = {kind.name: number for number, kind in enumerate(types)}
    ends = []
    for key in ("from", "to"):
        kind = table.get(key, str)
        if kind not in numbers:
            raise InputError(f"{table.name}: {key} = {kind!r} is no node type of the shape")
        ends.append(numbers[kind])
    outside = table.get("outside", int, float, default=1.0)
    if not 0 < outside <= 1:
        raise InputError(f"{table.name}: outside = {outside} must be above 0 and at most 1")
    count, width = table.get("count", int, default=-1), table.get("features", int, default=0)
    if not 0 <= width < _LARGEST:
        raise InputError(f"{table.name}: features must be from 0 to {_LARGEST - 1}")

    def read(key: str, kind: int, num_ends: int) -> EndDegrees:
        source = table.get(key, str, dict)
        if isinstance(source, str):
            ends = _histogram(path.parent / source, kind)
        else:
            law = ShapeTable(f"{table.name}.{key}", source, ("exponent", "min", "max"))
            if num_ends < 0:
                raise InputError(f"{table.name}: a law needs the count of edges")
            ends = _power_law(law, kind, types[kind].num_nodes, num_ends)
        if int(ends.counts.sum()) != types[kind].num_nodes:
            raise InputError(
                f"{table.name}: {key} are of {ends.counts.sum()} nodes, but "
                f"{types[kind].name} has {types[kind].num_nodes}"
            )
        if num_ends >= 0 and abs(ends.total - num_ends) > 0.01 * num_ends + 1:
            raise InputError(f"{table.name}: {key} are of {ends.total:.0f} ends, not {num_ends}")
        return ends

    if "degrees" in table:
        if ends[0] != ends[1] or "out_degrees" in table or "in_degrees" in table:
            raise InputError(
                f"{table.name}: degrees are of edges both ways within a node type; give "
                "out_degrees and in_degrees instead"
            )
        both = read("degrees", ends[0], 2 * count if count >= 0 else -1)
        return RelationShape(name, both, both, outside, width)
    sources, targets = (
        read(key, kind, count)
        for key, kind in zip(("out_degrees", "in_degrees"), ends, strict=True)
    )
    if abs(sources.total - targets.total) > 0.01 * targets.total + 1:
        raise InputError(
            f"{table.name}: out_degrees give {sources.total:.0f} edges, in_degrees "
            f"{targets.total:.0f}; make them equal"
        )
    return RelationShape(name, sources, targets, outside, width)


def _histogram(path: Path, kind: int) -> EndDegrees:
    _, _, lines = read_whole(path, "write the degrees of the shape there").partition(b"\n")
    try:
        if not lines.strip():
            raise ValueError("the file has no lines of degrees")
        values = np.loadtxt(io.BytesIO(lines), np.int64, delimiter=",", ndmin=2)
    except ValueError as error:
        raise InputError(
            f"degrees {path}: write a header and lines of degree,count: {error}"
        ) from None
    if values.shape[1] != 2 or values.min(initial=0) < 0 or np.any(np.diff(values[:, 0]) <= 0):
        raise InputError(f"degrees {path}: write increasing degrees, each with its count of nodes")
    return EndDegrees(kind, values[:, 0].astype(np.float64), values[:, 1])


def _power_law(law: ShapeTable, kind: int, nodes: int, ends: int) -> EndDegrees:
    """Return the degrees of a power law ``(d - min + q)^-exponent``, whose q gives the mean."""
    exponent = law.get("exponent", int, float)
    low, high = law.get("min", int, default=1), law.get("max", int)
    mean = ends / nodes
    if not 0 <= low < high:
        raise InputError(f"{law.name}: min {low} must be from 0 to below max {high}")
    # Bounds of the classes: first single degrees, then ranges.
    bounds = np.arange(low, min(high, _EXACT) + 2, dtype=np.float64)
    if high > _EXACT:
        steps = np.arange(1, np.log(high / _EXACT) / np.log(1.02) + 1)
        bounds = np.append(bounds, np.unique(np.floor((_EXACT + 1) * 1.02**steps)))
        bounds = np.append(bounds[bounds <= high], high + 1)
    degrees, widths = (bounds[:-1] + bounds[1:] - 1) / 2, np.diff(bounds)

    def shares(shift: float) -> Array:
        weights = widths * (degrees - low + shift) ** -exponent
        return np.asarray(weights / weights.sum())

    # The mean rises with q.
    least, most = 1e-6, 1e9
    if not shares(least) @ degrees <= mean <= shares(most) @ degrees:
        raise InputError(
            f"{law.name}: no law of exponent {exponent} from {low} to {high} has mean {mean:.3f}"
        )
    for _ in range(100):
        middle = np.sqrt(least * most)
        least, most = (middle, most) if shares(middle) @ degrees < mean else (least, middle)
    counts = np.diff(np.round(np.cumsum(np.append(0, shares(least))) * nodes)).astype(np.int64)
    return EndDegrees(kind, degrees, counts)


def write_shape(path: Path, name: str, values: Mapping[str, Any], degrees: Array) -> None:
    """Write the shape of a graph of one node type, and a file with its degrees beside it.

    Raises `InputError` if `path` ends in .csv or a file cannot be written.

    `values` are classes, training, features and outside; `degrees` (nodes,) int64 count edges in
    both directions.
    """
    beside = path.with_suffix(".csv")
    if beside == path:
        raise InputError(f"--write-shape {path}: .csv is for the degrees beside it; name it .toml")
    distinct, counts = np.unique(degrees, return_counts=True)
    lines = [f"{degree},{count}\n" for degree, count in zip(distinct, counts, strict=True)]
    write_whole(beside, "".join(["degree,count\n", *lines]).encode(), streams=True)
    text = (
        f"name = {dump_value(name)}\n"
        f"classes = {values['classes']}\ntraining = {values['training']:.6g}\n\n"
        f"[nodes.node]\ncount = {len(degrees)}\nfeatures = {values['features']}\n\n"
        f'[edges.edge]\nfrom = "node"\nto = "node"\noutside = {values["outside"]:.6g}\n'
        f"degrees = {dump_value(beside.name)}\n"
    )
    write_whole(path, text.encode(), streams=True)
