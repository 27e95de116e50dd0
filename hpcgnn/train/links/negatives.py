"""Negative sampling: the wrong ends that edges are ranked against.

All draws are functions of a seed, an epoch and the original ids of an edge's nodes, so that neither
the number of ranks nor the partition changes one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from hpcgnn.comm import Communicator, RowMap, redistribute, rows_of
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.kernels.mixing import uniform
from hpcgnn.spmd import collective
from hpcgnn.train.links.edges import LinkEdges, mixed
from hpcgnn.typing import Array, GlobalIndices


class Numbered:
    """Values of all ranks, numbered by increasing keys whatever rank they come from.

    Keys (m,) are different int64, values (m,) int64; `numbers` (m,) int64 has the number of each of
    this rank's values.
    """

    @collective
    def __init__(self, layer: Communicator, keys: GlobalIndices, values: GlobalIndices) -> None:
        ranks = np.full(len(keys), layer.rank, np.int32)
        slots = np.arange(len(keys), dtype=np.int64)
        self._values, ranks, slots = in_order(layer, keys, values, ranks, slots)
        counts = layer.allgather(len(self._values))
        self._layer = layer
        self._map = RowMap(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), layer.rank)
        local_rows = np.arange(self._map.start, self._map.stop, dtype=np.int64)
        numbers, slots = redistribute(layer, ranks, local_rows, slots)
        self.numbers = np.empty_like(numbers)
        self.numbers[slots] = numbers

    def __len__(self) -> int:
        return self._map.num_rows

    @collective
    def at(self, numbers: GlobalIndices) -> GlobalIndices:
        """Return the values of numbers of any shape, below the length."""
        values = rows_of(self._layer, self._map, numbers.reshape(-1), self._values)
        return values.reshape(numbers.shape)

    @collective
    def draw(self, words: NDArray[np.uint64]) -> GlobalIndices:
        """Return a value for each of the mixed bits, all equally likely, in their shape."""
        return self.at(np.minimum((uniform(words) * len(self)).astype(np.int64), len(self) - 1))


@dataclass(frozen=True, eq=False)
class NodePool:
    """What wrong ends may be drawn from.

    `ids` (num_local,) int64 are original, `trained` the edges of this rank that are trained on,
    `types` (num_rows,) uint8 the node types of all rows; None without types.
    """

    layer: Communicator
    row_map: RowMap
    ids: GlobalIndices
    trained: LinkEdges
    num_relations: int
    types: Array | None

    def kinds(self, rows: GlobalIndices) -> Array:
        """Return (m,) the types of global rows (m,), of which all are one without types."""
        return np.zeros(len(rows), np.uint8) if self.types is None else self.types[rows]

    @property
    def num_kinds(self) -> int:
        """How many types there may be."""
        return 1 if self.types is None else int(self.types.max(initial=0)) + 1


class WrongEnds(Protocol):
    """A way to draw wrong ends."""

    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        """Return (E, count) int64 global rows; collective."""


class Candidates(WrongEnds):
    """Rows that wrong ends are drawn from, equally likely: of the type of the right end.

    Different int64 keys (m,) order the global rows (m,).
    """

    @collective
    def __init__(self, ends: NodePool, keys: GlobalIndices, rows: GlobalIndices) -> None:
        self._ends, kinds = ends, ends.kinds(rows)
        self._rows = [
            Numbered(ends.layer, keys[kinds == kind], rows[kinds == kind])
            for kind in range(ends.num_kinds)
        ]

    @collective
    @override
    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        words = mixed(edges.words[:, None], *seeds, np.arange(count)[None, :])
        kinds, drawn = self._ends.kinds(edges.targets), np.empty(words.shape, np.int64)
        for kind, rows in enumerate(self._rows):
            of_it = kinds == kind
            drawn[of_it] = rows.draw(words[of_it])
        return drawn


@collective
def uniformly(ends: NodePool) -> Candidates:
    """Return all nodes: those of a type are equally likely."""
    rows = np.arange(ends.row_map.start, ends.row_map.stop, dtype=np.int64)
    return Candidates(ends, ends.ids, rows)


@collective
def by_degree(ends: NodePool) -> Candidates:
    """Return the targets of all trained edges: a node is as likely as it has edges."""
    return Candidates(ends, ends.trained.words, ends.trained.targets)


class ByRelation(WrongEnds):
    """The nodes that are a target of some trained edge of the same relation, equally likely."""

    @collective
    def __init__(self, ends: NodePool) -> None:
        self._targets = []
        for relation in range(ends.num_relations):
            of_it = ends.trained.relations == relation
            rows = np.unique(ends.trained.targets[of_it])
            keys = ends.ids[ends.row_map.to_local(rows)]
            self._targets.append(Candidates(ends, keys, rows))

    @collective
    @override
    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        rows = np.empty((len(edges), count), np.int64)
        for relation, targets in enumerate(self._targets):
            of_it = edges.relations == relation
            rows[of_it] = targets.draw(edges[of_it], count, seeds)
        return rows


class InBatch(WrongEnds):
    """The targets of the other edges of a batch; batches of ``count + 1`` are drawn anew each time.

    The rows that scores need are then those of the edges themselves, of whatever type.
    """

    def __init__(self, ends: NodePool) -> None:
        self._layer = ends.layer

    @collective
    @override
    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        words = mixed(edges.words, *seeds).view(np.int64)
        order = Numbered(self._layer, words, edges.targets)
        # Where there are fewer edges, as in the last step of an epoch, the others come again.
        size = min(count + 1, max(len(order), 2))
        first, index = np.divmod(order.numbers, size)
        partners = (index[:, None] + 1 + np.arange(count) % (size - 1)) % size
        # The last batch may be short: its edges go on with the first ones.
        return order.at((first[:, None] * size + partners) % max(len(order), 1))


NEGATIVES: Mapping[str, Callable[[NodePool], WrongEnds]] = {
    "uniform": uniformly,
    "degree": by_degree,
    "relation": ByRelation,
    "batch": InBatch,
}
"""``links.negatives`` -> what makes the way to draw."""
