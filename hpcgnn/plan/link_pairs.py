"""The pairs of link prediction: rows that every rank needs for them, and the share of one rank."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.plan.traffic import PatternKey, Traffic
from hpcgnn.spmd import collective
from hpcgnn.train.links.edges import SHARES, LinkEdges, Links
from hpcgnn.train.links.pairs import DrawnPairs, Needed
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets


def pair_key(share: str) -> PatternKey:
    """Return the key of the rows that the pairs of a share of the edges need."""
    return (None, f"pairs.{share}")


@dataclass(frozen=True, eq=False)
class LinkShare:
    """What a rank has of the edges that are predicted.

    Parameters
    ----------
    needed
        The pairs of each of `SHARES`, those of training of the first epoch.
    judged
        The edges that it judges, of the tested shares.
    asked
        Its local rows that each rank in turn, and it itself, asks for.
    """

    links: Links
    needed: Mapping[str, Needed]
    judged: Mapping[str, LinkEdges]
    asked: Mapping[str, LocalIndices]


class WholePairs:
    """The pairs of all ranks, drawn by one process that has all edges.

    Parameters
    ----------
    seed
        Whose first epoch is planned.
    """

    @collective
    def __init__(self, links: Links, drawn: DrawnPairs, seed: int) -> None:
        self._links = links
        trained = links.shares["train"]
        self._pairs = {"train": (trained, drawn.wrong(seed, 0))}
        for name, tested in drawn.tested.items():
            needed = tested.pairs.needed
            self._pairs[name] = tested.edges, needed.rows[needed.wrong]

    @property
    def targets(self) -> GlobalIndices:
        """(E,) the global rows whose ranks have an edge to train on."""
        return self._links.shares["train"].targets

    def traffic(self, starts: Offsets) -> dict[PatternKey, Traffic]:
        """Return the rows that move for each share's pairs, by the rows of the ranks."""
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

    def share(self, starts: Offsets, block: int) -> LinkShare:
        """Return what the rank of a block row has."""
        links, mine = self._links, RowMap(starts, block)
        shares = {name: edges[mine.is_local(edges.targets)] for name, edges in links.shares.items()}
        every = links.every[mine.is_local(links.every.targets)]
        asked = {}
        for share in SHARES:
            rows = [self._needed(share, starts, each).rows for each in range(len(starts) - 1)]
            asked[share] = np.concatenate([mine.to_local(r[mine.is_local(r)]) for r in rows])
        return LinkShare(
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
