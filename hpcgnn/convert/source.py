"""What a reader of any format hands over: where edges are found and what is known of the nodes."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.convert.series import Series
from hpcgnn.errors import InputError
from hpcgnn.storage import MAX_NODE_TYPES, EdgeColumns, EdgeData, first_true
from hpcgnn.typing import Array, FloatArray, GlobalIndices

CHUNK_EDGES = 1 << 20
"""Edges that are handed over at once: large enough for NumPy, small beside any memory limit."""

MOST_RELATIONS = 1 << 16

_NODES_PER_EDGE, _FEW_EDGES = 16, 1000

_BLOCK_VALUES = 1 << 20

_FEW = 0.12
"""The share of features that are not zero up to which they are stored sparse by default."""

_GENERAL = frozenset({"name", "undirected", "reverse", "self_loops", "duplicates", "memory_bytes"})
"""Options that have an effect on all inputs."""

_FLAGS = {"split_files": "--split-file", "more_inputs": "more than one INPUT"}
"""What messages call options whose name is not that of a flag."""

SelfLoops = Literal["keep", "add", "drop"]
Duplicates = Literal["first", "sum", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """What the user may ask of a conversion, whatever the format: the flags of `hpcgnn convert`.

    What each means stands in hpcgnn/commands/convert.toml; `None` is its default. `ranks` are who
    reads. Options that only some inputs know are asked for with `take`, so that `check_used` can
    refuse those that nobody asked for.
    """

    name: str | None = None
    undirected: bool = False
    reverse: bool = False
    self_loops: SelfLoops = "keep"
    duplicates: Duplicates = "first"
    relabel: bool = False
    num_nodes: int | None = None
    columns: tuple[str, ...] | None = None
    more_inputs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    graphs: str | None = None
    node_columns: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    label_separator: str | None = None
    edge_features: tuple[str, ...] | None = None
    edge_labels: tuple[str, ...] | None = None
    edge_targets: tuple[str, ...] | None = None
    edge_split: str | None = None
    names: bool = False
    nodes_from_edges: bool = False
    split_files: tuple[str, ...] = ()
    root: str | None = None
    split: str | None = None
    random_split: tuple[float, ...] | None = None
    split_seed: int | None = None
    per_class: int | None = None
    positions: str | None = None
    box: tuple[str, ...] | None = None
    node_weights: str | None = None
    fields: tuple[str, ...] | None = None
    edge_fields: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    times: str | None = None
    trajectories: str | None = None
    series: str | None = None
    series_columns: tuple[str, ...] | None = None
    edge_series: str | None = None
    edge_series_columns: tuple[str, ...] | None = None
    fluxes: tuple[str, ...] | None = None
    dtype: Literal["float16", "float32", "float64"] | None = None
    sparse_features: Literal["auto", "always", "never"] = "auto"
    memory_bytes: int = 1 << 30
    ranks: RankGroup = ONE_PROCESS
    taken: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.label_separator == "":
            raise InputError("--label-separator: is empty; give what stands between two labels")

    def take(self, name: str) -> Any:
        """Return the option `name`, and note that it had its effect."""
        self.taken.add(name)
        return getattr(self, name)

    def take_split(self, names: Sequence[str], where: str) -> dict[str, str]:
        """Return the splits of those called `names` that are asked for, by their names in a store.

        A single one has none. Raises `InputError` for one that is not `where` splits are.
        """
        name_asked = self.take("split")
        if not names or name_asked not in (None, "all", *names):
            available = f"the splits {', '.join(names)}" if names else "no split"
            raise InputError(f"{where}: holds {available}; choose one with --split, or take all")
        if name_asked in (None, "all"):
            return {name if len(names) > 1 else "": name for name in names}
        return {"": name_asked}

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""
        defaults = {option.name: option.default for option in fields(self) if option.init}
        del defaults["ranks"]
        values = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in values.items() if value != defaults[name]}

    def check_used(self, origin: str) -> None:
        """Raise `InputError` for an option that a reader of `origin` should take and none took."""
        for name in self.given():
            if name not in _GENERAL | self.taken:
                needs = "give --nodes with a column graph, or " if name == "graphs" else ""
                flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
                raise InputError(f"{flag}: has no effect on {origin}; {needs}leave it out")


def locate_in(where: str, first: int, position: int) -> str:
    """Return the place of entry `first + position` of an array."""
    return f"{where}, entry {first + position}"


@dataclass(frozen=True, slots=True)
class EdgeChunk:
    """Edges src -> dst in the order of the input; `locate(i)` names the place of edge i in it.

    They belong to one `relation`, or to those of the graph with the numbers `relation_ids`. `end`
    is the order of what follows, where the stream can go on from there.
    """

    src: Array
    dst: Array
    locate: Callable[[int], str]
    weights: Array | None = None
    relation: str = ""
    data: EdgeData = field(default_factory=EdgeData)
    relation_ids: Array | None = None
    end: int = 0

    def take(self, edges: Array) -> "EdgeChunk":
        """Return the edges at some places."""
        columns = (self.weights, self.relation_ids)
        weights, relation_ids = (None if column is None else column[edges] for column in columns)
        return replace(
            self,
            src=self.src[edges],
            dst=self.dst[edges],
            locate=lambda edge: self.locate(int(edges[edge])),
            weights=weights,
            data=self.data.take(edges),
            relation_ids=relation_ids,
        )

    def check_relations(self, count: int) -> None:
        """Raise `InputError` for a number of a relation that is none of `count`."""
        ids = self.relation_ids
        if ids is not None and (edge := first_true((ids < 0) | (ids >= count))) is not None:
            raise InputError(
                f"{self.locate(edge)}: relation {ids[edge]} is outside 0..{count - 1}; correct "
                "it or name more relations"
            )

    def check_ends(
        self, limits: tuple[int, int], remedy: str, kinds: tuple[str, str] = ("", "")
    ) -> None:
        """Raise `InputError` for the first edge with an id outside 0 to `limits` (source, target).

        `kinds` are the node types that the ids count, empty where they count all nodes.
        """
        faults = []
        ends = (("source", self.src), ("target", self.dst))
        for (role, ids), limit, kind in zip(ends, limits, kinds, strict=True):
            if ids.dtype.kind not in "iu":
                raise InputError(
                    f"{self.locate(0)}: {role} ids have dtype {ids.dtype}; "
                    "node ids are whole numbers"
                )
            if ids.size and (ids.min() < 0 or ids.max() > limit):
                position = int(np.argmax((ids < 0) | (ids > limit)))
                whose = f" of the node type {kind!r}" if kind else ""
                fault = f"{role} id {ids[position]} is outside 0..{limit}{whose}"
                faults.append((position, fault))
        if faults:
            position, fault = min(faults)
            raise InputError(f"{self.locate(position)}: {fault}; {remedy}")

    def between(self, source: "TypeRange", target: "TypeRange") -> "EdgeChunk":
        """Return edges between nodes numbered by type as edges of the whole graph; `InputError`."""
        self.check_ends(
            (source.num_nodes - 1, target.num_nodes - 1),
            "number the nodes of each type from 0",
            (source.name, target.name),
        )
        src, dst = self.src.astype(np.int64), self.dst.astype(np.int64)
        return replace(self, src=src + source.start, dst=dst + target.start)


@dataclass(frozen=True, slots=True)
class TypeRange:
    """The nodes `start` to `start + num_nodes` - 1 of the graph are those of the type `name`."""

    name: str
    start: int
    num_nodes: int


EdgeStream: TypeAlias = Generator[EdgeChunk, None, None]
FeatureStream: TypeAlias = Generator[Array, None, None]
NameBlocks: TypeAlias = Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]


@dataclass(frozen=True, slots=True)
class Features:
    """A stream of feature rows `[rows, num_columns]` from row `first` on; `locate` names places.

    `matrix` is all of them as CSR of SciPy, where they are in memory as that; `density` the share
    that is not zero, None where it takes a pass over a file to know it. `names` are those of the
    columns, where they are known.
    """

    num_columns: int
    dtype: np.dtype[np.generic]
    blocks: Callable[[], FeatureStream]
    locate: Callable[[int], str]
    first: int = 0
    matrix: Any = None
    density: float | None = None
    names: tuple[str, ...] = ()

    def is_sparse(self, options: ConvertOptions) -> bool:
        """Return whether they are stored as sparse rows."""
        if options.sparse_features == "auto":
            return self.density is not None and self.density <= _FEW
        return options.sparse_features == "always"

    @classmethod
    def of_matrix(
        cls,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        blocks: Callable[[int], FeatureStream],
        where: str,
        own_rows: range = range(0),
    ) -> "Features":
        """Return the features of a matrix called `where`; `blocks(rows)` yields so many at once.

        They begin with the first of a rank's `own_rows`.
        """
        columns = shape[1]
        rows = max(1, _BLOCK_VALUES // max(1, columns))
        locate = partial("{}, row {}".format, where)
        return cls(columns, dtype, partial(blocks, rows), locate, own_rows.start)


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A node type; its features have a row for each of its nodes, in the graph's order of nodes."""

    name: str
    num_nodes: int
    features: Features | None


