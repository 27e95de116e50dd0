"""The store of program graphs: many small graphs in one HDF5 file.

    /graphs           the index, one row per graph (`GRAPH_DTYPE`), grouped by split
    /subtoken_counts  uint8 per node      /subtokens  uint16, node after node
    /edge_types       uint8 per edge      /edges      int32 source, target in the graph
    /candidates       `CANDIDATE_DTYPE`   /files      names of the source files

A range of graphs is a range of rows of every dataset, so a rank reads its shard in slabs; in memory
it is an `InstanceBatch`.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.format import check_text, first_true
from hpcgnn.storage.graph.blocks import row_positions
from hpcgnn.typing import Array, Offsets

INSTANCE_FORMAT = "hpcgnn program graphs"
INSTANCE_VERSION = 1


class InstanceSplit(enum.IntEnum):
    """The role of a graph; packages of UNSEEN graphs have no graphs in other splits."""

    TRAIN = 1
    VALID = 2
    TEST = 3
    UNSEEN = 4


GRAPH_DTYPE = np.dtype(
    [
        ("num_nodes", "<i4"),
        ("num_edges", "<i4"),
        ("num_subtokens", "<i4"),
        ("num_candidates", "<i4"),
        ("label", "<i4"),
        ("bandwidth", "<i4"),
        ("original_nodes", "<i4"),
        ("file", "<i4"),
        ("line", "<i4"),
        ("split", "u1"),
    ]
)
"""A graph: its number of rows in the other arrays, the right candidate, bandwidth, and origin.

`original_nodes` counts nodes before the reduction; `file` is an index into the store's files."""

CANDIDATE_DTYPE = np.dtype([("node", "<i4"), ("num_uses", "<i4"), ("distance", "<i4")])
"""A candidate: its node, the number of other uses of the variable, tokens to the nearest use."""

COLUMNS: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
    "graphs": (GRAPH_DTYPE, ()),
    "subtoken_counts": (np.dtype("u1"), ()),
    "subtokens": (np.dtype("<u2"), ()),
    "edge_types": (np.dtype("u1"), ()),
    "edges": (np.dtype("<i4"), (2,)),
    "candidates": (CANDIDATE_DTYPE, ()),
}


@dataclass(frozen=True, kw_only=True)
class InstanceHeader:
    """The description of a store of program graphs; `edge_names` are the forward edge types."""

    name: str
    edge_names: tuple[str, ...]
    num_buckets: int
    steps: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("name", self.name)
        if not 1 <= self.num_buckets <= 1 << 16:
            raise InputError(f"num_buckets is {self.num_buckets}, not within 1..65536")
        if self.steps < 0 or not self.edge_names:
            raise InputError("a store of program graphs needs steps >= 0 and names of edge types")

    @property
    def scalars(self) -> dict[str, object]:
        """The attributes that go into the fingerprint."""
        names = " ".join(self.edge_names)
        return {"num_buckets": self.num_buckets, "steps": self.steps, "edge_names": names}


