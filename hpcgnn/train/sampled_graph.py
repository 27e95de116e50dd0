"""What ranks sample from; the whole graph of it, once on every host."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap, agree, share_on_hosts
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS, WITH_SELF_LOOPS, NodeFeatures
from hpcgnn.sampling import Topology
from hpcgnn.sparse import PatternRows, read_adjacency
from hpcgnn.storage import GraphStore
from hpcgnn.train.config import Config
from hpcgnn.train.device import CPU, Device
from hpcgnn.train.node_task import NodeTask
from hpcgnn.train.sampled_features import share_features
from hpcgnn.typing import Array, FloatArray, GlobalIndices

__all__ = ["HomeRows", "SampledGraph", "read_home", "share_whole"]


@dataclass(frozen=True, eq=False, kw_only=True)
class HomeRows:
    """The rows of this rank's block, from which graphs to sample are made.

    Parameters
    ----------
    row_map
        Whose rows are where.
    edges
        What the model aggregates over, with self loops where it wants them.
    walked
        What samplers walk; the same object unless the graph is directed.
    features
        Of the local nodes, on the CPU.
    labels, trained, node_ids
        (num_local,) or (num_local, C), (num_local,) bool and int64.
    device
        Where models run.
    """

    row_map: RowMap
    edges: PatternRows
    walked: PatternRows
    features: NodeFeatures
    labels: Array
    trained: Array
    node_ids: GlobalIndices
    device: Device = CPU


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledGraph:
    """Nodes and edges to sample from: all, or those of a part and its halo.

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
        Of all nodes, and (N,) int64 or (N, C) in the training dtype.
    trained
        (N,) whether the loss counts the node.
    """

    edges: Topology
    weights: FloatArray | None
    walked: Topology
    row_sums: FloatArray
    column_sums: FloatArray
    node_ids: GlobalIndices
    features: NodeFeatures
    labels: Tensor
    trained: Array

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        patterns = {id(each): each for each in (self.edges, self.walked)}.values()
        arrays = [self.weights, self.row_sums, self.column_sums, self.node_ids, self.trained]
        arrays.append(self.labels.numpy())
        arrays += [each for pattern in patterns for each in (pattern.indptr, pattern.indices)]
        return self.features.nbytes + sum(each.nbytes for each in arrays if each is not None)


def read_home(grid: ProcessGrid, config: Config, task: NodeTask) -> HomeRows:
    """Read this rank's rows of what the model aggregates over, and of what samplers walk.

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
        When the store does not read.
    """
    graph = task.graph
    loops = not WITH_SELF_LOOPS.isdisjoint(MODELS[config.model.name].aggregations)

    def read(*, undirected: bool) -> PatternRows:
        return read_adjacency(
            grid,
            store,
            graph.row_map,
            config.graph.relations,
            undirected=undirected,
            self_loops=loops,
        )

    with agree(grid.world):
        store = GraphStore.open(config.graph.store, grid.world)
    with store:
        edges = read(undirected=config.graph.undirected)
        walked = read(undirected=True) if graph.facts.directed else edges
    trained = np.zeros(len(task.split), np.bool_)
    trained[task.train_rows.cpu().numpy()] = True
    return HomeRows(
        row_map=graph.row_map,
        edges=edges,
        walked=walked,
        features=graph.features.to(torch.device("cpu")),
        labels=task.labels.cpu().numpy(),
        trained=trained,
        node_ids=graph.products.node_ids,
        device=graph.device,
    )


def share_whole(grid: ProcessGrid, home: HomeRows) -> SampledGraph:
    """Bring the rows of all ranks together on every host.

    Collective.

    Raises
    ------
    CollectiveInputError
        When the graph has too many nodes to sample.
    """
    with agree(grid.world):
        if home.row_map.num_rows > np.iinfo(np.int32).max:
            raise InputError(
                f"{home.row_map.num_rows} nodes: sampling numbers nodes with 31 bits; "
                "set sampling.topology=partitioned"
            )
    edges = _share_topology(grid, "sampling.edges", home.edges)
    weights = None
    if home.edges.weights is not None:
        weights = share_on_hosts(grid, "sampling.edges.weights", home.edges.weights)
    walked = edges
    if home.walked is not home.edges:
        walked = _share_topology(grid, "sampling.walked", home.walked)
    num_nodes = edges.num_nodes
    row_sums = np.bincount(edges.entry_rows(), weights, minlength=num_nodes)
    column_sums = np.bincount(edges.indices, weights, minlength=num_nodes)
    nodes = {
        "labels": home.labels,
        "trained": home.trained,
        "ids": home.node_ids,
    }
    whole = {name: share_on_hosts(grid, f"sampling.{name}", each) for name, each in nodes.items()}
    return SampledGraph(
        edges=edges,
        weights=weights,
        walked=walked,
        row_sums=row_sums.astype(np.float64),
        column_sums=column_sums.astype(np.float64),
        node_ids=whole["ids"],
        features=share_features(grid, home.features),
        labels=torch.from_numpy(whole["labels"]),
        trained=whole["trained"],
    )


def _share_topology(grid: ProcessGrid, name: str, rows: PatternRows) -> Topology:
    indices = share_on_hosts(grid, f"{name}.indices", rows.columns.astype(np.int32))
    degrees = share_on_hosts(grid, f"{name}.degrees", np.diff(rows.indptr))
    return Topology(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64), indices)
