"""What a reader of any format returns: a stream of edges, and the node data."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.convert.series import FieldSeries
from hpcgnn.errors import InputError
from hpcgnn.storage import MAX_NODE_TYPES, EdgeColumns, EdgeData, first_true
from hpcgnn.typing import Array, FloatArray, GlobalIndices

CHUNK_EDGES = 1 << 20
"""Edges in a chunk: enough for NumPy to be fast, and small compared with any memory limit."""

MOST_RELATIONS = 1 << 16

_NODES_PER_EDGE, _FEW_EDGES = 16, 1000

_FEW = 0.12
"""Largest share of non-zero features at which they are stored sparse by default."""

_GENERAL = frozenset({"name", "undirected", "reverse", "self_loops", "duplicates", "memory_bytes"})
"""Options that have an effect on all inputs."""

_FLAGS = {"split_files": "--split-file", "more_inputs": "more than one INPUT"}
"""Flags of options whose name does not match their flag, for messages."""

SelfLoops = Literal["keep", "add", "drop"]
Duplicates = Literal["first", "sum", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """Options of a conversion: the flags of `hpcgnn convert`, whose help describes each.

    `None` means the default. `ranks` are the ranks that read the input. Readers get options that
    apply only to some inputs with `take`, so that `check_used` can refuse those that had no effect.
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
            raise InputError("--label-separator: is empty; give the text that separates labels")

    def take(self, name: str) -> Any:
        """Return the option `name`, and mark it as used."""
        self.taken.add(name)
        return getattr(self, name)

    def take_split(self, names: Sequence[str], where: str) -> dict[str, str]:
        """Return the splits that --split selects among `names`, keyed by their names in the store.

        The name in the store of a single split is "". Raises `InputError` for a split that `where`
        does not have.
        """
        chosen = self.take("split")
        if not names or chosen not in (None, "all", *names):
            available = f"the splits {', '.join(names)}" if names else "no split"
            raise InputError(f"{where}: holds {available}; choose one with --split, or take all")
        if chosen in (None, "all"):
            return {name if len(names) > 1 else "": name for name in names}
        return {"": chosen}

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""
        defaults = {option.name: option.default for option in fields(self) if option.init}
        del defaults["ranks"]
        values = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in values.items() if value != defaults[name]}

    def check_used(self, origin: str) -> None:
        """Raise `InputError` for an option that no reader of `origin` has taken."""
        for name in self.given():
            if name not in _GENERAL | self.taken:
                needs = "give --nodes with a column graph, or " if name == "graphs" else ""
                flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
                raise InputError(f"{flag}: has no effect on {origin}; {needs}leave it out")


def locate_in(where: str, first: int, position: int) -> str:
    """Describe the place of entry `first + position` of an array."""
    return f"{where}, entry {first + position}"


