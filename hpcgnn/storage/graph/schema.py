"""The file format of graph stores: datasets, types, versions.

    /adjacency[/RELATION]/{indptr, indices, weights, features, split, labels}
    /nodes/{features, labels, split, original_id}
    /classes
    /partition/row_starts

A graph with node types has version 2, which older readers refuse, and instead of the one feature
matrix

    /node_types/{names, counts}
    /nodes/{type, type_row}
    /nodes/features/TYPE

A graph with node names, several splits or a named split has version 3, with or without node types:

    /nodes/names/{offsets, bytes}
    /split_names
    /nodes/splits/NAME

`names` are sorted, see `graph.names`. `split_names` are all splits in order; `/nodes/split` is the
first of them and the others are in `splits`.

A store of many graphs has version 3 as well. It holds them as one graph, without edges between
them, and the number of each node's graph in

    /nodes/graph

Labels and splits of its nodes are those of their graph, or of the nodes themselves.

Edges may have features, a split (their role in training, validation or test where edges are
predicted), and labels, whose classes or numbers have names:

    /edge_labels

Columns of the feature matrix, or of all types' matrices one after the other, and of the features of
edges may have names:

    /feature_names
    /edge_feature_names

RELATION and TYPE are names escaped by `link_name`; a store with names that need it, or with
features, a split or labels of edges, has version 3 as well.

The graph of a mesh may have coordinates and weights of its nodes, and fields at T times, those of
all trajectories one after the other. It then has version 4:

    /nodes/{positions, weights}
    /fields/{times, trajectory_starts}
    /fields/values/NAME

A field is (T, n, F), in chunks of some rows of one step. A store with fields of edges (T, E, F), in
the order of the non-zeros of the only relation, has version 6 and may lack fields of nodes:

    /fields/edge_values/NAME

The attribute `box` of positions, `unit` and `components` of a field, and `unit` of the times are
part of the fingerprint.

In a graph without node types, features may be stored sparse. The file then has version 5, and
instead of the matrix

    /nodes/sparse_features/{indptr, indices, features}

with a row for each node, like an adjacency; `features` [nnz, 1] are the values, all ones if it is
missing. The attribute `columns` of the group is part of the fingerprint.

`contents` checks these rules and `writer` follows them.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.format import check_text

FORMAT = "hpcgnn"
FORMAT_VERSION = 1
TYPED_FORMAT_VERSION = 2
NAMED_FORMAT_VERSION = 3
FIELDS_FORMAT_VERSION = 4
SPARSE_FORMAT_VERSION = 5
EDGE_FIELDS_FORMAT_VERSION = 6
FORMAT_VERSIONS = range(FORMAT_VERSION, EDGE_FIELDS_FORMAT_VERSION + 1)

SPARSE_FEATURES = "\0features"
"""The name of sparse features among relations; no relation of a graph can have it."""

NAMES = "/nodes/names"
NAME_OFFSETS, NAME_BYTES = f"{NAMES}/offsets", f"{NAMES}/bytes"
SPLIT_NAMES = "/split_names"
POSITIONS, WEIGHTS = "/nodes/positions", "/nodes/weights"
TIMES, STARTS = "/fields/times", "/fields/trajectory_starts"
FIELD_VALUES, EDGE_VALUES = "/fields/values", "/fields/edge_values"
EDGE_LABELS = "/edge_labels"
FEATURE_NAMES, EDGE_FEATURE_NAMES = "/feature_names", "/edge_feature_names"
DEFAULT_SPLIT = "default"
"""The name of the only split of a store if the input did not name it."""

FINGERPRINT_SCALARS = ("num_nodes", "num_classes", "multi_label", "undirected")
MAX_NODES = 1 << 62
MAX_COLUMNS = (1 << 31) - 1
"""The most columns of sparse features: kernels index columns by int32."""

INDPTR_DTYPE = np.dtype("<i8")
WEIGHTS_DTYPE = np.dtype("<f4")
FEATURE_DTYPES = (np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8"))
LABEL_DTYPE = np.dtype("<i4")
MULTI_LABEL_DTYPE = np.dtype("u1")
NUMBER_DTYPE = np.dtype("<f4")
SPLIT_DTYPE = np.dtype("u1")
ID_DTYPE = np.dtype("<i8")
COORDINATE_DTYPE = np.dtype("<f8")
TYPE_DTYPE = np.dtype("u1")

MAX_NODE_TYPES = np.iinfo(TYPE_DTYPE).max + 1

RESERVED_NAMES = frozenset({".", ".."})
_RESERVED_LINKS = RESERVED_NAMES | {"indptr", "indices", "weights"}
_LINK_BYTES = 1000
"""The longest name of a link in the file."""


class Split(enum.IntEnum):
    """The role of a node in training."""

    NONE = 0
    TRAIN = 1
    VALID = 2
    TEST = 3


@dataclass(frozen=True, kw_only=True)
class StoreHeader:
    """The description of a whole graph in a store.

    `num_classes` is 0 for a graph without labels. `undirected` promises that every relation equals
    its transpose. `node_types` are the names of types 0, 1, ..., empty for a graph without types.
    `splits` are the names of the splits, empty for one unnamed split or no split. `edge_labels` are
    the names of the edges' classes or numbers, if they have labels; `feature_names` and
    `edge_feature_names` are names of feature columns, if known. `sparse_columns` is the number of
    columns of sparse features, 0 without. `provenance` must be JSON: command, names of source
    files, options.
    """

    name: str
    num_nodes: int
    num_classes: int = 0
    multi_label: bool = False
    undirected: bool = False
    class_names: tuple[str, ...] = ()
    node_types: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    edge_labels: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    edge_feature_names: tuple[str, ...] = ()
    sparse_columns: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.num_nodes < MAX_NODES:
            raise InputError(
                f"graph {self.name!r} has {self.num_nodes} nodes; a store needs at least one node"
            )
        if self.num_classes < 0:
            raise InputError(f"graph {self.name!r}: num_classes is {self.num_classes}, not >= 0")
        if not 0 <= self.sparse_columns <= MAX_COLUMNS:
            raise InputError(
                f"graph {self.name!r}: has {self.sparse_columns} columns of sparse features; at "
                f"most {MAX_COLUMNS} can be stored"
            )
        if self.sparse_columns and self.node_types:
            raise InputError(
                f"graph {self.name!r}: features of node types are not stored sparse; store them "
                "dense"
            )
        if self.class_names and len(self.class_names) != self.num_classes:
            raise InputError(
                f"graph {self.name!r}: {len(self.class_names)} class names for "
                f"{self.num_classes} classes; give one name for each class"
            )
        check_text("graph name", self.name)
        for name in self.class_names:
            check_text("class name", name)
        for name in self.edge_labels:
            check_text("label of edges", name)
        for name in (*self.feature_names, *self.edge_feature_names):
            check_text("name of a feature", name)
        self._check_node_types()
        if len(set(self.splits)) < len(self.splits):
            raise InputError(f"graph {self.name!r}: a split is named twice; give unique names")
        for name in self.splits:
            check_split(name)

    def _check_node_types(self) -> None:
        if len(self.node_types) > MAX_NODE_TYPES:
            raise InputError(
                f"graph {self.name!r} has {len(self.node_types)} node types; at most "
                f"{MAX_NODE_TYPES} can be stored"
            )
        if len(set(self.node_types)) < len(self.node_types):
            raise InputError(f"graph {self.name!r}: a node type is named twice; give unique names")
        for name in self.node_types:
            check_link_name("node type", name)


def check_split(name: str) -> None:
    """Raise `InputError` if `name` cannot name a split, and the folder of its runs."""
    check_link_name("split", name)
    if "/" in name or name in RESERVED_NAMES:
        fault = f"split {name!r} cannot be stored"
        raise InputError(f"{fault}; choose a name without '/' that is not '.' or '..'")


def check_link_name(what: str, name: str) -> None:
    """Raise `InputError` if `name` cannot name a link in the file, even escaped."""
    check_text(what, name)
    if len(link_name(name).encode()) > _LINK_BYTES:
        raise InputError(
            f"{what} {name[:40]!r}... cannot be stored: a name takes at most {_LINK_BYTES} bytes, "
            "three for each '/'"
        )


def link_name(name: str) -> str:
    """Return the escaped name of a relation or node type for a link; `name_of` reverses it.

    Escapes, as in URLs, replace slashes, percent signs that would begin an escape, and the first
    letter of reserved names.
    """
    if name in _RESERVED_LINKS:
        return f"%{ord(name[0]):02X}{name[1:]}"
    return re.sub(r"%(?=[0-9A-Fa-f]{2})|/", lambda match: f"%{ord(match[0]):02X}", name)


def name_of(link: str) -> str:
    """Return the name that a link stands for."""
    return unquote(link)


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return the smallest of int32 and int64 that addresses `num_nodes` nodes."""
    return np.dtype("<i4") if num_nodes <= np.iinfo(np.int32).max else np.dtype("<i8")


def sparse_scalars(columns: int) -> dict[str, int]:
    """Return the attribute of sparse features that goes into the fingerprint."""
    return {"sparse_columns": columns} if columns else {}


def relation_path(relation: str) -> str:
    """Return the group that holds the datasets of `relation`, or of `SPARSE_FEATURES`."""
    if relation == SPARSE_FEATURES:
        return "/nodes/sparse_features"
    return f"/adjacency/{link_name(relation)}" if relation else "/adjacency"


def field_path(name: str, *, of_edges: bool = False) -> str:
    """Return the path of a field's dataset."""
    return f"{EDGE_VALUES if of_edges else FIELD_VALUES}/{link_name(name)}"
