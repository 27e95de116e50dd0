"""From a store to this rank's graph: rows, adjacency, operators, node data."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap, agree, bcast
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError, instead_of
from hpcgnn.graph.checksums import check_rows_read
from hpcgnn.graph.context import Context
from hpcgnn.graph.edges import num_edge_features, read_edge_inputs, read_edge_rows_of
from hpcgnn.graph.facts import GraphFacts, check_features, node_types_of, shape_for, typed_nodes
from hpcgnn.graph.features import check_graph
from hpcgnn.graph.inputs import (
    Scales,
    make_inputs,
)
from hpcgnn.graph.label_inputs import labelled_types, training_mask
from hpcgnn.graph.labelled import Labelled, label_graphs
from hpcgnn.graph.local_graph import LocalGraph, LocalRows, node_traits
from hpcgnn.graph.products import adjacency_products
from hpcgnn.graph.smoothing import make_smoother
from hpcgnn.graph.structure import structural_features
from hpcgnn.graph.targets import fingerprint_of, read_targets, target_scale
from hpcgnn.nn import find_model
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.sparse import (
    DistCSR,
    EdgeTable,
    PatternRows,
    read_adjacency,
    read_relations,
    stack_relations,
)
from hpcgnn.spmd import collective
from hpcgnn.spmm import Exchange
from hpcgnn.storage import GraphStore, assign_parts
from hpcgnn.typing import FloatArray


@dataclass(frozen=True, eq=False)
class ReadMatrix:
    """What was read of the edges.

    Parameters
    ----------
    rows
        Those that it was made of; None where it has some for each relation.
    edges
        Features that attention reads, else None; the values of the matrix are their numbers.
    edge_means
        (num_local, F) the mean features of the edges of each row, where the model reads these.
    """

    wanted: tuple[Aggregation, ...]
    matrix: DistCSR
    rows: PatternRows | None
    edges: EdgeTable | None
    edge_means: FloatArray | None


@collective
def read_matrix(
    context: Context, store: GraphStore, row_map: RowMap, *, directed: bool
) -> ReadMatrix:
    """Return this rank's block row of the matrix of the aggregations that are wanted.

    Raises
    ------
    CollectiveInputError
        When a block does not read, a weight is negative, or one matrix cannot serve all.
    """
    grid, config = context.grid, context.config
    wanted = on_graph(context.wanted, directed=directed)
    with agree(grid.world):
        # Others than attention read them from the view.
        reads_edges = config.model.edge_features and num_edge_features(config, store) > 0
    undirected, rows, edges, means = config.graph.undirected, None, None, None
    attends = all(kind.attends for kind in wanted)
    if reads_edges and not attends:
        means = read_edge_rows_of(context, store, row_map).means(row_map.num_local)
    if any(kind.by_relation for kind in wanted):
        names = config.graph.relations or store.relations
        relations = read_relations(
            grid,
            store,
            row_map,
            names,
            undirected=undirected,
            reverse=directed and config.graph.reverse,
        )
        if context.hidden is not None:
            relations = [context.hidden.drop(each) for each in relations]
        relations = [_weighted(config, each) for each in relations]
        matrix = stack_relations(row_map, relations)
    else:
        rows = _read_union(context, store, row_map, wanted, undirected=undirected)
        values = rows.weights
        if reads_edges and attends:
            found = read_edge_rows_of(context, store, row_map)
            mean_loops = any(kind.self_loops for kind in wanted)
            edges = EdgeTable.of_pattern(grid, row_map, rows, found, mean_loops=mean_loops)
            values = edges.numbers
        matrix = DistCSR.from_rows(row_map, rows.indptr, rows.columns, values)
    with agree(grid.world):
        for part in (matrix.diagonal, matrix.remote):
            if part.values is not None and part.values.min(initial=0) < 0:
                raise InputError(
                    f"{store.path}: negative edge weights have no mean; convert with weights >= 0"
                )
    return ReadMatrix(wanted, matrix, rows, edges, means)


def _read_union(
    context: Context,
    store: GraphStore,
    row_map: RowMap,
    wanted: tuple[Aggregation, ...],
    *,
    undirected: bool,
) -> PatternRows:
    """Return the rows of the union of relations; collective."""
    rows = read_adjacency(
        context.grid,
        store,
        row_map,
        context.config.graph.relations,
        undirected=undirected,
        self_loops=any(kind.self_loops for kind in wanted),
    )
    rows = rows if context.hidden is None else context.hidden.drop(rows)
    return _weighted(context.config, rows)


def _weighted(config: Config, rows: PatternRows) -> PatternRows:
    """Return rows with the weights that ``graph.weights`` leaves them."""
    return replace(rows, weights=None) if config.graph.weights == "ignore" else rows


def relation_names(
    config: Config, store: GraphStore, wanted: Collection[Aggregation], *, directed: bool
) -> tuple[str, ...]:
    """Return the names of the relations that `wanted` tells apart; () when it unites them."""
    if not any(kind.by_relation for kind in wanted):
        return ()
    names = tuple(config.graph.relations or store.relations)
    if directed and config.graph.reverse:
        names += tuple(f"{name} reversed" for name in names)
    return names


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


@collective
def load_graph(
    context: Context,
    *,
    needs: Sequence[str] = ("features",),
    scales: Scales | None = None,
    with_rows: bool = False,
) -> LocalGraph:
    """Read this rank's share of the graph and prepare its products.

    Parameters
    ----------
    needs
        Node data that the store must hold.
    scales
        For standardised features: what to scale by; None takes it from this graph.
    with_rows
        Keep the rows, for sampling; not for models that tell relations apart.

    Raises
    ------
    CollectiveInputError
        On a store that does not read, or does not fit the configuration or the number of ranks.
    """
    grid, config, trace, device = context.grid, context.config, context.trace, context.device
    if config.train.label_augmentation > 0 or config.correct_and_smooth.enabled:
        needs = sorted({*needs, "labels", "split"})
    if config.graph.targets:
        # Numbers of a file take the place of the store's labels.
        needs = sorted({*needs, "split"} - {"labels"})
    with trace.span("read.open"), agree(grid.world):
        store = GraphStore.open(config.graph.store, grid.world)
    with store:
        row_map = share_rows(grid, config, store, needs)
        with agree(grid.world):
            check_graph(config, store, context.aggregations)
            num_edge_features(config, store)
        with trace.span("read.nodes"), agree(grid.world):
            nodes = store.read_nodes(
                row_map.start, row_map.stop, chosen_split(config, store, needs)
            )
            nodes = typed_nodes(config, store, nodes)
        labelled = Labelled(nodes.original_id, nodes.labels, nodes.split)
        num_graphs = 0
        if config.train.task == "graphs":
            with trace.span("plan.graphs"):
                # Numbers of a file take the place of labels.
                known = replace(nodes, labels=None) if config.graph.targets else nodes
                labelled = label_graphs(context, known, store.path)
                num_graphs = int(grid.layer.allreduce(len(labelled.ids)))
        targets = None
        if config.graph.targets:
            with trace.span("read.nodes"), agree(grid.world):
                targets = read_targets(config, store, labelled.ids, num_graphs)
                content = fingerprint_of(config, store) if grid.rank == 0 else ""
            labelled = replace(labelled, labels=targets.values)
        if config.graph.num_structural:
            with trace.span("read.structure"):
                more = structural_features(context, store, row_map, nodes.original_id)
            columns = [more] if nodes.features is None else [nodes.features, more]
            nodes = replace(nodes, features=np.concatenate(columns, axis=1))
        directed = not (store.undirected or config.graph.undirected)
        relations = relation_names(config, store, context.wanted, directed=directed)
        with trace.span("plan"):
            read = read_matrix(context, store, row_map, directed=directed)
            wanted, matrix, edges = read.wanted, read.matrix, read.rows
            make = replace(context.operators(), edges=read.edges)
            traits = node_traits(device, nodes, read.edge_means)
            del read
            if not with_rows:
                # Plans are made next: they need the memory.
                edges = None
            ids = nodes.original_id
            products = adjacency_products(make, matrix, wanted, config.train.dtype, ids, traits)
            details = _details(matrix, products.exchange)
        view = replace(products.view, members=labelled.members)
        if find_model(config.model.name).reads_edges:
            with trace.span("read.edges"):
                view = replace(view, edges=read_edge_inputs(context, store, row_map))
        rows = None
        if with_rows:
            assert edges is not None
            with trace.span("read.rows"):
                rows = LocalRows(edges, edges)
                if directed:
                    both_ways = _read_union(context, store, row_map, wanted, undirected=True)
                    rows = LocalRows(edges, both_ways)
        smoother = None
        if config.correct_and_smooth.enabled:
            with trace.span("plan.smoothing"):
                smoother = make_smoother(context, store, row_map, nodes)
        with_labels: tuple[str, ...] = ()
        if labelled.labels is not None and labelled.split is not None and not num_graphs:
            trains = training_mask(labelled.labels, labelled.split)
            names = [each.name for each in node_types_of(config, store)]
            with_labels = labelled_types(grid, names, nodes.types, trains)
        facts = GraphFacts.of_store(
            store,
            config,
            num_edges=grid.layer.allreduce(details["local_edges"]),
            directed=directed,
            relations=relations,
            labelled_types=with_labels,
            num_graphs=num_graphs,
        )
        if targets is not None:
            assert labelled.split is not None
            means, scales_of = target_scale(grid, config, targets, labelled.split)
            facts = facts.of_targets(targets.names, means, scales_of)
            facts = replace(facts, fingerprint=bcast(grid.world, content))
            scaled = (targets.values - np.array(means)) / np.array(scales_of)
            labelled = replace(labelled, labels=scaled)
        with agree(grid.world):
            shape_for(config, facts)
        with trace.span("read.checksums"):
            check_rows_read(grid.layer, store)
    with trace.span("read.features"):
        inputs = make_inputs(grid, config, facts, nodes, scales)
    return LocalGraph(
        grid=grid,
        row_map=row_map,
        facts=facts,
        view=view,
        products=products,
        features=inputs.features.to(device.place),
        scales=inputs.scales,
        labels=labelled.labels,
        split=labelled.split,
        smoother=smoother,
        details=details,
        device=device,
        rows=rows,
        graph_ids=labelled.ids if num_graphs else None,
        node_graph=nodes.graph if num_graphs else None,
    )


def chosen_split(config: Config, store: GraphStore, needs: Sequence[str]) -> str:
    """Return the name of the split to read; predictions may be of a store that lacks it."""
    chosen = config.graph.split
    return chosen if chosen in store.splits or "split" in needs else ""


def check_relations(key: str, names: Iterable[str], store: GraphStore) -> None:
    """Raise `InputError`, which names the key, for a relation that the store has not."""
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
    grid: ProcessGrid, config: Config, store: GraphStore, needs: Sequence[str]
) -> RowMap:
    """Return the rows of this rank, of a store that must hold the node data `needs`.

    Raises
    ------
    CollectiveInputError
        When it lacks them or a relation, or has fewer parts than there are block rows.
    """
    relations = config.graph.relations
    starts = None
    there = {
        "labels": store.has_labels,
        "split": store.has_split,
    }
    with agree(grid.world):
        check_relations("graph.relations", relations, store)
        for field in needs:
            if field == "features":
                check_features(config, store)
            elif not there[field]:
                raise InputError(f"{store.path} has no node {field}: convert the graph with them")
        if grid.rank == 0:
            edges = store.part_edges(relations or None)
            starts = assign_parts(store.row_starts, edges, grid.num_blocks)
    return RowMap(bcast(grid.world, starts), grid.block)
