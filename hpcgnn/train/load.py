"""From a store to this rank's graph: rows, exchange plan, scaled operators, node data."""

import difflib
from collections.abc import Sequence

import torch

from hpcgnn.comm import ProcessGrid, RowMap, agree, bcast
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS, REVERSED, WITH_SELF_LOOPS, Aggregations
from hpcgnn.sparse import DistCSR, read_adjacency, read_relations, stack_relations
from hpcgnn.spmm import Exchange
from hpcgnn.storage import GraphStore, assign_parts
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import Config
from hpcgnn.train.features import FeatureScale, cast_features, scale_features
from hpcgnn.train.local_graph import GraphFacts, LocalGraph, shape_for
from hpcgnn.train.products import AdjacencyProducts
from hpcgnn.train.task import NodeTask
from hpcgnn.typing import GlobalIndices

__all__ = ["load_graph", "load_task", "relation_names"]


def load_task(grid: ProcessGrid, config: Config, trace: TraceRecorder) -> NodeTask:
    """Read this rank's share of the graph and prepare to train on it.

    Collective.

    Raises
    ------
    CollectiveInputError
        As `load_graph`, and when there are no labels, no split or no node to train on.
    """
    graph = load_graph(grid, config, trace, needs=("features", "labels", "split"))
    return NodeTask(graph, config)


def load_graph(
    grid: ProcessGrid,
    config: Config,
    trace: TraceRecorder,
    *,
    needs: Sequence[str] = ("features",),
    scale: FeatureScale | None = None,
) -> LocalGraph:
    """Read this rank's share of the graph and prepare its products.

    Collective.

    Parameters
    ----------
    grid, config, trace
        The ranks, the configuration, the recorder.
    needs
        Node data that the store must hold.
    scale
        For standardised features: what to scale by; None takes it from this graph.

    Raises
    ------
    CollectiveInputError
        On a store that does not read, or does not fit the configuration or the number of ranks.
    """
    with trace.span("read.open"), agree(grid.world):
        store = GraphStore.open(config.graph.store, grid.world)
    with store:
        row_map = _share_rows(grid, config, store, needs)
        with trace.span("read.nodes"):
            with agree(grid.world):
                nodes = store.read_nodes(row_map.start, row_map.stop)
            assert nodes.features is not None
            features = cast_features(grid, nodes.features, config.train.dtype)
            scale = scale_features(grid, config.graph.normalize_features, features, scale)
        directed = not (store.undirected or config.graph.undirected)
        relations = relation_names(config, store, directed=directed)
        with trace.span("plan"):
            products, details = _products(
                grid, config, store, row_map, directed, trace, nodes.original_id
            )
        facts = GraphFacts(
            name=store.name,
            fingerprint=store.fingerprint,
            num_nodes=store.num_nodes,
            num_edges=grid.layer.allreduce(details["local_edges"]),
            num_features=store.num_features,
            num_classes=store.num_classes,
            multi_label=store.multi_label,
            directed=directed,
            num_parts=store.num_parts,
            class_names=store.class_names,
            relations=relations,
        )
        with agree(grid.world):
            MODELS[config.model.name].check(shape_for(config, facts))
    return LocalGraph(
        grid=grid,
        row_map=row_map,
        facts=facts,
        view=products.view,
        products=products,
        features=torch.from_numpy(features),
        scale=scale,
        labels=nodes.labels,
        split=nodes.split,
        details=details,
    )


def _share_rows(
    grid: ProcessGrid, config: Config, store: GraphStore, needs: Sequence[str]
) -> RowMap:
    relations = config.graph.relations
    starts = None
    there = {
        "features": store.has_features,
        "labels": store.has_labels,
        "split": store.has_split,
    }
    with agree(grid.world):
        for name in relations:
            if name not in store.relations:
                near = difflib.get_close_matches(name, store.relations, n=1, cutoff=0.0)
                raise InputError(
                    f"graph.relations: {store.path} has no relation {name!r}; "
                    f"did you mean {near[0]!r}? (hpcgnn.inspect lists them)"
                )
        for field in needs:
            if not there[field]:
                raise InputError(f"{store.path} has no node {field}: convert the graph with them")
        if grid.rank == 0:
            edges = store.part_edges(relations or None)
            starts = assign_parts(store.row_starts, edges, grid.num_blocks)
    return RowMap(bcast(grid.world, starts), grid.block)


def _products(
    grid: ProcessGrid,
    config: Config,
    store: GraphStore,
    row_map: RowMap,
    directed: bool,
    trace: TraceRecorder,
    node_ids: GlobalIndices,
) -> tuple[AdjacencyProducts, dict[str, int]]:
    wanted = MODELS[config.model.name].aggregations
    if not directed:
        # Both directions of an undirected graph are the same mean.
        wanted = tuple(kind for kind in wanted if kind not in REVERSED)
    undirected = config.graph.undirected
    if Aggregations.MEAN_BY_RELATION in wanted:
        names = config.graph.relations or store.relations
        relations = read_relations(
            grid,
            store,
            row_map,
            names,
            undirected=undirected,
            reverse=directed and config.graph.reverse,
        )
        matrix = stack_relations(row_map, relations)
    else:
        rows = read_adjacency(
            grid,
            store,
            row_map,
            config.graph.relations,
            undirected=undirected,
            self_loops=not WITH_SELF_LOOPS.isdisjoint(wanted),
        )
        matrix = DistCSR.from_rows(row_map, rows.indptr, rows.columns, rows.weights)
    with agree(grid.world):
        for part in (matrix.diagonal, matrix.remote):
            if part.values is not None and part.values.min(initial=0) < 0:
                raise InputError(
                    f"{store.path}: negative edge weights have no mean; convert with weights >= 0"
                )
    products = AdjacencyProducts(
        grid, matrix, wanted, config.exchange, config.train.dtype, trace, node_ids
    )
    return products, _details(matrix, products.exchange)


def relation_names(config: Config, store: GraphStore, *, directed: bool) -> tuple[str, ...]:
    """Return the names of the relations that the model tells apart; () when it unites them.

    Not collective.
    """
    if Aggregations.MEAN_BY_RELATION not in MODELS[config.model.name].aggregations:
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
