"""Load this rank's graph from a store in stages: rows, labels, operators, facts, features."""

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm import agree
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import (
    GraphFacts,
    node_types_of,
    num_edge_features,
    restricted_aggregations,
    shape_for,
)
from hpcgnn.graph.feature_storage import FeatureStorage
from hpcgnn.graph.inputs import make_inputs
from hpcgnn.graph.label_inputs import labelled_types, training_mask
from hpcgnn.graph.labels import Labelled, Reading, TargetScale, label_nodes
from hpcgnn.graph.local_graph import LocalGraph, LocalRows, node_traits
from hpcgnn.graph.operators import Adjacency, Products
from hpcgnn.graph.read_edges import (
    ReadMatrix,
    read_edge_rows_of,
    read_matrix,
    read_union,
    relation_names,
)
from hpcgnn.graph.smoothing import Smoother, make_smoother
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.graph.structure import with_structure
from hpcgnn.kernels import loading
from hpcgnn.nn import GraphView
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import DistCSR, EdgeTable, PatternRows, unite_relations
from hpcgnn.spmd import collective
from hpcgnn.spmm import Exchange
from hpcgnn.storage import GraphStore, NodeBlock
from hpcgnn.storage.by_ranks import check_rows_read

FEATURES = Reading(("features",), label_nodes)
"""Reads features, and labels only if the store has them."""


@collective
def load_graph(
    context: Context,
    reading: Reading = FEATURES,
    *,
    with_rows: bool = False,
    with_adjacency: bool = False,
) -> LocalGraph:
    """Read this rank's share of the graph and prepare its products, in stages.

    `with_rows` keeps the rows for sampling, `with_adjacency` the adjacency to make more products.

    Raises `CollectiveInputError` if the store cannot be read, or does not fit the configuration or
    the number of ranks.
    """
    grid, config = context.grid, context.config
    with context.trace.span("read.open"), agree(grid.world):
        FeatureStorage(config.graph.features_dir).check()
        store = GraphStore.open(config.graph.store, grid.world)
    with loading(lean=config.exchange.saves_memory), store:
        stored = StoredRows.share(context, store, reading.fields)
        nodes = stored.nodes(features=False)
        labelled = reading.label(stored, nodes)
        operators = _operators(stored, nodes, labelled, with_rows=with_rows)
        if not with_adjacency:
            operators = replace(operators, adjacency=None)
        return _with_features(stored, labelled, operators, nodes)


@collective
def _with_features(
    stored: StoredRows, labelled: Labelled, operators: "_Operators", nodes: NodeBlock
) -> LocalGraph:
    context = stored.context
    grid, config, trace = context.grid, context.config, context.trace
    num_edges = operators.details["local_edges"]
    facts = find_facts(stored, nodes, labelled, operators.aggregations, num_edges)
    if not restricted_aggregations(config, shape_for(config, facts)):
        operators.products.forget_matrices()
    # Features come last, since making operators needs much memory.
    nodes = with_structure(stored, stored.nodes())
    with trace.span("read.checksums"):
        check_rows_read(grid.layer, stored.store)
    with trace.span("read.features"):
        features = make_inputs(grid, config, facts, nodes, context.scales)
    return LocalGraph(
        grid=grid,
        row_map=stored.row_map,
        facts=facts,
        view=operators.view,
        adjacency=operators.adjacency,
        products=operators.products,
        features=features.to(context.device.torch_device),
        scales=context.scales,
        labels=labelled.labels,
        split=labelled.split,
        smoother=operators.smoother,
        details=operators.details,
        device=context.device,
        rows=operators.rows,
        graph_ids=labelled.ids if labelled.num_graphs else None,
        node_graph=nodes.graph if labelled.num_graphs else None,
    )


@dataclass(frozen=True, eq=False)
class _Operators:
    aggregations: tuple[Aggregation, ...]
    adjacency: Adjacency | None
    products: Products
    view: GraphView
    details: dict[str, int]
    rows: LocalRows | None
    smoother: Smoother | None


