"""From a store to this rank's graph: rows, operators, node data."""

import difflib
from collections.abc import Sequence

from hpcgnn.comm import ProcessGrid, RowMap, agree, bcast
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore, assign_parts
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.adjacency import read_products, relation_names
from hpcgnn.train.config import Config
from hpcgnn.train.device import open_device
from hpcgnn.train.label_inputs import training_mask
from hpcgnn.train.local_graph import GraphFacts, LocalGraph, shape_for
from hpcgnn.train.node_inputs import Scales, labelled_types, make_inputs
from hpcgnn.train.smoothing import make_smoother

__all__ = ["load_graph"]


def load_graph(
    grid: ProcessGrid,
    config: Config,
    trace: TraceRecorder,
    *,
    needs: Sequence[str] = ("features",),
    scales: Scales | None = None,
) -> LocalGraph:
    """Read this rank's share of the graph and prepare its products.

    Collective.

    Parameters
    ----------
    grid, config, trace
        The ranks, the configuration, the recorder.
    needs
        Node data that the store must hold.
    scales
        For standardised features: what to scale by; None takes it from this graph.

    Raises
    ------
    CollectiveInputError
        On a store that does not read, or does not fit the configuration or the number of ranks.
    """
    if config.train.label_augmentation > 0 or config.correct_and_smooth.enabled:
        needs = sorted({*needs, "labels", "split"})
    device = open_device(grid, config, trace)
    with trace.span("read.open"), agree(grid.world):
        store = GraphStore.open(config.graph.store, grid.world)
    with store:
        row_map = _share_rows(grid, config, store, needs)
        with trace.span("read.nodes"), agree(grid.world):
            nodes = store.read_nodes(row_map.start, row_map.stop)
        directed = not (store.undirected or config.graph.undirected)
        relations = relation_names(config, store, directed=directed)
        with trace.span("plan"):
            products, details = read_products(
                grid, config, store, row_map, directed, trace, nodes.original_id, device
            )
        smoother = None
        if config.correct_and_smooth.enabled:
            with trace.span("plan.smoothing"):
                smoother = make_smoother(grid, config, store, row_map, trace, nodes, device)
        labelled: tuple[str, ...] = ()
        if nodes.labels is not None and nodes.split is not None:
            trains = training_mask(nodes.labels, nodes.split)
            names = [each.name for each in store.node_types]
            labelled = labelled_types(grid, names, nodes.types, trains)
        facts = GraphFacts.of_store(
            store,
            num_edges=grid.layer.allreduce(details["local_edges"]),
            directed=directed,
            relations=relations,
            labelled_types=labelled,
        )
        with agree(grid.world):
            shape_for(config, facts)
    with trace.span("read.features"):
        inputs = make_inputs(grid, config, facts, nodes, scales)
    return LocalGraph(
        grid=grid,
        row_map=row_map,
        facts=facts,
        view=products.view,
        products=products,
        features=inputs.features.to(device.place),
        scales=inputs.scales,
        labels=nodes.labels,
        split=nodes.split,
        smoother=smoother,
        details=details,
        device=device,
    )


def _share_rows(
    grid: ProcessGrid, config: Config, store: GraphStore, needs: Sequence[str]
) -> RowMap:
    relations = config.graph.relations
    starts = None
    there = {
        # Node types without features have learned vectors.
        "features": store.has_features or bool(store.node_types),
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
