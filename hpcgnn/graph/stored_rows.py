"""The rows of an open store that a rank owns, and checks that the store fits a configuration."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hpcgnn.comm import ProcessGrid, RowMap, agree, bcast
from hpcgnn.config.config import Config
from hpcgnn.config.options import require
from hpcgnn.config.run_features import changes, features_of, show
from hpcgnn.errors import InputError, instead_of
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import check_features, node_types_of, num_edge_features, typed_nodes
from hpcgnn.graph.feature_storage import FeatureStorage
from hpcgnn.nn import find_model
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, NodeBlock, SparseRows, assign_parts
from hpcgnn.support import Feature, Trait, check, conflicts, lacks, needs


@dataclass(frozen=True, eq=False)
class StoredRows:
    """An open store, and the rows of it that this rank owns.

    `fields` are node data that the store must have.
    """

    context: Context
    store: GraphStore
    row_map: RowMap
    fields: Sequence[str] = ()

    @classmethod
    @collective
    def share(cls, context: Context, store: GraphStore, fields: Sequence[str]) -> "StoredRows":
        """Return the rows of this rank, after checking that the store fits the configuration.

        The store must have the node data `fields`, and those that the configuration needs.

        Raises `CollectiveInputError` if the store lacks them or a relation, does not fit the
        configuration, or has fewer parts than there are block rows.
        """
        grid, config = context.grid, context.config
        fields = _needed(config, fields)
        row_map = share_rows(grid, config, store, fields)
        with agree(grid.world):
            check_graph(config, store, context.aggregations)
            num_edge_features(config, store)
        return cls(context, store, row_map, fields)

    @classmethod
    @collective
    @contextmanager
    def opened(
        cls, context: Context, fields: Sequence[str], row_map: RowMap | None = None
    ) -> Iterator["StoredRows"]:
        """Open the store of the configuration, which must have the node data `fields`.

        With a `row_map`, it has been opened before, and the ranks own these rows.
        """
        grid, config = context.grid, context.config
        with agree(grid.world):
            store = GraphStore.open(config.graph.store, grid.world)
        with store:
            yield cls(context, store, row_map or share_rows(grid, config, store, fields))

    @property
    def is_sparse(self) -> bool:
        """Whether features are read as sparse rows."""
        return self.context.takes_sparse and reads_sparse(self.context.config, self.store)

    @property
    def directed(self) -> bool:
        """Whether edges are used in one direction only."""
        return not (self.store.undirected or self.context.config.graph.undirected)

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of the relations in use."""
        return tuple(self.context.config.graph.relations or self.store.relations)

    @collective
    def nodes(self, *, features: bool = True) -> NodeBlock:
        """Return the node data, with the node types for training, see `typed_nodes`.

        Raises `CollectiveInputError` if a block cannot be read.
        """
        context, store = self.context, self.store
        start, stop = self.row_map.start, self.row_map.stop
        split = context.config.graph.split
        if split not in store.splits and "split" not in self.fields:
            # Predictions do not need the split.
            split = ""
        with context.trace.span("read.nodes"), agree(context.grid.world):
            if features and self.is_sparse:
                nodes = read_rows(context.config, store, start, stop, split)
            elif features:
                empty = FeatureStorage(context.config.graph.features_dir).empty
                nodes = store.read_nodes(start, stop, split, empty=empty)
            else:
                nodes = NodeBlock(
                    start,
                    stop,
                    None,
                    store.read_labels(start, stop),
                    store.read_split(start, stop, split),
                    store.read_original_id(start, stop),
                    store.read_types(start, stop),
                    graph=store.read_graph(start, stop),
                )
            return typed_nodes(context.config, store, nodes)


def read_rows(config: Config, store: GraphStore, start: int, stop: int, split: str) -> NodeBlock:
    """Return node data with dense or sparse features, as training uses them."""
    if not reads_sparse(config, store):
        return store.read_nodes(start, stop, split)
    nodes = store.read_nodes(start, stop, split, features=False)
    tables = nodes.type_features
    by_type = [SparseRows.of(table) if table.shape[1] else None for table in tables]
    sparse = store.read_sparse_features(start, stop) if store.num_features else None
    return replace(nodes, sparse=sparse, sparse_of_types=tuple(by_type))


def reads_sparse(config: Config, store: GraphStore) -> bool:
    """Return whether features stay sparse in training; "auto" does if everything supports it."""
    option = config.graph.sparse_features
    if option != "auto":
        return option == "always"
    if not store.sparse_columns:
        return False
    graph = replace(config.graph, sparse_features="always")
    changed = replace(config, graph=graph)
    return not any(conflicts(graph_features(changed, store, ())))


def _needed(config: Config, fields: Sequence[str]) -> Sequence[str]:
    """Return the node data that a store must have for a configuration, `fields` included."""
    if config.train.label_augmentation > 0 or config.correct_and_smooth.enabled:
        fields = sorted({*fields, "labels", "split"})
    if config.graph.targets:
        # Targets from a file replace the store's labels.
        fields = sorted({*fields, "split"} - {"labels"})
    return fields


