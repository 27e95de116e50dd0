"""The read-outs of whole graphs: rows that ranks need for them, and the share of one rank."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from typing_extensions import override

from hpcgnn.autograd import GraphMembers
from hpcgnn.comm import Communicator, RowMap
from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.label_inputs import training_mask
from hpcgnn.graph.labelled import Labelled
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.stored import StoredRows
from hpcgnn.plan.moves import Log, Movement, SilentRequest
from hpcgnn.plan.share import Predicted, Predictions
from hpcgnn.plan.traffic import PatternKey, Traffic
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.objectives.nodes import GraphsObjective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask, Offsets

GRAPHS: PatternKey = (None, "graphs")
"""The key of the pieces of graphs that their owners fetch."""


@dataclass(frozen=True, eq=False)
class GraphShare(Predicted):
    """What a rank has of graphs that are predicted as a whole.

    Parameters
    ----------
    kind
        The objective.
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

    kind: type[GraphsObjective]
    node_graph: GlobalIndices
    trained: Mask
    owners: LocalIndices
    holders: LocalIndices
    found: GlobalIndices
    labels: Array
    split: Array

    @override
    def objective(self, graph: LocalGraph, config: Config, log: Log) -> GraphsObjective:
        members = rehearsed_members(graph.grid.layer, self, graph.grid.block, log)
        of_graphs = replace(
            graph,
            view=replace(graph.view, members=members),
            labels=self.labels,
            split=self.split,
            graph_ids=members.ids,
            node_graph=self.node_graph,
        )
        return self.kind(of_graphs, config)


class WholeGraphs(Predictions):
    """The graphs of all ranks, in one process."""

    hidden = None
    cuts_rows = True

    @collective
    def __init__(
        self, kind: type[GraphsObjective], stored: StoredRows, nodes: NodeBlock, labelled: Labelled
    ) -> None:
        assert nodes.graph is not None
        assert labelled.labels is not None
        assert labelled.split is not None
        self._kind, self._node_graph, self._ids = kind, nodes.graph, labelled.ids
        self._labels, self._split = labelled.labels, labelled.split
        graphs = np.searchsorted(self._ids, self._node_graph)
        self.trains = training_mask(self._labels, self._split)[graphs]

    @override
    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        return facts

    def _pieces(self, starts: Offsets) -> tuple[LocalIndices, GlobalIndices, LocalIndices]:
        """Return the rank, the graph and the owner of each piece of all ranks, rank after rank."""
        parts = [
            np.unique(self._node_graph[start:stop]) for start, stop in pairwise(starts.tolist())
        ]
        holders = np.repeat(np.arange(len(parts), dtype=np.int32), [len(each) for each in parts])
        found, blocks = np.concatenate(parts), len(parts)
        ranges = np.arange(blocks + 1, dtype=np.int64) * (int(self._ids[-1]) + 1) // blocks
        return holders, found, RowMap(ranges, 0).owner(found)

    @override
    def traffic(self, starts: Offsets) -> dict[PatternKey, Traffic]:
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

    @override
    def share(self, starts: Offsets, block: int) -> GraphShare:
        rows = slice(starts[block], starts[block + 1])
        holders, found, owners = self._pieces(starts)
        wanted = owners == block
        owned = np.searchsorted(self._ids, np.unique(found[wanted]))
        return GraphShare(
            self._kind,
            self._node_graph[rows],
            self.trains[rows],
            owners[holders == block],
            holders[wanted],
            found[wanted],
            self._labels[owned],
            self._split[owned],
        )


@dataclass(frozen=True, eq=False)
class RehearsedMembers(GraphMembers):
    """Members whose rows of other ranks are zeros, and are counted; see `GraphMembers`.

    Parameters
    ----------
    trained
        What other ranks would say of the nodes.
    """

    trained: Mask

    def at_nodes(self, values: Array) -> Array:
        """Return the nodes of training graphs, the only values that are asked for."""
        return self.trained


def rehearsed_members(comm: Communicator, share: GraphShare, block: int, log: Log) -> GraphMembers:
    """Return the members of a rank's graphs, whose messages a log hears of."""
    mine, pieces = np.unique(share.node_graph, return_inverse=True)
    ids, places = np.unique(share.found, return_inverse=True)
    own = np.flatnonzero(share.holders == block)
    # Those that others own do not matter here: they bring zeros.
    own_rows = np.searchsorted(mine, share.found[own]).astype(np.int32)

    def note(reverse: bool, row_bytes: int) -> None:
        log(Movement(GRAPHS, "fetched", reverse, row_bytes))

    asked = np.argsort(share.owners, kind="stable").astype(np.int32)
    request = SilentRequest(
        comm, np.sort(share.owners), asked, share.holders, len(mine), note, own, own_rows
    )
    return RehearsedMembers(
        pieces=torch.from_numpy(pieces.astype(np.int64)),
        num_pieces=len(mine),
        graphs=torch.from_numpy(places.astype(np.int64)),
        ids=ids,
        request=request,
        trace=TraceRecorder.off(),
        trained=share.trained,
    )