_COUNTS = ("num_nodes", "num_edges", "num_subtokens", "num_candidates", "bandwidth")


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """Graphs with their nodes and edges; nodes are numbered from 0 in each graph.

    `graphs` (g,) are of `GRAPH_DTYPE`; `subtoken_counts` (n,) uint8; `subtokens` (s,) uint16
    buckets, node after node; `edge_types` (e,) uint8; `edges` (e, 2) int32 source, target;
    `candidates` (c,) of `CANDIDATE_DTYPE`.
    """

    graphs: Array
    subtoken_counts: Array
    subtokens: Array
    edge_types: Array
    edges: Array
    candidates: Array

    def __len__(self) -> int:
        return len(self.graphs)

    def starts(self, count: str) -> Offsets:
        """Return the offsets (g + 1,) of each graph's rows, from the column `count` of `graphs`."""
        return starts_of(self.graphs[count])

    def select(self, graphs: Sequence[int] | Array) -> "InstanceBatch":
        """Return the graphs at positions `graphs`, in this order."""
        rows = np.asarray(graphs, np.int64)
        nodes = row_positions(self.starts("num_nodes"), rows)
        edges = row_positions(self.starts("num_edges"), rows)
        return InstanceBatch(
            self.graphs[rows],
            self.subtoken_counts[nodes],
            self.subtokens[row_positions(self.starts("num_subtokens"), rows)],
            self.edge_types[edges],
            self.edges[edges],
            self.candidates[row_positions(self.starts("num_candidates"), rows)],
        )

    def reorder(self, order: Array) -> "InstanceBatch":
        """Return the same graphs with their nodes in another order.

        `order` (n,) int64 holds the old number of the node at each place, counted over all graphs;
        nodes stay within their graph.
        """
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        starts = self.starts("num_nodes")[:-1]
        of_edges = np.repeat(starts, self.graphs["num_edges"])[:, None]
        of_candidates = np.repeat(starts, self.graphs["num_candidates"])
        candidates = self.candidates.copy()
        candidates["node"] = position[self.candidates["node"] + of_candidates] - of_candidates
        return InstanceBatch(
            self.graphs,
            self.subtoken_counts[order],
            self.subtokens[row_positions(starts_of(self.subtoken_counts), order)],
            self.edge_types,
            (position[self.edges + of_edges] - of_edges).astype(np.int32),
            candidates,
        )

    @staticmethod
    def join(batches: Sequence["InstanceBatch"]) -> "InstanceBatch":
        """Concatenate the graphs of at least one batch."""
        arrays = [[getattr(batch, f.name) for batch in batches] for f in fields(InstanceBatch)]
        return InstanceBatch(*(np.concatenate(pieces) for pieces in arrays))

    @staticmethod
    def empty() -> "InstanceBatch":
        """Return a batch without graphs."""
        return InstanceBatch(*(np.empty((0, *row), dtype) for dtype, row in COLUMNS.values()))


def starts_of(counts: Array) -> Offsets:
    """Return offsets (n + 1,) of counts (n,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def fault_in_index(graphs: Array, num_files: int, last_split: int) -> str | None:
    """Check rows of the index; return a fault as part of a message, or None for valid data."""
    for name in _COUNTS:
        row = first_true(graphs[name] < 0)
        if row is not None:
            return f"graph {row} has {name} {graphs[name][row]}"
    row = first_true((graphs["label"] < 0) | (graphs["label"] >= graphs["num_candidates"]))
    if row is not None:
        return f"graph {row} has label {graphs['label'][row]}, which is none of its candidates"
    row = first_true((graphs["file"] < 0) | (graphs["file"] >= num_files))
    if row is not None:
        return f"graph {row} is of file {graphs['file'][row]}, outside 0..{num_files - 1}"
    splits = np.concatenate([[last_split], graphs["split"]]).astype(np.int64)
    if not np.isin(splits[1:], list(InstanceSplit)).all() or (np.diff(splits) < 0).any():
        return "the splits are not 1..4 in order"
    return None


def fault_in_batch(batch: InstanceBatch, num_edge_types: int, num_buckets: int) -> str | None:
    """Check that nodes, types and buckets are within bounds; return a fault or None."""
    sizes = batch.graphs["num_nodes"]
    for name, ends, counts in (
        ("an edge", batch.edges, batch.graphs["num_edges"]),
        ("a candidate", batch.candidates["node"][:, None], batch.graphs["num_candidates"]),
    ):
        limits = np.repeat(sizes, counts)[:, None]
        if ((ends < 0) | (ends >= limits)).any():
            return f"{name} refers to a node outside its graph"
    if batch.edge_types.max(initial=0) >= num_edge_types:
        return f"an edge has a type outside 0..{num_edge_types - 1}"
    if batch.subtokens.max(initial=0) >= num_buckets:
        return f"a sub-token lies outside 0..{num_buckets - 1}"
    if int(batch.subtoken_counts.sum(dtype=np.int64)) != len(batch.subtokens):
        return "subtoken_counts do not add up to the sub-tokens"
    return None
