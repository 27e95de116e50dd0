"""The whole graph, once on every host, for ranks that sample from it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap, agree, share_on_hosts
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS, WITH_SELF_LOOPS
from hpcgnn.sampling import Topology
from hpcgnn.sparse import PatternRows, read_adjacency
from hpcgnn.storage import GraphStore
from hpcgnn.train.config import Config
from hpcgnn.train.node_task import NodeTask
from hpcgnn.typing import Array, FloatArray, GlobalIndices

__all__ = ["SampledGraph", "read_sampled_graph"]


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledGraph:
    """All nodes and edges, in memory that the ranks of a host share.

    Parameters
    ----------
    edges
        What the model aggregates over, with self loops where it wants them.
    weights
        (E,) of `edges`; None: ones.
    walked
        What samplers walk: `edges`, or on a directed graph its edges both ways.
    row_sums, column_sums
        (N,) float64 of the weights.
    node_ids
        (N,) int64 original ids.
    features, labels
        (N, F), and (N,) int64 or (N, C) in the training dtype.
    trained
        (N,) whether the loss counts the node.
    """

    edges: Topology
    weights: FloatArray | None
    walked: Topology
    row_sums: FloatArray
    column_sums: FloatArray
    node_ids: GlobalIndices
    features: Tensor
    labels: Tensor
    trained: Array


def read_sampled_graph(grid: ProcessGrid, config: Config, task: NodeTask) -> SampledGraph:
    """Bring the graph of a task together on every host.

    Collective.

    Parameters
    ----------
    grid, config
        The ranks, the configuration.
    task
        The full-graph task of the same configuration: nodes come from there.

    Raises
    ------
    CollectiveInputError
        When the store does not read, or the graph has too many nodes to sample.
    """
    graph = task.graph
    loops = not WITH_SELF_LOOPS.isdisjoint(MODELS[config.model.name].aggregations)
    with agree(grid.world):
        if graph.facts.num_nodes > np.iinfo(np.int32).max:
            raise InputError(f"{config.graph.store}: sampling numbers nodes with 31 bits")
        store = GraphStore.open(config.graph.store, grid.world)
    with store:
        rows = _read_rows(grid, store, config, graph.row_map, config.graph.undirected, loops)
        edges = _share_topology(grid, "sampling.edges", rows)
        weights = None
        if rows.weights is not None:
            weights = share_on_hosts(grid, "sampling.edges.weights", rows.weights)
        walked = edges
        if graph.facts.directed:
            both_ways = _read_rows(grid, store, config, graph.row_map, True, loops)
            walked = _share_topology(grid, "sampling.walked", both_ways)
    num_nodes = edges.num_nodes
    row_sums = np.bincount(edges.entry_rows(), weights, minlength=num_nodes)
    column_sums = np.bincount(edges.indices, weights, minlength=num_nodes)
    trained = np.zeros(len(task.split), np.bool_)
    trained[task.train_rows.cpu().numpy()] = True
    nodes = {
        "features": graph.features.cpu().numpy(),
        "labels": task.labels.cpu().numpy(),
        "trained": trained,
        "ids": graph.products.node_ids,
    }
    whole = {name: share_on_hosts(grid, f"sampling.{name}", each) for name, each in nodes.items()}
    return SampledGraph(
        edges=edges,
        weights=weights,
        walked=walked,
        row_sums=row_sums.astype(np.float64),
        column_sums=column_sums.astype(np.float64),
        node_ids=whole["ids"],
        features=torch.from_numpy(whole["features"]),
        labels=torch.from_numpy(whole["labels"]),
        trained=whole["trained"],
    )


def _read_rows(
    grid: ProcessGrid,
    store: GraphStore,
    config: Config,
    row_map: RowMap,
    undirected: bool,
    loops: bool,
) -> PatternRows:
    return read_adjacency(
        grid, store, row_map, config.graph.relations, undirected=undirected, self_loops=loops
    )


def _share_topology(grid: ProcessGrid, name: str, rows: PatternRows) -> Topology:
    indices = share_on_hosts(grid, f"{name}.indices", rows.columns.astype(np.int32))
    degrees = share_on_hosts(grid, f"{name}.degrees", np.diff(rows.indptr))
    return Topology(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64), indices)
