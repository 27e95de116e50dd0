"""What a reader of any format hands over: where to find the edges and what is known of the nodes.

Edges and features are streams, since they may be larger than memory; labels and the split (at most
five bytes a node for single labels) are arrays.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcgnn.typing import Array, GlobalIndices

__all__ = [
    "CHUNK_EDGES",
    "ConvertOptions",
    "Duplicates",
    "EdgeChunk",
    "EdgeStream",
    "FeatureStream",
    "Features",
    "GraphSource",
    "NodeKind",
    "Nodes",
    "SelfLoops",
]

CHUNK_EDGES = 1 << 20
"""Edges that are handed over at once: large enough for NumPy, small beside any memory limit."""

SelfLoops = Literal["keep", "add", "drop"]
Duplicates = Literal["first", "sum", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """What the user may ask of a conversion, whatever the format.

    `dtype` is the type of stored features (None keeps that of the input, float32 for text); `split`
    names one of several splits, a folder for OGB and a column number for masks; `num_nodes` raises
    the number of nodes above the largest id of an edge list.
    """

    name: str | None = None
    undirected: bool = False
    reverse: bool = False
    self_loops: SelfLoops = "keep"
    duplicates: Duplicates = "first"
    relabel: bool = False
    num_nodes: int | None = None
    columns: tuple[str, ...] | None = None
    split: str | None = None
    dtype: Literal["float16", "float32", "float64"] | None = None
    memory_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class EdgeChunk:
    """Edges src -> dst in the order of the input; `locate(i)` names the place of edge i in it."""

    src: Array
    dst: Array
    locate: Callable[[int], str]
    weights: Array | None = None
    relation: str = ""


EdgeStream: TypeAlias = Generator[EdgeChunk, None, None]
FeatureStream: TypeAlias = Generator[Array, None, None]


@dataclass(frozen=True, slots=True)
class Features:
    """A stream of feature rows `[rows, num_columns]`; `locate(row)` names the place of a row."""

    num_columns: int
    dtype: np.dtype[np.generic]
    blocks: Callable[[], FeatureStream]
    locate: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A node type; its features have a row for each of its nodes, in the graph's order of nodes."""

    name: str
    num_nodes: int
    features: Features | None


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """What is known of the nodes: every array has one row for each of them.

    `labels` is int32[n] with -1 for none, or uint8[n, num_classes] when a node may have several. A
    graph with node types has `kinds` instead of `features`; `types` [n] are positions in them, None
    where the nodes of the first kind come first, then those of the second, and so on.
    """

    features: Features | None = None
    kinds: tuple[NodeKind, ...] = ()
    types: Array | None = None
    labels: Array | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    split: NDArray[np.uint8] | None = None
    original_id: GlobalIndices | None = None

    @property
    def multi_label(self) -> bool:
        """Whether a node may have several labels."""
        return self.labels is not None and self.labels.ndim == 2


@dataclass(frozen=True, kw_only=True)
class GraphSource:
    """One graph, ready to be streamed into a store.

    `edges()` starts a new pass over the edges. `num_nodes` None means one more than the largest id.
    `undirected` says that each edge stands for both directions; `ignored` lists what the input
    holds and the store has no place for.
    """

    path: Path
    edges: Callable[[], EdgeStream]
    inputs: tuple[Path, ...]
    relations: tuple[str, ...] = ("",)
    num_nodes: int | None = None
    weighted: bool = False
    undirected: bool = False
    nodes: Nodes = field(default_factory=Nodes)
    ignored: tuple[str, ...] = ()
