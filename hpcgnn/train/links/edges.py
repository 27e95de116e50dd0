"""The edges that are predicted: which they are, and to which share each belongs.

All draws are functions of a seed and the original ids of an edge's nodes, so that neither the
number of ranks nor the partition changes one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import (
    Communicator,
    agree,
    allreduce_sum,
    redistribute,
    rows_of,
    share_on_hosts,
)
from hpcgnn.config.edges import EdgesConfig
from hpcgnn.config.links import LinksConfig
from hpcgnn.graph.stored import StoredRows, check_relations
from hpcgnn.kernels.mixing import GOLDEN, murmur_mix, uniform
from hpcgnn.sparse import HiddenEdges, read_adjacency
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask

_DIRECTION = 0x6469726563740000
"""Sets the draw of directions apart from the one that deals edges out to shares."""

SHARES = ("train", "valid", "test")
"""The shares of the edges that leave the graph, by the keys of ``[links]``."""


def mixed(*fields: Any) -> NDArray[np.uint64]:
    """Return 64 well-mixed bits of integers of shapes that broadcast, at least one-dimensional."""
    word = np.full(1, GOLDEN, np.uint64)
    for column in fields:
        # Negative ids keep their bits.
        value = np.atleast_1d(np.asarray(column)).astype(np.int64, copy=False).view(np.uint64)
        word = murmur_mix(word ^ value)
    return word


@dataclass(frozen=True, eq=False)
class LinkEdges:
    """Edges of a rank, which owns their targets where nothing else is said.

    Sources and targets (E,) int64 are global rows, `relations` (E,) int64 numbers of the predicted
    ones, `words` (E,) int64 well-mixed bits of the edge, the same on any partition. `parts` (E,)
    uint8 of `Split` are stored roles of the edges; None without.
    """

    sources: GlobalIndices
    targets: GlobalIndices
    relations: GlobalIndices
    words: GlobalIndices
    parts: Array | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, edges: GlobalIndices | Mask) -> "LinkEdges":
        """Return the edges of places in any order, or of a mask (E,)."""
        parts = None if self.parts is None else self.parts[edges]
        ends = self.sources[edges], self.targets[edges]
        return LinkEdges(*ends, self.relations[edges], self.words[edges], parts)

    def judges(self, num_ranks: int) -> LocalIndices:
        """Return (E,) int32 which rank judges each edge: about equally many are each one's."""
        ranks = uniform(self.words.view(np.uint64)) * num_ranks
        return np.minimum(ranks, num_ranks - 1).astype(np.int32)

    @collective
    def spread(self, layer: Communicator) -> "LinkEdges":
        """Return the edges of all ranks that this one judges, by their words."""
        columns = self.sources, self.targets, self.relations, self.words
        received = redistribute(layer, self.judges(layer.size), *columns)
        order = np.argsort(received[-1], kind="stable")
        return LinkEdges(*(column[order] for column in received))


@collective
def read_links(
    stored: StoredRows, names: Sequence[str], *, with_roles: bool = False
) -> tuple[LinkEdges, GlobalIndices, Array | None]:
    """Return the edges of some relations, the original ids (E, 2) of their nodes, and all types.

    Self loops are left out, and of the two directions of an undirected edge one, see
    `is_kept_direction`. With roles the edges are those of the store and no reverse. The types
    (num_rows,) uint8 are of the nodes of all rows; the ranks of a host share them. None without.
    """
    grid, store, row_map = stored.context.grid, stored.store, stored.row_map
    with agree(grid.world):
        ids = store.read_original_id(row_map.start, row_map.stop)
        types = store.read_types(row_map.start, row_map.stop)
    types = None if types is None else share_on_hosts(grid, "links.types", types)
    rows: list[Array] = []
    columns: list[Array] = []
    parts: list[Array] = []
    both_ways = not stored.directed and not with_roles
    for name in names:
        pattern = read_adjacency(grid, store, row_map, [name], undirected=both_ways)
        if with_roles:
            with agree(grid.world):
                split = store.read_edge_data(row_map.start, row_map.stop, name).split
            parts.append(np.zeros(len(pattern.columns), np.uint8) if split is None else split)
        rows.append(np.repeat(np.arange(row_map.num_local), np.diff(pattern.indptr)))
        columns.append(pattern.columns)
    relations = np.repeat(np.arange(len(names)), [len(pattern) for pattern in rows])
    local, sources = np.concatenate(rows).astype(np.int64), np.concatenate(columns)
    source_ids, target_ids = rows_of(grid.layer, row_map, sources, ids), ids[local]
    no_loops = source_ids != target_ids
    if store.undirected or both_ways:
        one_way = is_kept_direction(source_ids, target_ids)
        if types is not None:
            # Wrong targets are of the target's type: between two types the order tells nothing.
            of_source, of_target = types[sources], types[local + row_map.start]
            one_way = np.where(of_source == of_target, one_way, of_source < of_target)
        no_loops &= one_way
    words = mixed(relations, source_ids, target_ids).view(np.int64)
    roles = np.concatenate(parts) if with_roles else None
    edges = LinkEdges(sources, local + row_map.start, relations, words, roles)
    return edges[no_loops], np.stack([source_ids, target_ids], axis=1)[no_loops], types


