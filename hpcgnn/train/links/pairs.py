"""The pairs that a rank scores: new ones in each epoch, and tested ones that stay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap, RowRequest
from hpcgnn.comm.row_map import distinct, numbered
from hpcgnn.config.links import LinksConfig
from hpcgnn.spmd import collective
from hpcgnn.train.links.candidates import KnownTargets, Queries
from hpcgnn.train.links.edges import SHARES, LinkEdges, Links
from hpcgnn.train.links.negatives import NEGATIVES, NodePool, Uniform
from hpcgnn.typing import GlobalIndices, LocalIndices

# No epoch and no step has it: what tested edges are ranked against stays.
_TESTED = -1


@dataclass(frozen=True, eq=False)
class Needed:
    """Edges with wrong ends, by their places among the rows that their scores are made of.

    Parameters
    ----------
    rows
        Increasing int64 global rows.
    sources, targets
        (E,) int32 places among them.
    wrong
        (E, K) int32 places of the wrong ends, which stand for the targets.
    relations
        (E,) int64.
    """

    rows: GlobalIndices
    sources: LocalIndices
    targets: LocalIndices
    wrong: LocalIndices
    relations: GlobalIndices

    @classmethod
    def of(cls, edges: LinkEdges, wrong: GlobalIndices, num_rows: int) -> "Needed":
        """Return the places of edges with wrong ends (E, K), global rows below `num_rows`."""
        nodes = np.concatenate([edges.sources, edges.targets, wrong.reshape(-1)])
        rows = distinct(nodes, num_rows)
        positions = numbered(rows, np.arange(len(rows), dtype=np.int32), nodes)
        sources, targets, flat = np.split(positions, [len(edges), 2 * len(edges)])
        return cls(rows, sources, targets, flat.reshape(wrong.shape), edges.relations)

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Edges with wrong ends, and who has the rows of embeddings that they need.

    Parameters
    ----------
    request
        None where this rank has all of them, in order.
    """

    needed: Needed
    request: RowRequest | None

    def __len__(self) -> int:
        return len(self.needed)

    @classmethod
    @collective
    def of(
        cls, grid: ProcessGrid, row_map: RowMap, edges: LinkEdges, wrong: GlobalIndices
    ) -> "Pairs":
        """Ask the owners; `wrong` (E, K) are global rows."""
        ends = Needed.of(edges, wrong, row_map.num_rows)
        return cls(ends, RowRequest.make(grid.layer, row_map, ends.rows))


@dataclass(frozen=True, eq=False)
class Tested:
    """Edges that this rank ranks; all ranks have about equally many.

    Parameters
    ----------
    edges
        Of any rank.
    pairs
        With wrong ends that stay.
    known
        The targets of their sources; None where they are ranked among their wrong ends.
    """

    edges: LinkEdges
    pairs: Pairs
    known: KnownTargets | None


class PairSource(Protocol):
    """Gives the pairs of a rank."""

    tested: Mapping[str, Tested]

    def trained(self, seed: int, epoch: int) -> Pairs:
        """Return the pairs of an epoch; collective."""
        ...


class DrawnPairs:
    """The pairs of this rank's edges, drawn over all ranks.

    Parameters
    ----------
    ids
        (num_local,) int64 original ids.
    """

    @collective
    def __init__(
        self,
        grid: ProcessGrid,
        row_map: RowMap,
        ids: GlobalIndices,
        links: Links,
        options: LinksConfig,
    ) -> None:
        self._grid, self._row_map, self._options = grid, row_map, options
        self._edges = links.shares["train"]
        ends = NodePool(grid.layer, row_map, ids, self._edges, len(links.names), links.types)
        self._wrong_ends, self._nodes = NEGATIVES[options.negatives](ends), Uniform(ends)
        self.tested: Mapping[str, Tested] = {name: self._test(links, name) for name in SHARES[1:]}

    @collective
    def wrong(self, seed: int, epoch: int) -> GlobalIndices:
        """Return (E, K) the wrong ends of the trained edges of this rank in an epoch."""
        return self._wrong_ends.draw(self._edges, self._options.num_negatives, (seed, epoch))

    @collective
    def trained(self, seed: int, epoch: int) -> Pairs:
        """Return the pairs of an epoch."""
        return Pairs.of(self._grid, self._row_map, self._edges, self.wrong(seed, epoch))

    @collective
    def _test(self, links: Links, name: str) -> Tested:
        # Ranks that own popular targets would have most of the work.
        edges = links.shares[name].spread(self._grid.layer)
        seeds = (self._options.split_seed, _TESTED)
        wrong, known_targets = self._nodes.draw(edges, self._options.ranked, seeds), None
        if self._options.ranking == "all":
            queries = Queries(edges.sources, edges.relations)
            known_targets = KnownTargets.of(self._grid, self._row_map, links, queries)
        return Tested(edges, Pairs.of(self._grid, self._row_map, edges, wrong), known_targets)