@dataclass(frozen=True, slots=True)
class Labels:
    """What nodes are labelled with: int32[n], -1 for none, or uint8[n, num_classes] of several."""

    values: Array
    num_classes: int
    class_names: tuple[str, ...] = ()

    @property
    def multi_label(self) -> bool:
        """Whether a node may have several labels."""
        return self.values.ndim == 2


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """What is known of the nodes: every array has one row for each of them.

    A graph with node types has `kinds` instead of `features`; `types` [n] are positions in them,
    None where the nodes of the first kind come first, and so on. `splits` are by name, "" for a
    single one; `names()` yields names, some at a time, as offsets int64[m + 1] and bytes. `graph`
    are the numbers of the nodes' graphs, where these are many. A mesh has `positions` [n, D], whose
    axes have the periods `box` (0: none), `weights` [n] of its nodes (volumes), and a `series` of
    fields, of edges too.
    """

    features: Features | None = None
    kinds: tuple[NodeKind, ...] = ()
    types: Array | None = None
    labels: Labels | None = None
    splits: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    original_id: GlobalIndices | None = None
    graph: GlobalIndices | None = None
    names: Callable[[], NameBlocks] | None = None
    positions: FloatArray | None = None
    box: tuple[float, ...] = ()
    weights: FloatArray | None = None
    series: Series | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the arrays with a row for each node that are there, by name."""
        labels = None if self.labels is None else self.labels.values
        arrays = {
            "types": self.types,
            "labels": labels,
            "original_id": self.original_id,
            "graph": self.graph,
            "positions": self.positions,
            "weights": self.weights,
        }
        arrays |= {f"split {name}".rstrip(): split for name, split in self.splits.items()}
        return {name: array for name, array in arrays.items() if array is not None}


@dataclass(frozen=True, kw_only=True)
class GraphSource:
    """One graph, ready to be streamed into a store.

    `edges()` starts a new pass over the edges; `num_nodes` None means one more than the largest id.
    It is `counted` where the input lists the nodes; where it only says the number, edges and node
    data must explain it. Raises `InputError` for more relations or node types than a store has.
    `sample()` yields some edges of a graph that all ranks read together, each its share: all call
    both, and get equally many chunks, and `nodes` are those of `ranks.range_of`; without it the
    first rank reads all, and the nodes are all. `edges_after(order)` is a pass over what follows.
    `columns` are what the edges of each relation have, nothing where it is missing. `undirected`
    says that each edge stands for both directions; `name` is what the input calls the graph;
    `targets` (g, t) are numbers to predict for graphs, which stand in a file beside the store;
    `ignored` lists what the input holds and the store has no place for; `splits_from` names the
    files in which the format has splits; `edge_labels` the classes or numbers that edges have, and
    `edge_feature_names` the columns of their features.
    `keeps_places` says that stored edges tell their places in the input, for fields of edges.
    """

    path: Path
    edges: Callable[[], EdgeStream]
    inputs: tuple[Path, ...]
    relations: tuple[str, ...] = ("",)
    num_nodes: int | None = None
    counted: bool = False
    columns: Mapping[str, EdgeColumns] = field(default_factory=dict)
    name: str = ""
    undirected: bool = False
    nodes: Nodes = field(default_factory=Nodes)
    targets: FloatArray | None = None
    ignored: tuple[str, ...] = ()
    sample: Callable[[], EdgeStream] | None = None
    edges_after: Callable[[int], EdgeStream] | None = None
    splits_from: str = ""
    edge_labels: tuple[str, ...] = ()
    edge_feature_names: tuple[str, ...] = ()
    keeps_places: bool = False

    def __post_init__(self) -> None:
        check_count(len(self.relations), MOST_RELATIONS, "relations", str(self.path))
        check_count(len(self.nodes.kinds), MAX_NODE_TYPES, "node types", str(self.path))


def check_array(
    array: Any, where: str, shape: str, kinds: str = "biuf", due: str = "numbers"
) -> None:
    """Raise `InputError` for a dtype not of `kinds`, or dimensions other than `shape` names."""
    dimensions = 1 + shape.count(",")
    if len(array.shape) != dimensions or array.dtype.kind not in kinds or 0 in array.shape[1:]:
        raise InputError(
            f"{where} has shape {array.shape} and dtype {array.dtype} where {due} {shape} are due; "
            "convert it before saving"
        )


def check_count(count: int, most: int, unit: str, where: str) -> None:
    """Raise `InputError` for more than the `most` there may be, before any is made."""
    if count > most:
        raise InputError(
            f"{where}: there are {count} {unit}, and at most {most} can be stored; number them "
            "from 0 without gaps, or leave some out"
        )


def has_few_edges(num_nodes: int, num_edges: int) -> bool:
    """Tell whether a graph has too few edges for its nodes to be believed without more."""
    return num_nodes > _NODES_PER_EDGE * (num_edges + _FEW_EDGES)


def check_density(where: str, num_nodes: int, num_edges: int) -> None:
    """Raise `InputError` where a number of nodes is said, and few edges are there."""
    if has_few_edges(num_nodes, num_edges):
        raise InputError(
            f"{where}: says that it has {num_nodes} nodes, in {num_edges} edges, and a store has a "
            f"row for each; give --num-nodes {num_nodes} if that is right"
        )