def is_kept_direction(sources: GlobalIndices, targets: GlobalIndices) -> Mask:
    """Return (E,) which edges, given by original ids, represent themselves and their reverse.

    Of each pair of nodes one direction does, drawn by a hash. An order of the nodes must not
    decide: the later one would always be the target, wrong targets are any nodes, and whatever
    grows with the ids would tell edges from wrong pairs.
    """
    low, high = np.minimum(sources, targets), np.maximum(sources, targets)
    from_low = mixed(_DIRECTION, low, high) >> np.uint64(63) == 0
    selected: Mask = from_low == (sources == low)
    return selected


def split_links(
    edges: LinkEdges, ids_E2: GlobalIndices, options: LinksConfig | EdgesConfig, num_relations: int
) -> dict[str, Mask]:
    """Return masks (E,) of the edges of each share.

    All edges between two nodes, in both directions and of all relations, are of one share, unless
    edges have stored roles: then these say which are tested, and `options.train` is the share of
    those with the role to train. `ids_E2` are original ids of the nodes of the edges; the edges of
    relations beyond `num_relations` are of no share.
    """
    low, high = ids_E2.min(axis=1), ids_E2.max(axis=1)
    draw = uniform(mixed(options.split_seed, low, high))
    masks, start = {}, 0.0
    for name in SHARES:
        stop = start + getattr(options, name)
        masks[name] = (draw >= start) & (draw < stop)
        start = stop
    if edges.parts is not None:
        masks = {
            "train": (edges.parts == Split.TRAIN) & masks["train"],
            "valid": edges.parts == Split.VALID,
            "test": edges.parts == Split.TEST,
        }
    predicted = edges.relations < num_relations
    return {name: mask & predicted for name, mask in masks.items()}


@dataclass(frozen=True, eq=False)
class Links:
    """The edges of a rank that are predicted, or could be.

    `names` are of the predicted relations, which `LinkEdges.relations` numbers; `every` are all
    edges of these, `shares` those of each of `SHARES`. With `both_ways` each of them represents its
    reverse as well. `types` are as of `read_links`.
    """

    names: tuple[str, ...]
    every: LinkEdges
    shares: Mapping[str, LinkEdges]
    both_ways: bool
    types: Array | None

    @collective
    def joined_types(self, layer: Communicator, relation: int) -> Mask | None:
        """Return (T, T) which types the edges of a relation lead to from each type.

        None without types, and where the relation has no edge.
        """
        if self.types is None:
            return None
        count = int(self.types.max(initial=0)) + 1
        of_it = self.every.relations == relation
        reverse_of = np.zeros((count, count), np.int64)
        reverse_of[self.types[self.every.sources[of_it]], self.types[self.every.targets[of_it]]] = 1
        allreduce_sum(layer, reverse_of)
        if self.both_ways:
            reverse_of = reverse_of + reverse_of.T
        return reverse_of > 0 if reverse_of.any() else None


@collective
def known_links(stored: StoredRows) -> Links:
    """Return the edges of a graph of which none is predicted; as `deal_links`, but for shares."""
    names = _predicted(stored)
    all_edges, _, types = read_links(stored, names)
    none = all_edges[np.zeros(len(all_edges), np.bool_)]
    return Links(names, all_edges, dict.fromkeys(SHARES, none), not stored.directed, types)


def _predicted(stored: StoredRows) -> tuple[str, ...]:
    """Return the names of the relations whose edges are predicted; collective."""
    names = stored.context.config.links.relations or stored.relations
    with agree(stored.context.grid.world):
        check_relations("links.relations", names, stored.store)
    return tuple(names)


@collective
def deal_links(stored: StoredRows) -> tuple[Links, HiddenEdges]:
    """Return the edges to predict, and what the graph must be read without.

    Raises `CollectiveInputError` when a relation is not one of the store's.
    """
    store, options, names = stored.store, stored.context.config.links, _predicted(stored)
    with_split = [name for name in store.relations if store.has_edge_split(name)]
    with_roles = options.stored and not set(names).isdisjoint(with_split)
    # Tested edges of other relations leave the graph too.
    unlisted = [name for name in with_split if with_roles and name not in names]
    edges, pairs, types = read_links(stored, [*names, *unlisted], with_roles=with_roles)
    masks = split_links(edges, pairs, options, len(names))
    gone = np.logical_or.reduce(list(masks.values()))
    if edges.parts is not None:
        gone |= (edges.parts == Split.VALID) | (edges.parts == Split.TEST)
    grid, row_map = stored.context.grid, stored.row_map
    hidden = HiddenEdges.between(grid, row_map, edges.targets[gone], edges.sources[gone])
    shares = {name: edges[mask] for name, mask in masks.items()}
    predicted = edges[edges.relations < len(names)]
    return Links(names, predicted, shares, not stored.directed, types), hidden
