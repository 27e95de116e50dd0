"""The store of program graphs: many small graphs in one HDF5 file, all or nothing.

    /graphs           the index, a row a graph (`GRAPH_DTYPE`), grouped by split
    /subtoken_counts  uint8 a node        /subtokens  uint16, node after node
    /edge_types       uint8 an edge       /edges      int32 source, target in the graph
    /candidates       `CANDIDATE_DTYPE`   /files      names of the sources

A range of graphs is a range of rows of every dataset, so a rank reads its shard in slabs.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.format import check_text

INSTANCE_FORMAT = "hpcgnn program graphs"
INSTANCE_VERSION = 1


class InstanceSplit(enum.IntEnum):
    """What a graph is for; the packages of UNSEEN graphs have none elsewhere."""

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
"""A graph: its share of the other arrays, the right candidate, bandwidth, where it comes from.

`original_nodes` counts nodes before the reduction; `file` is a number of the store's files."""

CANDIDATE_DTYPE = np.dtype([("node", "<i4"), ("num_uses", "<i4"), ("distance", "<i4")])
"""A candidate: its node, how often the variable is used elsewhere, tokens to the nearest use."""

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
    """What a store of program graphs says of all of them.

    `edge_names` names the forward types of edges; `provenance` must be JSON.
    """

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
            raise InputError("a store of program graphs needs steps >= 0 and names of edges")

    @property
    def scalars(self) -> dict[str, object]:
        """What gives the datasets their meaning, for the fingerprint."""
        names = " ".join(self.edge_names)
        return {"num_buckets": self.num_buckets, "steps": self.steps, "edge_names": names}