@collective
def _operators(
    stored: StoredRows, nodes: NodeBlock, labelled: Labelled, *, with_rows: bool
) -> _Operators:
    """Read the edges; make the operators, the rows to sample, and the smoother."""
    context = stored.context
    config, trace = context.config, context.trace
    with trace.span("plan"):
        read = read_matrix(stored)
    rows = _rows_to_sample(stored, read) if with_rows else None
    with trace.span("plan"):
        aggregations, matrix = read.aggregations, read.matrix
        make = replace(context.operators(), edges=read.edges, table=read.table)
        traits = node_traits(context.device, nodes, read.edge_means, config.train.precision)
        # Free memory for making the plans.
        del read
        ids, dtype = nodes.original_id, config.train.dtype
        adjacency = Adjacency(make, matrix, aggregations, dtype, ids, traits)
        products = adjacency.products()
        details = _details(matrix, products.exchange)
    view = products.view
    if labelled.members is not None:
        view = view.of_graphs(labelled.members)
    smoother = make_smoother(stored, nodes)
    return _Operators(aggregations, adjacency, products, view, details, rows, smoother)


@collective
def _rows_to_sample(stored: StoredRows, read: ReadMatrix) -> LocalRows:
    with stored.context.trace.span("read.rows"):
        (edges, *others), relations = read.rows, None
        if any(a.by_relation for a in read.aggregations):
            edges, relations = unite_relations(stored.row_map, (edges, *others))
        both_ways = edges
        if stored.directed:
            both_ways = read_union(stored, read.aggregations, undirected=True)
        return LocalRows(edges, both_ways, _table_to_sample(stored, read, edges), relations)


@collective
def _table_to_sample(stored: StoredRows, read: ReadMatrix, edges: PatternRows) -> EdgeTable | None:
    """Return the edges with the features that layers read; None if they read none."""
    if read.edges is not None:
        return EdgeTable(read.edges.features)
    if read.edge_means is None:
        return read.table
    return EdgeTable.of_pattern(stored.row_map, edges, read_edge_rows_of(stored))


@collective
def find_facts(
    stored: StoredRows,
    nodes: NodeBlock,
    labelled: Labelled,
    aggregations: tuple[Aggregation, ...],
    num_edges: int,
) -> GraphFacts:
    """Return the facts about the graph, after checking that the configuration's model fits it.

    `aggregations` are those on this graph, `num_edges` is the number of this rank's edges.

    Raises `CollectiveInputError` if options of the model do not fit the graph.
    """
    store, grid, config = stored.store, stored.context.grid, stored.context.config
    entries = np.array([num_edges])
    grid.sum_over_blocks(entries)
    types, with_labels = node_types_of(config, store), tuple[str, ...]()
    names = tuple(node_type.name for node_type in types)
    if labelled.labels is not None and labelled.split is not None and not labelled.num_graphs:
        trains = training_mask(labelled.labels, labelled.split)
        with_labels = labelled_types(grid, names, nodes.types, trains)
    # Regression targets replace the classes of the store.
    targets = labelled.targets or TargetScale((), (), ())
    facts = GraphFacts(
        name=store.name,
        fingerprint=labelled.fingerprint or store.fingerprint,
        num_nodes=store.num_nodes,
        num_edges=int(entries[0]),
        num_features=store.num_features + config.graph.num_structural,
        num_classes=len(targets.names) or store.num_classes,
        multi_label=store.multi_label and not targets.names,
        directed=stored.directed,
        num_parts=store.num_parts,
        class_names=() if targets.names else store.class_names,
        relations=relation_names(config, store, aggregations, directed=stored.directed),
        type_names=names,
        type_nodes=tuple(node_type.num_nodes for node_type in types),
        type_features=tuple(node_type.num_features for node_type in types),
        labelled_types=with_labels,
        targets=targets.names,
        target_means=targets.means,
        target_scales=targets.deviations,
        num_edge_features=num_edge_features(config, store),
        feature_names=store.feature_names,
        edge_feature_names=store.edge_feature_names,
        num_graphs=labelled.num_graphs,
    )
    with agree(grid.world):
        shape_for(config, facts)
    return facts


def _details(matrix: DistCSR, exchange: Exchange) -> dict[str, int]:
    volume = exchange.volume()
    return {
        "local_nodes": matrix.row_map.num_local,
        "local_edges": matrix.nnz,
        "ghost_nodes": len(matrix.ghosts),
        "boundary_nodes": matrix.num_boundary,
        "exchange_send_rows": int(volume.sent.sum()),
        "exchange_recv_rows": int(volume.received.sum()),
        "exchange_max_pair_rows": int(volume.sent.max(initial=0)),
    }
