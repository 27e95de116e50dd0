"""The pairs of link prediction: rows that every rank needs for them, and the share of one rank."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from hpcgnn.comm import Communicator, RowMap
from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.labelled import Labelled
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.stored import StoredRows
from hpcgnn.plan.moves import Log, Movement, SilentRequest
from hpcgnn.plan.share import Predicted, Predictions
from hpcgnn.plan.traffic import PatternKey, Traffic
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock
from hpcgnn.train.links.edges import SHARES, LinkEdges, Links, deal_links
from hpcgnn.train.links.objective import LinkObjective, link_facts
from hpcgnn.train.links.pairs import DrawnPairs, Needed, Pairs, Tested
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets


def pair_key(share: str) -> PatternKey:
    """Return the key of the rows that the pairs of a share of the edges need."""
    return (None, f"pairs.{share}")


@dataclass(frozen=True, eq=False)
class LinkShare(Predicted):
    """What a rank has of the edges that are predicted.

    Parameters
    ----------
    kind
        The objective.
    needed
        The pairs of each of `SHARES`, those of training of the first epoch.
    judged
        The edges that it judges, of the tested shares.
    asked
        Its local rows that each rank in turn, and it itself, asks for.
    """

    kind: type[LinkObjective]
    links: Links
    needed: Mapping[str, Needed]
    judged: Mapping[str, LinkEdges]
    asked: Mapping[str, LocalIndices]

    @override
    def objective(self, graph: LocalGraph, config: Config, log: Log) -> LinkObjective:
        pairs = RehearsedPairs(graph.grid.layer, graph.row_map, self, log)
        return self.kind(graph, config, self.links, pairs)


class WholePairs(Predictions):
    """The pairs of the first epoch of all ranks, drawn by one process that has all edges."""

    cuts_rows = False

    @collective
    def __init__(
        self, kind: type[LinkObjective], stored: StoredRows, nodes: NodeBlock, labelled: Labelled
    ) -> None:
        context, row_map = stored.context, stored.row_map
        grid, config = context.grid, context.config
        self._kind = kind
        self._links, self.hidden = deal_links(grid, config, stored.store, row_map)
        drawn = DrawnPairs(grid, row_map, nodes.original_id, self._links, config.links)
        trained = self._links.shares["train"]
        self._pairs = {"train": (trained, drawn.wrong(config.train.seeds[0], 0))}
        for name, tested in drawn.tested.items():
            needed = tested.pairs.needed
            self._pairs[name] = tested.edges, needed.rows[needed.wrong]
        self.trains = np.zeros(row_map.num_rows, np.bool_)
        self.trains[trained.targets] = True

    @override
    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        return link_facts(facts, config)

    @override
    def traffic(self, starts: Offsets) -> dict[PatternKey, Traffic]:
        num_blocks, num_rows = len(starts) - 1, int(starts[-1])
        none, found = np.zeros((num_blocks, num_blocks), np.int64), {}
        for share in SHARES:
            fetched = none.copy()
            for block in range(num_blocks):
                rows = self._needed(share, starts, block).rows
                fetched[block] = np.bincount(_owners(starts, rows), minlength=num_blocks)
            np.fill_diagonal(fetched, 0)
            # Links are planned without replicas.
            sums = np.zeros((2, 2, num_blocks, 1, 1), np.int64)
            entries = np.zeros(num_blocks, np.int64)
            found[pair_key(share)] = Traffic(fetched, none, sums, entries, num_rows, num_rows)
        return found

    @override
    def share(self, starts: Offsets, block: int) -> LinkShare:
        links, mine = self._links, RowMap(starts, block)
        shares = {name: edges[mine.is_local(edges.targets)] for name, edges in links.shares.items()}
        every = links.every[mine.is_local(links.every.targets)]
        asked = {}
        for share in SHARES:
            rows = [self._needed(share, starts, each).rows for each in range(len(starts) - 1)]
            asked[share] = np.concatenate([mine.to_local(r[mine.is_local(r)]) for r in rows])
        return LinkShare(
            self._kind,
            Links(links.names, every, shares, links.both_ways, links.types),
            {share: self._needed(share, starts, block) for share in SHARES},
            {name: edges[chosen] for name, edges, chosen in self._judged(starts, block)},
            asked,
        )

    def _needed(self, share: str, starts: Offsets, block: int) -> Needed:
        edges, wrong = self._pairs[share]
        chosen = self._chosen(share, starts) == block
        return Needed.of(edges[chosen], wrong[chosen], int(starts[-1]))

    def _chosen(self, share: str, starts: Offsets) -> Array:
        """Return (E,) the block row that scores each edge."""
        edges, _ = self._pairs[share]
        if share == "train":
            return _owners(starts, edges.targets)
        return edges.judges(len(starts) - 1)

    def _judged(self, starts: Offsets, block: int) -> list[tuple[str, LinkEdges, Array]]:
        return [
            (share, self._pairs[share][0], self._chosen(share, starts) == block)
            for share in SHARES[1:]
        ]


def _owners(starts: Offsets, rows: GlobalIndices) -> LocalIndices:
    return RowMap(starts, 0).owner(rows)


class RehearsedPairs:
    """The pairs of a share, whose messages a log hears of; see `hpcgnn.train.links.pairs`."""

    def __init__(self, comm: Communicator, row_map: RowMap, share: LinkShare, log: Log) -> None:
        def request(name: str) -> SilentRequest:
            rows, asked = share.needed[name].rows, share.asked[name]
            own = np.flatnonzero(row_map.is_local(rows))

            def note(reverse: bool, row_bytes: int) -> None:
                log(Movement(pair_key(name), "fetched", reverse, row_bytes))

            askers = np.zeros(len(asked), np.int32)
            owners, count = row_map.owner(rows), row_map.num_local
            local = row_map.to_local(rows[own])
            return SilentRequest(comm, askers, asked, owners, count, note, own, local)

        self._trained = Pairs(share.needed["train"], request("train"))
        self.tested: Mapping[str, Tested] = {
            name: Tested(edges, Pairs(share.needed[name], request(name)), None)
            for name, edges in share.judged.items()
        }

    def trained(self, seed: int, epoch: int) -> Pairs:
        """Return the same pairs for every epoch."""
        return self._trained