def check_relations(key: str, names: Sequence[str], store: GraphStore) -> None:
    """Raise `InputError`, which names the key, for a relation that the store lacks, or repeated."""
    # The edges of a repeated relation would count twice.
    require(len(set(names)) == len(names), key, tuple(names), "must be different relations")
    for name in names:
        if name not in store.relations:
            remedy = (
                instead_of(name, store.relations, f"hpcgnn inspect {store.path}")
                if any(store.relations)
                else f"its edges have no types: leave {key} out"
            )
            raise InputError(f"{key}: {store.path} has no relation {name!r}; {remedy}")


@collective
def share_rows(
    grid: ProcessGrid, config: Config, store: GraphStore, fields: Sequence[str]
) -> RowMap:
    """Return the map of rows to ranks, for a store that must have the node data `fields`.

    Raises `CollectiveInputError` if it lacks them or a relation, or has fewer parts than there are
    block rows.
    """
    relations = config.graph.relations
    starts = None
    table = "--graphs" if store.has_graphs else "--nodes"
    available = {
        "labels": (store.has_labels, f"convert with a column `label` of {table} FILE"),
        "split": (store.has_split, f"run hpcgnn split {store.path} --random-split 60,20,20"),
        "fields": (len(store.all_fields) > 0, "convert a series, or with --fields"),
    }
    with agree(grid.world):
        check_relations("graph.relations", relations, store)
        for field in fields:
            if field == "features":
                check_features(config, store)
                continue
            is_there, remedy = available[field]
            if not is_there:
                raise InputError(f"{store.path} has no node {field}; {remedy}")
        if grid.rank == 0:
            edges = store.part_edges(relations or None)
            starts = assign_parts(store.row_starts, edges, grid.num_blocks)
    return RowMap(bcast(grid.world, starts), grid.block)


def check_graph(config: Config, store: GraphStore, aggregations: Sequence[Aggregation]) -> None:
    """Raise an `InputError` if a graph does not work with a configuration.

    `aggregations` replace those of the model, see `features_of`.
    """
    check(config, lambda changed: graph_features(changed, store, aggregations), changes)


def graph_features(
    changed: Config, store: GraphStore, aggregations: Sequence[Aggregation]
) -> list[Feature]:
    """Return the features of a configuration and of its graph, see `check_graph`."""
    read = aggregations or find_model(changed.model.name).aggregations
    return [*features_of(changed, aggregations), *store_features(changed, store, read)]


def store_features(
    config: Config, store: GraphStore, aggregations: Sequence[Aggregation]
) -> Iterator[Feature]:
    """Yield a stored graph's features: what they need from other features, and what they lack."""
    relations = config.graph.relations or store.relations
    directed = not (store.undirected or config.graph.undirected)
    if config.graph.weights == "use" and any(store.weighted(name) for name in relations):
        name = f"a graph with edge weights ({store.path})"
        yield Feature(name, needs(Trait.EDGE_WEIGHTS), ("graph.weights",))
    if config.graph.undirected and not store.undirected:
        reverses = needs(Trait.ADDED_REVERSES)
        yield Feature("graph.undirected = true", reverses, ("graph.undirected",))
    if directed and any(a.is_reversed for a in on_graph(aggregations, directed=directed)):
        name = f"model.name = {show(config.model.name)} on directed edges"
        yield Feature(name, needs(Trait.REVERSE_EDGES), ("graph.undirected", "model.name"))
    types, name = node_types_of(config, store), f"a graph without node types ({store.path})"
    missing: dict[Trait, str] = {Trait.NODE_TYPES: "it has no input layers"}
    if types:
        name = f"a graph with node types ({store.path})"
        missing = {
            Trait.ONE_NODE_TYPE: "nodes without features have vectors (model.embeddings)",
        }
    yield Feature(name, lacks(missing))
    if all(node_type.num_features > 0 for node_type in types):
        name = f"a graph with features of all nodes ({store.path})"
        yield Feature(name, lacks({Trait.BARE_NODES: "no node is without features"}))
    without = [name for name in relations if store.edge_features(name)[0] == 0]
    if not any(store.edge_features(name)[0] for name in store.relations):
        bare = lacks({Trait.SCALED_EDGES: "its edges have none"})
        remedy = "convert with --edge-features"
        yield Feature(f"a graph without features of edges ({store.path})", bare, remedy=remedy)
    if without and config.graph.positions == "none" and not config.fields.read_of_edges:
        where = f"relation '{without[0]}' has none" if without[0] else "its edges have none"
        name = f"a graph without features of edges ({store.path})"
        yield Feature(
            name,
            lacks({Trait.STORED_EDGE_FEATURES: where}),
            remedy="convert with --edge-features, or with --positions, and "
            "set graph.positions=relative",
        )
    if not store.box:
        name = f"a graph without positions ({store.path})"
        lacking = lacks({Trait.POSITIONS: "it has none"})
        yield Feature(name, lacking, remedy="convert with --positions")
    if not store.multi_label:
        name = f"a graph of one label a node ({store.path})"
        yield Feature(name, lacks({Trait.SEVERAL_LABELS: "there is no other to predict"}))