@dataclass(frozen=True, slots=True)
class EdgeChunk:
    """Edges src -> dst in the order of the input; `locate(i)` describes where edge i is in it.

    All belong to one `relation`, or edge i to the relation with number `relation_ids[i]`. `end` is
    the order from which `GraphSource.edges_after` continues the stream.
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
        """Return the edges with these indices."""
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
        """Raise `InputError` for a relation id outside 0 to `count` - 1."""
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

        `kinds` are the node types that the ids number, "" if they number all nodes.
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
                of_type = f" of the node type {kind!r}" if kind else ""
                fault = f"{role} id {ids[position]} is outside 0..{limit}{of_type}"
                faults.append((position, fault))
        if faults:
            position, fault = min(faults)
            raise InputError(f"{self.locate(position)}: {fault}; {remedy}")

    def between(self, source: "TypeRange", target: "TypeRange") -> "EdgeChunk":
        """Convert ids within node types to ids of the whole graph; raises `InputError`."""
        self.check_ends(
            (source.num_nodes - 1, target.num_nodes - 1),
            "number the nodes of each type from 0",
            (source.name, target.name),
        )
        src, dst = self.src.astype(np.int64), self.dst.astype(np.int64)
        return replace(self, src=src + source.start, dst=dst + target.start)


@dataclass(frozen=True, slots=True)
class TypeRange:
    """Node type `name` with the nodes `start` to `start + num_nodes` - 1 of the graph."""

    name: str
    start: int
    num_nodes: int


EdgeStream: TypeAlias = Generator[EdgeChunk, None, None]
FeatureStream: TypeAlias = Generator[Array, None, None]
NameBlocks: TypeAlias = Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]


@dataclass(frozen=True, slots=True)
class Features:
    """A stream of feature blocks `[rows, num_columns]` from row `first` on.

    `locate(row)` describes where a row is in the input. `matrix` holds all rows as a SciPy CSR
    matrix, if they are in memory in that form. `density` is the share of non-zeros, None if finding
    it would take a pass over a file. `names` are the column names, if known.
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
        """Tell whether the features are stored as sparse rows."""
        if options.sparse_features == "auto":
            return self.density is not None and self.density <= _FEW
        return options.sparse_features == "always"


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A node type; its features have a row for each of its nodes, in the order of the graph."""

    name: str
    num_nodes: int
    features: Features | None


@dataclass(frozen=True, slots=True)
class Labels:
    """Node labels: classes int32[n] with -1 for none, or several per node uint8[n, num_classes]."""

    values: Array
    num_classes: int
    class_names: tuple[str, ...] = ()

    @property
    def multi_label(self) -> bool:
        """Whether a node may have several labels."""
        return self.values.ndim == 2


@dataclass(frozen=True, kw_only=True)
class NodeArrays:
    """Node data; every array has one row for each node.

    A graph with node types has `kinds` instead of `features`; `types` [n] are indices into `kinds`,
    None if nodes are ordered by kind. `splits` are keyed by name, "" for a single one. `names()`
    yields blocks of names as offsets int64[m + 1] and bytes. In a collection of graphs, `graph` [n]
    numbers each node's graph. A mesh has `positions` [n, D], the period of each axis in `box`
    (0: none), the node `weights` [n] (volumes), and a `series` of fields, also of edges.
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
    series: FieldSeries | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are present, by name; each has one row for each node."""
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
    It is `counted` if the input lists the nodes; if the input only states their number, edges and
    node data must make it plausible. Raises `InputError` for more relations or node types than a
    store can have. With `sample`, all ranks read the graph together, each its share: `sample()`
    yields some edges, all ranks call it and `edges()` and get equally many chunks, and `nodes` are
    those of `ranks.range_of`. Without it, the first rank reads all edges and nodes.
    `edges_after(order)` is a pass that begins at an order. `columns` describes the edge data of
    each relation; relations without data may be missing. `undirected` means that each edge stands
    for both directions. `name` is the input's name of the graph; `targets` (g, t) are numbers to
    predict for graphs, written to a file beside the store; `ignored` lists data that a store has no
    place for; `splits_from` names the files in which the format keeps splits. `edge_labels` names
    the classes or numbers of edges, `edge_feature_names` the columns of edge features.
    `keeps_places` makes stored edges keep their positions in the input, for fields of edges.
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
    nodes: NodeArrays = field(default_factory=NodeArrays)
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
    array: Any, where: str, shape: str, kinds: str = "biuf", expected: str = "numbers"
) -> None:
    """Raise `InputError` unless the dtype is one of `kinds` and the dimensions fit `shape`."""
    dimensions = 1 + shape.count(",")
    if len(array.shape) != dimensions or array.dtype.kind not in kinds or 0 in array.shape[1:]:
        raise InputError(
            f"{where} has shape {array.shape} and dtype {array.dtype}; expected {expected} "
            f"{shape}: convert it before saving"
        )


def check_count(count: int, most: int, unit: str, where: str) -> None:
    """Raise `InputError` if `count` exceeds `most`; called before anything is allocated."""
    if count > most:
        raise InputError(
            f"{where}: has {count} {unit}, and at most {most} can be stored; number them "
            "from 0 without gaps, or leave some out"
        )


def has_few_edges(num_nodes: int, num_edges: int) -> bool:
    """Tell whether a graph has so few edges that its number of nodes may be a mistake."""
    return num_nodes > _NODES_PER_EDGE * (num_edges + _FEW_EDGES)


def check_density(where: str, num_nodes: int, num_edges: int) -> None:
    """Raise `InputError` if an input with few edges claims to have many nodes."""
    if has_few_edges(num_nodes, num_edges):
        raise InputError(
            f"{where}: says that it has {num_nodes} nodes, with {num_edges} edges, and a store has "
            f"a row for each node; give --num-nodes {num_nodes} if that is right"
        )
