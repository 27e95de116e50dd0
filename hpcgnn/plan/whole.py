"""The graph of a configuration in one process: what every rank's share is cut from."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS, Aggregations
from hpcgnn.sparse import DistCSR, active_sets, restrict
from hpcgnn.storage import GraphStore, NodeBlock, assign_parts
from hpcgnn.train.adjacency import read_matrix, relation_names
from hpcgnn.train.config import Config
from hpcgnn.train.label_inputs import training_mask
from hpcgnn.train.local_graph import GraphFacts, shape_for
from hpcgnn.train.node_inputs import labelled_types
from hpcgnn.train.products import DIRECTIONS, occupied_rows
from hpcgnn.typing import Array, Mask, Offsets

__all__ = ["Pattern", "WholeGraph"]


@dataclass(frozen=True, eq=False)
class Pattern:
    """The pattern of some products.

    Parameters
    ----------
    matrix
        In one block.
    place
        The aggregation that it belongs to; None: all, over all nodes.
    direction
        "in" or "out", see `hpcgnn.train.products`.
    """

    matrix: DistCSR
    place: int | None
    direction: str


class WholeGraph:
    """Patterns, labels and sizes of a store, as a configuration trains on it.

    Collective over `grid`, which has one rank. Use with an open store; `read_nodes` reads it.

    Parameters
    ----------
    grid
        Of one rank.
    config
        The configuration; its exchange does not matter, but for active sets.
    store
        The open store.

    Raises
    ------
    InputError
        When the store lacks node data, or does not fit the configuration.
    """

    def __init__(self, grid: ProcessGrid, config: Config, store: GraphStore) -> None:
        self._store, self._config = store, config
        _require_node_data(store)
        num_nodes = store.num_nodes
        row_map = RowMap(np.array([0, num_nodes], np.int64), 0)
        directed = not (store.undirected or config.graph.undirected)
        self.wanted, self._matrix = read_matrix(grid, config, store, row_map, directed)
        self.targets, types = _read_targets(store)
        names = [each.name for each in store.node_types]
        self.facts = GraphFacts.of_store(
            store,
            num_edges=self._matrix.nnz,
            directed=directed,
            relations=relation_names(config, store, directed=directed),
            labelled_types=labelled_types(grid, names, types, self.targets),
        )
        shape = shape_for(config, self.facts)
        self._plan = CommPlan.from_ghosts(grid, row_map, self._matrix.ghosts)
        self._occupied = None
        if Aggregations.MEAN_BY_RELATION in self.wanted:
            self._occupied = occupied_rows(self._matrix)
        everything = np.ones(num_nodes, np.bool_)
        # The one plan of all nodes serves both directions.
        matrix = self._matrix
        if self._occupied is not None:
            matrix = self._restricted("in", everything, everything)
        found = {"all": Pattern(matrix, None, "in")}
        self.sets: tuple[Mask, ...] = ()
        if config.exchange.active_sets:
            found |= self._active(MODELS[config.model.name].num_aggregations(shape))
        self.patterns = found

    def row_starts(self, blocks: int) -> Offsets:
        """Return (blocks + 1,) rows of so many block rows, as training assigns them.

        Raises `InputError` for more block rows than parts.
        """
        edges = self._store.part_edges(self._config.graph.relations or None)
        return assign_parts(self._store.row_starts, edges, blocks)

    def read_nodes(self, row_map: RowMap) -> NodeBlock:
        """Return features, labels and split of a block of rows."""
        return self._store.read_nodes(row_map.start, row_map.stop)

    def _active(self, depth: int) -> dict[str, Pattern]:
        directions = sorted({DIRECTIONS[kind] for kind in self.wanted})
        sets = active_sets(self._matrix, self._plan, self.targets, depth, directions)
        self.sets = tuple(sets)
        found = {}
        for place in range(depth):
            if sets[place].all() and sets[place + 1].all():
                continue
            for direction in directions:
                matrix = self._restricted(direction, sets[place], sets[place + 1])
                found[f"{place} {direction}"] = Pattern(matrix, place, direction)
        return found

    def _restricted(self, direction: str, inputs: Mask, outputs: Mask) -> DistCSR:
        rows, columns = (outputs, inputs) if direction == "in" else (inputs, outputs)
        if self._occupied is not None:
            rows = np.tile(rows, self._matrix.num_relations) & self._occupied
        return restrict(self._matrix, self._plan, rows, columns)


def _read_targets(store: GraphStore) -> tuple[Mask, Array | None]:
    """Return a mask of the labelled training nodes, and the node types."""
    labels, split, types = (
        read(0, store.num_nodes) for read in (store.read_labels, store.read_split, store.read_types)
    )
    assert labels is not None
    assert split is not None
    return training_mask(labels, split), types


def _require_node_data(store: GraphStore) -> None:
    there = {
        "features": store.has_features or bool(store.node_types),
        "labels": store.has_labels,
        "split": store.has_split,
    }
    for name, found in there.items():
        if not found:
            raise InputError(f"{store.path} has no node {name}: convert the graph with them")
