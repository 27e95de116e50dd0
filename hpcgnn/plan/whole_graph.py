"""The graph of a configuration in one process: what every rank's share is cut from."""

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import (
    GraphFacts,
    node_types_of,
    restricted_aggregations,
    shape_for,
    typed_nodes,
)
from hpcgnn.graph.features import check_graph
from hpcgnn.graph.label_inputs import labelled_types, training_mask
from hpcgnn.graph.load import (
    read_matrix,
    relation_names,
    share_rows,
)
from hpcgnn.graph.products import (
    occupied_rows,
)
from hpcgnn.graph.targets import read_targets, with_targets
from hpcgnn.nn import find_model
from hpcgnn.plan.graph_pieces import WholeGraphs
from hpcgnn.plan.link_pairs import WholePairs
from hpcgnn.plan.survey import Survey
from hpcgnn.plan.traffic import ALL, PatternKey, Ranks, Traffic
from hpcgnn.sparse import DistCSR, active_sets, restrict
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, NodeBlock, assign_parts
from hpcgnn.train.links.edges import deal_links
from hpcgnn.train.links.objective import link_facts
from hpcgnn.train.links.pairs import DrawnPairs
from hpcgnn.typing import Array, GlobalIndices, Mask, Offsets


class WholeGraph:
    """Patterns, labels and sizes of a store, as a configuration trains on it.

    Collective over `grid`, which has one rank. Use with an open store; `read_nodes` reads it.

    Parameters
    ----------
    grid
        Of one rank.
    config
        The configuration; its exchange does not matter, but for active sets.

    Raises
    ------
    InputError
        When the store lacks node data or a relation, or does not fit the configuration.
    """

    @collective
    def __init__(self, grid: ProcessGrid, config: Config, store: GraphStore) -> None:
        self._store, self._config = store, config
        self.store_bytes = store.path.stat().st_size
        links = config.train.task == "links"
        num_nodes = store.num_nodes
        # One rank that owns everything: readers of stores, restriction and active sets then run as
        # they are.
        row_map = share_rows(grid, config, store, _needs(config))
        check_graph(config, store, ())
        directed = not (store.undirected or config.graph.undirected)
        context = Context(grid, config)
        self.pairs: WholePairs | None = None
        if links:
            dealt, hidden = deal_links(grid, config, store, row_map)
            ids = store.read_original_id(0, num_nodes)
            drawn = DrawnPairs(grid, row_map, ids, dealt, config.links)
            self.pairs = WholePairs(dealt, drawn, config.train.seeds[0])
            context = replace(context, hidden=hidden)
        read = read_matrix(context, store, row_map, directed=directed)
        self.wanted, self._matrix = read.wanted, read.matrix
        del read
        known = _read_known(config, store)
        self.targets, types = known.trained, known.types
        self.graphs: WholeGraphs | None = None
        if known.graph is not None:
            self.graphs = WholeGraphs(known.graph, known.labels, known.split, known.trained)
        names = [each.name for each in node_types_of(config, store)]
        self.facts = GraphFacts.of_store(
            store,
            config,
            num_edges=self._matrix.nnz,
            directed=directed,
            relations=relation_names(config, store, self.wanted, directed=directed),
            labelled_types=(
                () if self.graphs else labelled_types(grid, names, types, self.targets)
            ),
            num_graphs=len(self.graphs) if self.graphs else 0,
        )
        if config.graph.targets:
            nobody = store.read_original_id(0, 0)
            names_of = read_targets(config, store, nobody, self.facts.num_graphs).names
            ones = (1.0,) * len(names_of)
            self.facts = self.facts.of_targets(names_of, ones, ones)
        if self.pairs is not None:
            self.facts = link_facts(self.facts, config)
            # A rank is rehearsed that has edges to train on.
            self.targets = np.zeros(num_nodes, np.bool_)
            self.targets[self.pairs.targets] = True
        shape = shape_for(config, self.facts)
        self._plan = CommPlan.from_ghosts(grid, row_map, self._matrix.ghosts)
        self._occupied = None
        if any(kind.by_relation for kind in self.wanted):
            self._occupied = occupied_rows(self._matrix)
        everything = np.ones(num_nodes, np.bool_)
        matrix = self._matrix
        if self._occupied is not None:
            matrix = self._restricted("in", everything, everything)
        self.patterns: dict[PatternKey, DistCSR] = {ALL: matrix}
        self._sets: tuple[Mask, ...] = ()
        if not links and (last := restricted_aggregations(config, shape)):
            depth = find_model(config.model.name).num_aggregations(shape)
            self.patterns |= self._active(depth, last)

    def row_starts(self, blocks: int) -> Offsets:
        """Return (blocks + 1,) rows of so many block rows, as training assigns them.

        Raises `InputError` for more block rows than parts.
        """
        edges = self._store.part_edges(self._config.graph.relations or None)
        return assign_parts(self._store.row_starts, edges, blocks)

    def surveys(self, ranks: Ranks) -> dict[PatternKey, Survey]:
        """Return what ranks need for every pattern."""
        return {key: Survey.of(pattern, ranks) for key, pattern in self.patterns.items()}

    def trains(self, starts: Offsets) -> Array:
        """Return (blocks,) the training nodes of each block row, or those with an edge to train."""
        found = np.add.reduceat(np.append(self.targets, False), starts[:-1], dtype=np.int64)
        return np.where(np.diff(starts) > 0, found, 0)

    def sets(self, row_map: RowMap) -> tuple[Mask, ...]:
        """Return the active sets ``S_0 .. S_L`` of a block row; empty without any."""
        return tuple(each[row_map.start : row_map.stop].copy() for each in self._sets)

    def read_nodes(self, row_map: RowMap) -> NodeBlock:
        """Return features, labels and split of a block of rows."""
        split = self._config.graph.split
        nodes = self._store.read_nodes(row_map.start, row_map.stop, split)
        nodes = typed_nodes(self._config, self._store, nodes)
        # Graphs have labels of their own.
        return nodes if self.graphs else with_targets(self._config, self._store, nodes)

    def traffic(self, starts: Offsets) -> dict[PatternKey, Traffic]:
        """Return what moves beside the products, by the rows of the ranks."""
        more = self.pairs or self.graphs
        return {} if more is None else more.traffic(starts)

    def _active(self, depth: int, last: int) -> dict[PatternKey, DistCSR]:
        directions = sorted({kind.direction for kind in self.wanted})
        # Sets do not depend on how nodes are cut, so they are found once for all numbers of ranks.
        sets = active_sets(self._matrix, self._plan, self.targets, depth, directions, last=last)
        self._sets = tuple(sets)
        found: dict[PatternKey, DistCSR] = {}
        for place in range(depth):
            if sets[place].all() and sets[place + 1].all():
                continue
            for direction in directions:
                found[place, direction] = self._restricted(direction, *sets[place : place + 2])
        return found

    def _restricted(self, direction: str, inputs: Mask, outputs: Mask) -> DistCSR:
        rows, columns = (outputs, inputs) if direction == "in" else (inputs, outputs)
        if self._occupied is not None:
            rows = np.tile(rows, self._matrix.num_relations) & self._occupied
        return restrict(self._matrix, self._plan, rows, columns)


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of all nodes: labels, split, which train, types, numbers of their graphs."""

    labels: Array
    split: Array
    trained: Mask
    types: Array | None
    graph: GlobalIndices | None


def _read_known(config: Config, store: GraphStore) -> _Known:
    graph = None
    if config.train.task == "graphs":
        graph = store.read_graph(0, store.num_nodes)
        if graph is None:
            raise InputError(f"train.task = 'graphs': {store.path} is one graph; convert many")
    if config.train.task == "links":
        labels: Array | None = np.full(store.num_nodes, -1, np.int32)
    elif config.graph.targets:
        ids, count = store.read_original_id(0, store.num_nodes), 0
        if graph is not None:
            ids, count = graph, len(np.unique(graph))
        labels = read_targets(config, store, ids, count).values
    else:
        labels = store.read_labels(0, store.num_nodes)
    split: Array | None = np.zeros(store.num_nodes, np.uint8)
    if config.train.task != "links":
        split = store.read_split(0, store.num_nodes, config.graph.split)
    types = store.read_types(0, store.num_nodes)
    if types is None and not store.has_features:
        types = np.zeros(store.num_nodes, np.uint8)
    assert labels is not None
    assert split is not None
    return _Known(labels, split, training_mask(labels, split), types, graph)


def _needs(config: Config) -> tuple[str, ...]:
    """Return the node data that a run of the configuration needs."""
    if config.train.task == "links":
        return ("features",)
    # Numbers of a file take the place of the store's labels.
    return ("features", "split") if config.graph.targets else ("features", "labels", "split")
