"""Samplers of node sets: frontier sampling, random walks, and independent edges or nodes.

The k-th set of a seed depends only on the seed and k: every rank and every thread that asks for it
gets the same set.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.sampling import _sampling
from hpcgnn.sampling.topology import Topology
from hpcgnn.typing import FloatArray, GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class AliasTable:
    """A table for weighted draws in O(1), with twelve bytes an item in arrays that can be shared.

    `thresholds` are uint32, `aliases` int64.
    """

    thresholds: NDArray[np.uint32]
    aliases: GlobalIndices

    @classmethod
    def build(cls, weights: FloatArray) -> "AliasTable":
        """Make a table for probabilities proportional to `weights`.

        Raises ValueError unless all are finite and non-negative and at least one is positive.
        """
        thresholds = np.empty(len(weights), np.uint32)
        aliases = np.empty(len(weights), np.int64)
        _sampling.build_alias(np.ascontiguousarray(weights, np.float64), thresholds, aliases)
        return cls(thresholds, aliases)


def edge_weights(topology: Topology) -> FloatArray:
    """Return (E,) weights 1/deg(u) + 1/deg(v) of the entries (u, v).

    They lower the variance of aggregations (GraphSAINT). Degrees are entries of rows, at least 1,
    on directed graphs too. Entries in rows of nodes that are no roots have weight 0.
    """
    by_node = 1.0 / np.maximum(topology.degrees(), 1)
    weights: NDArray[Any] = by_node[topology.entry_rows()] + by_node[topology.indices]
    weights[topology.indptr[topology.num_roots] :] = 0
    return weights


def node_weights(topology: Topology) -> FloatArray:
    """Return (N,) squared norms of the columns of (D + I)^-1 (A + I).

    They lower the variance of aggregations (GraphSAINT). Thanks to the identity, isolated nodes can
    be drawn.
    """
    squares = 1.0 / (topology.degrees() + 1.0) ** 2
    return squares + np.bincount(
        topology.indices, squares[topology.entry_rows()], minlength=topology.num_nodes
    )


def edge_table(topology: Topology) -> AliasTable:
    """Return the table that `EdgeSampler` draws from; ValueError if the graph has no edges."""
    return AliasTable.build(edge_weights(topology))


def node_table(topology: Topology) -> AliasTable:
    """Return the table that `NodeSampler` draws from; ValueError if the graph has no nodes."""
    return AliasTable.build(node_weights(topology))


_CLIPPING = 1 << 63
"""Bit of the key that separates the draws that clip a set from those that made it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Sampler(ABC):
    """Draws sets of nodes with a `seed` in [0, 2^63).

    Random nodes are dropped until the size of a set is a multiple of `multiple`; 1 keeps all.
    Section 6.2 of the graph-sampling paper takes 16 so that columns begin on cache lines. Here rows
    do so for any number of nodes.
    """

    topology: Topology
    seed: int
    multiple: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.seed < _CLIPPING:
            raise ValueError(f"seed {self.seed} is not in [0, 2^63)")
        if self.multiple < 1:
            raise ValueError(f"multiple is {self.multiple}; use at least 1, which keeps all nodes")

    def sample(self, number: int) -> LocalIndices:
        """Return (n,) int32 ascending nodes: set `number`."""
        return self.sample_each([number])[0]

    def sample_each(self, numbers: Sequence[int]) -> list[LocalIndices]:
        """Return the sets of several numbers, which may be faster than one by one."""
        key = self.seed | _CLIPPING
        drawn = zip(self.visits_each(numbers), numbers, strict=True)
        return [
            _sampling.distinct_nodes(drawn_nodes, self.multiple, key, k) for drawn_nodes, k in drawn
        ]

    def visits_each(self, numbers: Sequence[int]) -> list[LocalIndices]:
        """Return the `visits` of several numbers."""
        return [self.visits(number) for number in numbers]

    @abstractmethod
    def visits(self, number: int) -> LocalIndices:
        """Return the int32 nodes of set `number` in the order of the draws, with repeats."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FrontierSampler(Sampler):
    """Frontier sampling with the Dashboard (graph-sampling paper, Algorithms 2 to 4).

    Walkers start on uniform nodes. In each step one walker, drawn with probability proportional to
    the degree of its node, moves to a uniform neighbour. `walkers` is the paper's m. `budget`, its
    n, is the number of draws including start nodes, and limits the walkers. `enlargement`, its eta,
    sets the size of the Dashboard and is above 1. With `entered` the sample takes the nodes that
    walkers move to, as in the m-dimensional random walk of Ribeiro and Towsley; otherwise those
    that they leave, as in the graph-sampling paper.
    """

    walkers: int
    budget: int
    enlargement: float = 3.0
    entered: bool = False

    def visits(self, number: int) -> LocalIndices:
        """Return the start nodes, then a node for each move."""
        return self.visits_each([number])[0]

    def visits_each(self, numbers: Sequence[int]) -> list[LocalIndices]:
        """Return the visits of several numbers; one frontier moves while others wait for memory."""
        return self._run(numbers)[0]

    def dashboard(self, number: int) -> dict[str, int]:
        """Return the Dashboard's statistics for set `number`.

        ``cleanups``, ``truncated`` (nodes whose degree exceeds their slots) and ``probes`` (rounds
        of four; a pop needs one or more).
        """
        cleanups, truncated, probes = self._run([number])[1]
        return {"cleanups": cleanups, "truncated": truncated, "probes": probes}

    def _run(self, numbers: Sequence[int]) -> tuple[list[LocalIndices], tuple[int, int, int]]:
        walkers = min(self.walkers, self.budget)
        return _sampling.sample_frontiers(
            self.topology.native,
            walkers,
            self.budget - walkers,
            self.enlargement,
            self.entered,
            self.seed,
            numbers,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RandomWalkSampler(Sampler):
    """All nodes of random walks of `length` steps from `roots` uniform nodes (Algorithm 5)."""

    roots: int
    length: int

    def visits(self, number: int) -> LocalIndices:
        """Return all roots, all first steps, and so on."""
        return _sampling.sample_walks(
            self.topology.native, self.roots, self.length, self.seed, number
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TableSampler(Sampler):
    """Sets of `draws` independent draws from a weighted table (Algorithm 5)."""

    draws: int
    table: AliasTable

    def _drawn(self, kernel: Callable[..., LocalIndices], number: int) -> LocalIndices:
        table = self.table.thresholds, self.table.aliases
        return kernel(self.topology.native, *table, self.draws, self.seed, number)


class EdgeSampler(TableSampler):
    """Both ends of independently drawn edges."""

    def visits(self, number: int) -> LocalIndices:
        """Return row and column of each edge."""
        return self._drawn(_sampling.sample_edges, number)


class NodeSampler(TableSampler):
    """Independently drawn nodes."""

    def visits(self, number: int) -> LocalIndices:
        """Return the nodes as drawn."""
        return self._drawn(_sampling.sample_nodes, number)
