"""A stored graph in one process, from which every rank's share is taken."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np
from typing_extensions import override

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import restricted_aggregations, shape_for, typed_nodes
from hpcgnn.graph.load import find_facts
from hpcgnn.graph.operators import occupied_rows
from hpcgnn.graph.read_edges import read_matrix
from hpcgnn.graph.stored_rows import StoredRows, read_rows
from hpcgnn.nn import find_model
from hpcgnn.plan.counted_messages import WantedRows
from hpcgnn.plan.ghost_rows import StoredSurvey
from hpcgnn.plan.objectives import PlannedObjective, ReadRows, find_predictions
from hpcgnn.plan.planned_graph import OwnEdges, PlannedGraph, Survey, numbered_edges
from hpcgnn.plan.simulated_peers import PatternShare
from hpcgnn.plan.traffic import ALL, PatternKey, Ranks, copies_key, exact_key
from hpcgnn.sparse import DistCSR, EdgeTable, active_sets, copies_of, restrict, round_weights
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, NodeBlock, assign_parts
from hpcgnn.train.tasks import find_pair
from hpcgnn.typing import Array, Mask, Offsets


class WholeGraph(PlannedGraph):
    """Patterns, labels and sizes of a store as a configuration trains on it.

    Collective over `grid`, which has one rank. The configuration's exchange matters only for active
    sets. The store must stay open, as `read_nodes` reads it.

    Raises `InputError` if the store lacks node data or a relation, or does not fit the
    configuration.
    """

    @collective
    def __init__(self, grid: ProcessGrid, config: Config, store: GraphStore) -> None:
        self._grid, self._store, self._config = grid, store, config
        self.store_bytes = store.path.stat().st_size
        objective: Any = find_pair(config.train.task).objective
        context = Context(grid, config)
        # The single rank owns everything, so the code of training can read and restrict the graph.
        stored = StoredRows.share(context, store, objective.reads.fields)
        nodes = stored.nodes(features=False)
        labelled = objective.reads.label(stored, nodes)
        self._labels = None if labelled.num_graphs else labelled.labels
        self._predictions = find_predictions(objective)(
            objective, ReadRows(stored, nodes, labelled)
        )
        self.targets = self._predictions.trains
        hidden = self._predictions.hidden
        read = read_matrix(replace(stored, context=replace(context, hidden=hidden)))
        self.aggregations = read.aggregations
        self._matrix = read.matrix
        self._means = read.edge_means
        self._table = read.table if read.edges is None else EdgeTable(read.edges.features)
        del read
        facts = find_facts(stored, nodes, labelled, self.aggregations, self._matrix.nnz)
        self.facts = self._predictions.facts(facts, config)
        shape = shape_for(config, self.facts)
        num_nodes, row_map = store.num_nodes, stored.row_map
        self._plan = CommPlan.from_ghosts(grid, row_map, self._matrix.ghosts)
        self._occupied = None
        if any(a.by_relation for a in self.aggregations):
            self._occupied = occupied_rows(self._matrix)
        everything = np.ones(num_nodes, np.bool_)
        matrix = self._matrix
        if self._occupied is not None:
            matrix = self._restricted("in", everything, everything)
        self.patterns: dict[PatternKey, DistCSR] = {ALL: matrix}
        self._sets: tuple[Mask, ...] = ()
        last = restricted_aggregations(config, shape)
        if last and self._predictions.cuts_rows:
            depth = find_model(config.model.name).num_aggregations(shape)
            self.patterns |= self._active(depth, last)

    @property
    @override
    def keys(self) -> tuple[PatternKey, ...]:
        return tuple(self.patterns)

    @override
    def survey(self, key: PatternKey, ranks: Ranks) -> StoredSurvey:
        by_replica = not any(a.passes_messages for a in self.aggregations)
        pattern, of_integers = self.patterns[key], self._config.train.reproducible
        if self._table is not None:
            # Values are numbers of entries in the table.
            of_integers = False
        elif of_integers and pattern.diagonal.values is not None:
            parts = pattern.diagonal.values / self._unit, pattern.remote.values
            pattern = pattern.with_values(np.rint(parts[0]), parts[1])
        return StoredSurvey.of(pattern, ranks, by_replica=by_replica, of_integers=of_integers)

    @override
    def surveys(self, ranks: Ranks) -> dict[PatternKey, Survey]:
        copies = self._predictions.copies(ranks.exchange)
        wide: dict[PatternKey, Survey] = {
            copies_key(count): StoredSurvey.of(
                self._side_by_side(ranks.starts, count),
                ranks,
                adapt=methodcaller("of_copies", count),
            )
            for count in copies
        }
        by_pattern = super().surveys(ranks) | wide
        if self._config.train.reproducible and any(a.attends for a in self.aggregations):
            by_pattern |= {
                exact_key(key, method, moved.num_relations): StoredSurvey.of(
                    moved,
                    ranks,
                    by_replica=False,
                    of_integers=self._table is None,
                    adapt=methodcaller("by", method),
                )
                for key, pattern in self.patterns.items()
                for method, moved in (
                    ("aware", pattern),
                    ("push", pattern.by_node()),
                    ("push", pattern),
                )
            }
        return by_pattern

    @override
    def row_starts(self, blocks: int) -> Offsets:
        edges = self._store.part_edges(self._config.graph.relations or None)
        return assign_parts(self._store.row_starts, edges, blocks)

    @override
    def trains(self, starts: Offsets) -> Array:
        return self._predictions.trained(starts)

    @override
    def sets(self, row_map: RowMap) -> tuple[Mask, ...]:
        return tuple(nodes[row_map.start : row_map.stop].copy() for nodes in self._sets)

    @override
    def read_nodes(self, row_map: RowMap) -> NodeBlock:
        rows = slice(row_map.start, row_map.stop)
        common = self._config, self._store
        nodes = read_rows(*common, rows.start, rows.stop, self._config.graph.split)
        labels = nodes.labels if self._labels is None else self._labels[rows]
        return typed_nodes(self._config, self._store, replace(nodes, labels=labels))

    @override
    def own_edges(self, patterns: Mapping[PatternKey, PatternShare], block: int) -> OwnEdges:
        if self._table is not None:
            return numbered_edges(patterns, self._table)
        rows = patterns[ALL].block.row_map
        means = None if self._means is None else self._means[rows.start : rows.stop]
        return OwnEdges(patterns, means=means)

    @override
    def largest(self) -> Mapping[PatternKey, tuple[float, float]]:
        largest = {}
        for key, pattern in self.patterns.items():
            # The single block has all columns in its diagonal part.
            part = pattern.diagonal
            entries = np.ones(part.nnz)
            if self._table is None and part.values is not None:
                entries = np.abs(np.rint(part.values / self._unit))
            ends = part.entry_rows(), part.indices
            sums = (np.bincount(numbers, entries).max(initial=1.0) for numbers in ends)
            largest[key] = (next(sums), next(sums))
        return largest

    @cached_property
    def _unit(self) -> float:
        """The unit of which weights are rounded to multiples if sums have equal bits."""
        whole = self._matrix if self._table is None else self._matrix.with_values(None, None)
        return round_weights(self._grid, whole)[1]

    @override
    def requests(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        return self._predictions.requested(starts)

    @override
    def predicted(self, starts: Offsets, block: int) -> PlannedObjective:
        return self._predictions.share(starts, block)

    def _active(self, depth: int, last: int) -> dict[PatternKey, DistCSR]:
        directions = sorted({a.direction for a in self.aggregations})
        # Sets do not depend on the distribution, so compute them once for all numbers of ranks.
        sets = active_sets(self._matrix, self._plan, self.targets, depth, directions, last=last)
        self._sets = tuple(sets)
        patterns: dict[PatternKey, DistCSR] = {}
        for layer in range(depth):
            if sets[layer].all() and sets[layer + 1].all():
                continue
            for direction in directions:
                patterns[layer, direction] = self._restricted(direction, *sets[layer : layer + 2])
        return patterns

    def _side_by_side(self, starts: Offsets, copies: int) -> DistCSR:
        """Return the pattern of copies of the graph in block rows."""
        wide = copies_of(self._matrix.with_values(None, None), copies, None, starts)
        if self._occupied is None:
            return wide
        plan = CommPlan.from_ghosts(self._grid, wide.row_map, wide.ghosts)
        return restrict(wide, plan, occupied_rows(wide), np.ones(wide.row_map.num_rows, np.bool_))

    def _restricted(self, direction: str, inputs: Mask, outputs: Mask) -> DistCSR:
        rows, columns = (outputs, inputs) if direction == "in" else (inputs, outputs)
        if self._occupied is not None:
            rows = np.tile(rows, self._matrix.num_relations) & self._occupied
        return restrict(self._matrix, self._plan, rows, columns)
