"""What a file must hold to be the store of a graph: names, types, versions.

    /adjacency[/RELATION]/{indptr, indices, weights}
    /nodes/{features, labels, split, original_id}
    /classes
    /partition/row_starts

A graph with node types is of another version, which older readers refuse. It has instead of the one
matrix of features

    /node_types/{names, counts}
    /nodes/{type, type_row}
    /nodes/features/TYPE

A graph whose nodes have names, or that has several splits or one with a name, is of a third
version, with node types or without them:

    /nodes/names/{offsets, bytes}
    /split_names
    /nodes/splits/NAME

`names` are sorted, see `graph.names`. `split_names` are all splits in order; `/nodes/split` is the
first of them and the others are in `splits`.

What a reader relies on is written down here once; `contents` checks it, `writer` follows it.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.format import check_text

FORMAT = "hpcgnn"
FORMAT_VERSION = 1
TYPED_FORMAT_VERSION = 2
NAMED_FORMAT_VERSION = 3
FORMAT_VERSIONS = (FORMAT_VERSION, TYPED_FORMAT_VERSION, NAMED_FORMAT_VERSION)

NAMES = "/nodes/names"
NAME_OFFSETS, NAME_BYTES = f"{NAMES}/offsets", f"{NAMES}/bytes"
SPLIT_NAMES = "/split_names"
DEFAULT_SPLIT = "default"
"""What the only split of a store is called that has no name of its own."""

FINGERPRINT_SCALARS = ("num_nodes", "num_classes", "multi_label", "undirected")
MAX_NODES = 1 << 62

INDPTR_DTYPE = np.dtype("<i8")
WEIGHTS_DTYPE = np.dtype("<f4")
FEATURE_DTYPES = (np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8"))
LABEL_DTYPE = np.dtype("<i4")
MULTI_LABEL_DTYPE = np.dtype("u1")
SPLIT_DTYPE = np.dtype("u1")
ID_DTYPE = np.dtype("<i8")
TYPE_DTYPE = np.dtype("u1")

MAX_NODE_TYPES = np.iinfo(TYPE_DTYPE).max + 1

RESERVED_NAMES = frozenset({".", ".."})
RESERVED_RELATIONS = RESERVED_NAMES | {"indptr", "indices", "weights"}
RELATION_BYTES = 200
"""The longest name of a relation or of a node type, both of which name links in the file."""


class Split(enum.IntEnum):
    """The role of a node in training."""

    NONE = 0
    TRAIN = 1
    VALID = 2
    TEST = 3


@dataclass(frozen=True, kw_only=True)
class StoreHeader:
    """What a store says about its graph as a whole.

    `num_classes` is 0 for a graph without labels. `undirected` promises that every relation equals
    its transpose. `node_types` are the names of types 0, 1, ..., none for a graph without types.
    `splits` are the names of the splits, none where there is one without a name or none at all.
    `provenance` must be JSON: command, names of source files, options.
    """

    name: str
    num_nodes: int
    num_classes: int = 0
    multi_label: bool = False
    undirected: bool = False
    class_names: tuple[str, ...] = ()
    node_types: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.num_nodes < MAX_NODES:
            raise InputError(
                f"graph {self.name!r} has {self.num_nodes} nodes; a store needs at least one node"
            )
        if self.num_classes < 0:
            raise InputError(f"graph {self.name!r}: num_classes is {self.num_classes}, not >= 0")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise InputError(
                f"graph {self.name!r}: {len(self.class_names)} class names for "
                f"{self.num_classes} classes; give one name for each class"
            )
        check_text("graph name", self.name)
        for name in self.class_names:
            check_text("class name", name)
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
            check_link_name("node type", name, RESERVED_NAMES)


def check_split(name: str) -> None:
    """Raise `InputError` where `name` cannot name a split."""
    check_link_name("split", name, RESERVED_NAMES)


def check_relation(name: str) -> None:
    """Raise `InputError` where `name` cannot name a relation; the empty name is the untyped one."""
    if name:
        check_link_name("relation", name, RESERVED_RELATIONS)


def check_link_name(what: str, name: str, reserved: frozenset[str]) -> None:
    """Raise `InputError` where `name` cannot name a link in the file."""
    check_text(what, name)
    if "/" in name or name in reserved or len(name.encode()) > RELATION_BYTES:
        raise InputError(
            f"{what} {name!r} cannot be stored: a name has no '/', at most {RELATION_BYTES} "
            f"bytes, and is none of {', '.join(sorted(reserved))}"
        )


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return the smallest of int32 and int64 that addresses `num_nodes` nodes."""
    return np.dtype("<i4") if num_nodes <= np.iinfo(np.int32).max else np.dtype("<i8")


def relation_path(relation: str) -> str:
    """Return the group that holds the datasets of `relation`."""
    return f"/adjacency/{relation}" if relation else "/adjacency"
