"""The edges to predict, and their split into train, valid and test shares.

All draws are functions of a seed and the original ids of an edge's nodes, so they depend neither on
the number of ranks nor on the partition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import (
    Communicator,
    ProcessGrid,
    agree,
    allreduce_sum,
    redistribute,
    rows_of,
    share_on_hosts,
)
from hpcgnn.config.edges import EdgesConfig
from hpcgnn.config.links import LinksConfig
from hpcgnn.errors import InputError
from hpcgnn.graph.stored_rows import StoredRows, check_relations
from hpcgnn.kernels.mixing import GOLDEN, murmur_mix, uniform
from hpcgnn.sparse import HiddenEdges, read_adjacency
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask

_DIRECTION = 0x6469726563740000
"""Makes the draw of directions independent of the draw that splits edges into shares."""

_REVERSED = 0x7265766572736564
"""Makes the draws of reverses independent of those of their edges."""

SHARES = ("train", "valid", "test")
"""The shares of the predicted edges, by the keys of ``[links]``."""


def mixed(*integers: Any) -> NDArray[np.uint64]:
    """Return 64 well-mixed bits of integers; their shapes broadcast to at least one dimension."""
    word = np.full(1, GOLDEN, np.uint64)
    for values in integers:
        # Reinterpret the bits: ids may be negative.
        bits = np.atleast_1d(np.asarray(values)).astype(np.int64, copy=False).view(np.uint64)
        word = murmur_mix(word ^ bits)
    return word


@dataclass(frozen=True, eq=False)
class LinkEdges:
    """Edges of a rank, which owns their targets unless noted otherwise.

    Sources and targets (E,) int64 are global rows, `relations` (E,) int64 numbers of predicted
    relations, and `words` (E,) int64 well-mixed bits of each edge, the same on any partition.
    `parts` (E,) uint8 are the splits stored with the edges, see `Split`; None if there are none.
    """

    sources: GlobalIndices
    targets: GlobalIndices
    relations: GlobalIndices
    words: GlobalIndices
    parts: Array | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, edges: GlobalIndices | Mask) -> "LinkEdges":
        """Return the edges at some indices, in any order, or of a mask (E,)."""
        parts = None if self.parts is None else self.parts[edges]
        ends = self.sources[edges], self.targets[edges]
        return LinkEdges(*ends, self.relations[edges], self.words[edges], parts)

    def judges(self, num_ranks: int) -> LocalIndices:
        """Return the ranks (E,) int32 that evaluate the edges, about equally many each."""
        ranks = uniform(self.words.view(np.uint64)) * num_ranks
        return np.minimum(ranks, num_ranks - 1).astype(np.int32)

    @collective
    def shared(self, grid: ProcessGrid) -> "LinkEdges":
        """Return the edges of all ranks, without their splits, on each rank."""
        names = ("sources", "targets", "relations", "words")
        return LinkEdges(*(share_on_hosts(grid, f"edges.{n}", getattr(self, n)) for n in names))

    def in_order(self) -> GlobalIndices:
        """Return the edges (E,) sorted by words: the same order for all partitions."""
        return np.argsort(self.words, kind="stable")

    @collective
    def with_reverses(self, stored: StoredRows, num_relations: int) -> "LinkEdges":
        """Return the edges and, on the ranks that own their sources, their reverses.

        In a directed graph, the reverses of relation r are relation ``num_relations + r``. Stored
        splits are left out.
        """
        relations = self.relations + (num_relations if stored.directed else 0)
        words = mixed(_REVERSED, self.words).view(np.int64)
        columns = redistribute(
            stored.context.grid.layer,
            stored.row_map.owner(self.sources),
            *(self.targets, self.sources, relations, words),
        )
        here = self.sources, self.targets, self.relations, self.words
        return LinkEdges(*map(np.concatenate, zip(here, columns, strict=True)))

    @collective
    def spread(self, layer: Communicator) -> "LinkEdges":
        """Return the edges of all ranks that this rank evaluates, sorted by their words."""
        columns = self.sources, self.targets, self.relations, self.words
        received = LinkEdges(*redistribute(layer, self.judges(layer.size), *columns))
        return received[received.in_order()]


@collective
def read_links(
    stored: StoredRows, names: Sequence[str], *, with_roles: bool = False
) -> tuple[LinkEdges, GlobalIndices, Array | None]:
    """Return the edges of some relations, the original ids (E, 2) of their nodes, and node types.

    Self loops are left out, and so is one direction of each undirected edge, see
    `is_kept_direction`. With roles, only stored edges are returned, without added reverse edges.
    The types (num_rows,) uint8 of all rows are shared by the ranks of a host; None without types.
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
            # Negatives have the target's type: a fixed direction between two types leaks nothing.
            of_source, of_target = types[sources], types[local + row_map.start]
            one_way = np.where(of_source == of_target, one_way, of_source < of_target)
        no_loops &= one_way
    words = mixed(relations, source_ids, target_ids).view(np.int64)
    roles = np.concatenate(parts) if with_roles else None
    edges = LinkEdges(sources, local + row_map.start, relations, words, roles)
    return edges[no_loops], np.stack([source_ids, target_ids], axis=1)[no_loops], types


def is_kept_direction(sources: GlobalIndices, targets: GlobalIndices) -> Mask:
    """Return the mask (E,) of edges that represent both directions; nodes are original ids.

    A hash draws one direction for each pair of nodes. Ordering by id must not decide: the larger id
    would always be the target, but negatives may be any node, so features that grow with the ids
    would tell edges from negatives.
    """
    low, high = np.minimum(sources, targets), np.maximum(sources, targets)
    from_low = mixed(_DIRECTION, low, high) >> np.uint64(63) == 0
    selected: Mask = from_low == (sources == low)
    return selected


