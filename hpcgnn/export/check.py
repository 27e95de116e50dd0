"""Whether an exported module computes what the model computes, on the graph of its run."""

import dataclasses
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config, CorrectAndSmoothConfig
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import TypedRows
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.run.row_parameters import take_rows
from hpcgnn.train.run.saved_model import SavedModel, load_saved_graph

TOLERANCE = 1e-8
"""Of logits in float64, times the largest of them: far above rounding, far below a wrong edge."""


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Logits of float64 by the module and by the model: the largest and the largest difference."""

    nodes: int
    largest: float
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether they differ by no more than rounding."""
        return self.difference <= TOLERANCE * max(self.largest, 1.0)


def load_module(folder: Path) -> torch.nn.Module:
    """Return the model of an exported folder, in float64."""
    spec = importlib.util.spec_from_file_location("hpcgnn_exported", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load().double()


@torch.no_grad()
@collective
def compare(
    grid: ProcessGrid, saved: SavedModel, model: torch.nn.Module, library: str
) -> Comparison:
    """Return how the module's logits on the whole graph differ from those of the saved model.

    The `grid` is of one rank, the module in float64. Raises CollectiveInputError when the store
    does not read.
    """
    config = _plain(saved.config)
    saved = dataclasses.replace(saved, config=config)
    graph = load_saved_graph(grid, saved, TraceRecorder.off())
    ours = graph.make_model(config, saved.checkpoint.state["seed"])
    best = saved.checkpoint.best
    wide = {
        name: value.double() if value.is_floating_point() else value
        for name, value in take_rows(ours, best, best).items()
    }
    ours.load_state_dict(wide)
    expected = ours(graph.view, graph.features, None)
    if graph.facts.targets:
        means, scales = (
            torch.tensor(target, dtype=torch.float64)
            for target in (graph.facts.target_means, graph.facts.target_scales)
        )
        expected = expected * scales + means
    # Nodes of the module are in the order of the input; so are the rows of node types.
    order = torch.from_numpy(np.argsort(graph.products.node_ids, kind="stable"))
    outputs = model(*_arguments(config, graph, order, library))
    expected = expected[order]
    return Comparison(
        len(expected),
        float(expected.abs().max()) if len(expected) else 0.0,
        float((outputs - expected).abs().max()) if len(expected) else 0.0,
    )


def _plain(config: Config) -> Config:
    """Return the configuration of one rank in float64 without what comes behind logits."""
    train = dataclasses.replace(
        config.train, dtype="float64", precision="float32", reproducible=False, device="cpu"
    )
    return dataclasses.replace(
        config,
        graph=dataclasses.replace(config.graph, sparse_features="never"),
        train=train,
        exchange=ExchangeConfig(),
        correct_and_smooth=CorrectAndSmoothConfig(),
    )


def _arguments(config: Config, graph: LocalGraph, order: Tensor, library: str) -> list[Any]:
    with GraphStore.open(config.graph.store) as store:
        nodes = store.read_nodes(0, store.num_nodes)
        edges, kinds, weights = _edges(config, store, order)
        names = config.graph.relations or store.relations
        given = [store.read_edge_data(0, store.num_nodes, name).features for name in names]
    arguments: list[Any] = [edges]
    features = graph.features
    if isinstance(features, TypedRows):
        types = features.types[order]
        tables = []
        for number, part in enumerate(features.parts):
            raw = part
            if nodes.types is not None:
                raw = torch.from_numpy(nodes.type_features[number].astype(np.float64))
            # Both are in the order of the store's nodes of the type.
            tables.append(raw[features.places[order[types == number]]])
        inputs: list[Any] = [tables, types]
    else:
        assert nodes.features is not None
        x = torch.from_numpy(nodes.features.astype(np.float64))
        # Columns of labels lie behind, and are not scaled.
        inputs = [torch.cat([x, features[:, x.shape[1] :]], dim=1)[order]]
    if library == "dgl":
        dgl = importlib.import_module("dgl")
        arguments = [dgl.graph((edges[0], edges[1]), num_nodes=len(order)), *inputs]
    else:
        arguments = [*inputs, edges]
    if graph.facts.num_edge_features:
        table = np.concatenate([each for each in given if each is not None])
        arguments.append(torch.from_numpy(table.astype(np.float64)))
    if graph.facts.relations:
        arguments.append(kinds)
    if weights is not None:
        arguments.append(weights)
    return arguments


def _edges(
    config: Config, store: GraphStore, order: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return (2, E) edges as the store has them, relations one by one, their kinds and weights."""
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order))
    names = config.graph.relations or store.relations
    weighted = config.graph.weights == "use" and any(store.weighted(name) for name in names)
    edges, kinds, weights = [], [], []
    for kind, name in enumerate(names):
        block = store.read_adjacency(0, store.num_nodes, name)
        rows = np.repeat(np.arange(store.num_nodes), np.diff(block.indptr))
        ends = np.stack([block.indices.astype(np.int64), rows])
        edges.append(position[torch.from_numpy(ends)])
        kinds.append(torch.full((block.num_edges,), kind))
        values = np.ones(block.num_edges) if block.weights is None else block.weights
        weights.append(torch.from_numpy(values.astype(np.float64)))
    return torch.cat(edges, 1), torch.cat(kinds), torch.cat(weights) if weighted else None
