"""Negative sampling: draw the wrong targets that edges are compared with.

All draws are functions of a seed, an epoch and the original ids of an edge's nodes, so they depend
neither on the number of ranks nor on the partition.
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
    """A distributed array of the values of all ranks, in the order of their keys.

    Keys (m,) int64 are distinct, values (m,) int64; `numbers` (m,) int64 are the positions of this
    rank's values in the array.
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
        """Return the values at `numbers`, of any shape."""
        values = rows_of(self._layer, self._map, numbers.reshape(-1), self._values)
        return values.reshape(numbers.shape)

    @collective
    def draw(self, words: NDArray[np.uint64]) -> GlobalIndices:
        """Return a uniformly drawn value for each of the mixed bits, in their shape."""
        return self.at(_whole(words, len(self)))

    @collective
    def draw_another(self, words: NDArray[np.uint64]) -> GlobalIndices:
        """Return a uniformly drawn value at another number than `draw`; the same if it is alone."""
        count = len(self)
        more = _whole(mixed(words.view(np.int64), 1), max(count - 1, 1))
        return self.at((_whole(words, count) + 1 + more) % max(count, 1))


def _whole(words: NDArray[np.uint64], count: int) -> GlobalIndices:
    """Return whole numbers below `count`, drawn uniformly by mixed bits of any shape."""
    return np.minimum((uniform(words) * count).astype(np.int64), count - 1)


@dataclass(frozen=True, eq=False)
class NodePool:
    """The nodes and edges that negatives may be drawn from.

    `ids` (num_local,) int64 are original ids, `trained` this rank's training edges, `types`
    (num_rows,) uint8 the node types of all rows; None without types.
    """

    layer: Communicator
    row_map: RowMap
    ids: GlobalIndices
    trained: LinkEdges
    num_relations: int
    types: Array | None

    def kinds(self, rows: GlobalIndices) -> Array:
        """Return the types (m,) of global rows (m,), all 0 in a graph without types."""
        return np.zeros(len(rows), np.uint8) if self.types is None else self.types[rows]


class WrongEnds(Protocol):
    """A way to draw negatives."""

    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        """Return (E, count) int64 global rows; collective."""


class Candidates(WrongEnds):
    """Draws uniformly from some rows, among those of the true target's type.

    Distinct int64 keys (m,) order the global rows (m,). If these are distinct, an edge's own target
    is drawn only if it is alone.
    """

    @collective
    def __init__(self, pool: NodePool, keys: GlobalIndices, rows: GlobalIndices) -> None:
        self._pool, kinds = pool, pool.kinds(rows)
        num_kinds = 1 if pool.types is None else int(pool.types.max(initial=0)) + 1
        self._rows = [
            Numbered(pool.layer, keys[kinds == kind], rows[kinds == kind])
            for kind in range(num_kinds)
        ]

    @collective
    @override
    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        words = mixed(edges.words[:, None], *seeds, np.arange(count)[None, :])
        kinds, drawn = self._pool.kinds(edges.targets), np.empty(words.shape, np.int64)
        for kind, rows in enumerate(self._rows):
            is_kind = kinds == kind
            drawn[is_kind] = rows.draw(words[is_kind])
            is_own = is_kind[:, None] & (drawn == edges.targets[:, None])
            drawn[is_own] = rows.draw_another(words[is_own])
        return drawn


@collective
def uniformly(pool: NodePool) -> Candidates:
    """Return all nodes as candidates: those of a type are equally likely."""
    rows = np.arange(pool.row_map.start, pool.row_map.stop, dtype=np.int64)
    return Candidates(pool, pool.ids, rows)


@collective
def by_degree(pool: NodePool) -> Candidates:
    """Return the targets of all training edges: a node's probability grows with its in-degree."""
    return Candidates(pool, pool.trained.words, pool.trained.targets)


class ByRelation(WrongEnds):
    """Draws uniformly from the targets of the training edges of the same relation."""

    @collective
    def __init__(self, pool: NodePool) -> None:
        self._targets = []
        for relation in range(pool.num_relations):
            in_relation = pool.trained.relations == relation
            rows = np.unique(pool.trained.targets[in_relation])
            keys = pool.ids[pool.row_map.to_local(rows)]
            self._targets.append(Candidates(pool, keys, rows))

    @collective
    @override
    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        rows = np.empty((len(edges), count), np.int64)
        for relation, targets in enumerate(self._targets):
            in_relation = edges.relations == relation
            rows[in_relation] = targets.draw(edges[in_relation], count, seeds)
        return rows


class InBatch(WrongEnds):
    """Takes the targets of the other edges of a batch; each call draws batches of ``count + 1``.

    Scores then need no rows but those of the edges themselves. Node types are ignored.
    """

    def __init__(self, pool: NodePool) -> None:
        self._layer = pool.layer

    @collective
    @override
    def draw(self, edges: LinkEdges, count: int, seeds: tuple[int, ...]) -> GlobalIndices:
        words = mixed(edges.words, *seeds).view(np.int64)
        order = Numbered(self._layer, words, edges.targets)
        # With fewer edges, as in the last step of an epoch, targets are used repeatedly.
        size = min(count + 1, max(len(order), 2))
        first, index = np.divmod(order.numbers, size)
        partners = (index[:, None] + 1 + np.arange(count) % (size - 1)) % size
        # The last batch may be short: it is filled up with the first edges.
        return order.at((first[:, None] * size + partners) % max(len(order), 1))


NEGATIVES: Mapping[str, Callable[[NodePool], WrongEnds]] = {
    "uniform": uniformly,
    "degree": by_degree,
    "relation": ByRelation,
    "batch": InBatch,
}
"""Maps ``links.negatives`` to a constructor of `WrongEnds`."""