def split_links(
    edges: LinkEdges, ids_E2: GlobalIndices, options: LinksConfig | EdgesConfig, num_relations: int
) -> dict[str, Mask]:
    """Return masks (E,) of the edges of each share.

    All edges between two nodes, in both directions and of all relations, get the same share. A
    stored split decides instead if there is one, and `options.train` is the fraction of its
    training edges to use. `ids_E2` are original ids of the edges' nodes; edges of relations beyond
    `num_relations` are in no share.
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
    """A rank's edges of the predicted relations, and their split.

    `names` are those of `scored_relations`, which `LinkEdges.relations` numbers; `every` holds all
    their edges, `shares` those of each of `SHARES`. With `both_ways`, each edge also represents
    its reverse. `types` are as returned by `read_links`.
    """

    names: tuple[str, ...]
    every: LinkEdges
    shares: Mapping[str, LinkEdges]
    both_ways: bool
    types: Array | None

    @collective
    def joined_types(self, layer: Communicator, relation: int) -> Mask | None:
        """Return the mask (T, T) of source and target types that a relation's edges connect.

        None without types, and if the relation has no edge.
        """
        if self.types is None:
            return None
        count = int(self.types.max(initial=0)) + 1
        in_relation = self.every.relations == relation
        joined = np.zeros((count, count), np.int64)
        edges = self.every[in_relation]
        joined[self.types[edges.sources], self.types[edges.targets]] = 1
        allreduce_sum(layer, joined)
        if self.both_ways:
            joined = joined + joined.T
        return joined > 0 if joined.any() else None


@collective
def known_links(stored: StoredRows) -> Links:
    """Return the edges of a graph that is only predicted on: as `deal_links`, with empty shares."""
    names = _predicted(stored)
    all_edges, _, types = read_links(stored, names)
    no_edge = all_edges[np.zeros(len(all_edges), np.bool_)]
    return _by_end(stored, names, all_edges, dict.fromkeys(SHARES, no_edge), types)


def _predicted(stored: StoredRows) -> tuple[str, ...]:
    """Return the names of the relations whose edges are predicted; collective."""
    options = stored.context.config.links
    names = options.relations or stored.relations
    with agree(stored.context.grid.world):
        check_relations("links.relations", names, stored.store)
        scored = scored_relations(names, options, directed=stored.directed)
        if len(set(scored)) < len(scored):
            raise InputError(
                f"{stored.store.path}: links.ends = 'both' names reversed relations as some of "
                "links.relations; give fewer of them, or convert with other names"
            )
    return tuple(names)


@collective
def _also_tested(stored: StoredRows, edges: LinkEdges, tested: Mask, num_relations: int) -> Mask:
    """Return the mask (E,) of edges that are `tested`, or whose reverse in their relation is."""
    grid, row_map = stored.context.grid, stored.row_map
    keys = (edges.targets - row_map.start) * row_map.num_rows + edges.sources
    found = np.zeros(len(edges), np.bool_)
    for relation in range(num_relations):
        inside = edges.relations == relation
        ends = (column[inside & tested] for column in (edges.targets, edges.sources))
        both_ways = HiddenEdges.between(grid, row_map, *ends)
        found[inside] = np.isin(keys[inside], both_ways.keys)
    return found


@collective
def deal_links(stored: StoredRows) -> tuple[Links, HiddenEdges]:
    """Return the edges to predict, and the edges to hide when the graph is read.

    Raises `CollectiveInputError` if the store lacks a relation.
    """
    store, options, names = stored.store, stored.context.config.links, _predicted(stored)
    with_split = [name for name in store.relations if store.has_edge_split(name)]
    with_roles = options.stored and not set(names).isdisjoint(with_split)
    # Validation and test edges of other relations are hidden too.
    unlisted = [name for name in with_split if with_roles and name not in names]
    if not with_roles:
        with agree(stored.context.grid.world):
            options.check_shares()
    edges, pairs, types = read_links(stored, [*names, *unlisted], with_roles=with_roles)
    masks = split_links(edges, pairs, options, len(names))
    if edges.parts is not None and not stored.directed:
        masks["train"] &= ~_also_tested(stored, edges, masks["valid"] | masks["test"], len(names))
    hidden_shares = SHARES if options.disjoint else SHARES[1:]
    removed = np.logical_or.reduce([masks[name] for name in hidden_shares])
    if edges.parts is not None:
        removed |= (edges.parts == Split.VALID) | (edges.parts == Split.TEST)
    grid, row_map = stored.context.grid, stored.row_map
    hidden = HiddenEdges.between(grid, row_map, edges.targets[removed], edges.sources[removed])
    shares = {name: edges[mask] for name, mask in masks.items()}
    predicted = edges[edges.relations < len(names)]
    return _by_end(stored, names, predicted, shares, types), hidden


@collective
def _by_end(
    stored: StoredRows,
    names: tuple[str, ...],
    every: LinkEdges,
    shares: Mapping[str, LinkEdges],
    types: Array | None,
) -> Links:
    """Return the links, with an edge for each end that is predicted."""
    if stored.context.config.links.ends == "both":
        count = len(names)
        every = every.with_reverses(stored, count)
        shares = {name: edges.with_reverses(stored, count) for name, edges in shares.items()}
    scored = scored_relations(names, stored.context.config.links, directed=stored.directed)
    return Links(scored, every, shares, not stored.directed, types)


def scored_relations(
    names: Sequence[str], options: LinksConfig, *, directed: bool
) -> tuple[str, ...]:
    """Return the relations that a scorer tells apart: some of the graph, and perhaps reverses."""
    more = names if options.ends == "both" and directed else ()
    return (*names, *(f"{name} reversed" for name in more))
