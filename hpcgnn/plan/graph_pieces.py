"""The read-outs of whole graphs: rows that ranks need for them, and the share of one rank."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.plan.traffic import PatternKey, Traffic
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask, Offsets

GRAPHS: PatternKey = (None, "graphs")
"""The key of the pieces of graphs that their owners fetch."""


@dataclass(frozen=True, eq=False)
class GraphShare:
    """What a rank has of graphs that are predicted as a whole.

    Parameters
    ----------
    node_graph
        (num_local,) int64 the numbers of its nodes' graphs.
    trained
        (num_local,) the nodes of training graphs.
    owners
        (pieces,) int32 the rank that owns the graph of each of its pieces.
    holders, found
        (R,) int32 the rank that has each piece that it fetches, and int64 the piece's graph.
    labels, split
        Of the graphs that it owns, by their numbers.
    """

    node_graph: GlobalIndices
    trained: Mask
    owners: LocalIndices
    holders: LocalIndices
    found: GlobalIndices
    labels: Array
    split: Array


class WholeGraphs:
    """The graphs of all ranks, in one process.

    Parameters
    ----------
    node_graph
        (n,) int64 the number of the graph of each node.
    labels, split
        Of the nodes, equal in each graph.
    trained
        (n,) the nodes of training graphs.
    """

    def __init__(
        self, node_graph: GlobalIndices, labels: Array, split: Array, trained: Mask
    ) -> None:
        self._node_graph, self._trained = node_graph, trained
        self._ids, first = np.unique(node_graph, return_index=True)
        self._labels, self._split = labels[first], split[first]

    def __len__(self) -> int:
        return len(self._ids)

    def _pieces(self, starts: Offsets) -> tuple[LocalIndices, GlobalIndices, LocalIndices]:
        """Return the rank, the graph and the owner of each piece of all ranks, rank after rank."""
        parts = [
            np.unique(self._node_graph[start:stop]) for start, stop in pairwise(starts.tolist())
        ]
        holders = np.repeat(np.arange(len(parts), dtype=np.int32), [len(each) for each in parts])
        found, blocks = np.concatenate(parts), len(parts)
        ranges = np.arange(blocks + 1, dtype=np.int64) * (int(self._ids[-1]) + 1) // blocks
        return holders, found, RowMap(ranges, 0).owner(found)

    def traffic(self, starts: Offsets) -> dict[PatternKey, Traffic]:
        """Return the pieces that move, by the rows of the ranks."""
        blocks, num_rows = len(starts) - 1, int(starts[-1])
        holders, _, owners = self._pieces(starts)
        fetched = np.zeros((blocks, blocks), np.int64)
        np.add.at(fetched, (owners, holders), 1)
        np.fill_diagonal(fetched, 0)
        # Graphs are planned without replicas.
        sums = np.zeros((2, 2, blocks, 1, 1), np.int64)
        entries = np.zeros(blocks, np.int64)
        none = np.zeros_like(fetched)
        return {GRAPHS: Traffic(fetched, none, sums, entries, num_rows, num_rows)}

    def share(self, starts: Offsets, block: int) -> GraphShare:
        """Return what the rank of a block row has."""
        rows = slice(starts[block], starts[block + 1])
        holders, found, owners = self._pieces(starts)
        wanted = owners == block
        owned = np.searchsorted(self._ids, np.unique(found[wanted]))
        return GraphShare(
            self._node_graph[rows],
            self._trained[rows],
            owners[holders == block],
            holders[wanted],
            found[wanted],
            self._labels[owned],
            self._split[owned],
        )
