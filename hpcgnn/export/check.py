"""Check that an exported module gives the same outputs as the model on the graph of its run."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config, CorrectAndSmoothConfig
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.graph.structure import structural_features
from hpcgnn.nn import NodeModel, TypedRows
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.train.edges.objective import EdgeObjective
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.links.predictions import links_of_other
from hpcgnn.train.run.row_parameters import take_rows
from hpcgnn.train.run.saved_model import SavedModel, load_saved_graph
from hpcgnn.typing import FloatArray

TOLERANCE = 1e-8
"""Tolerance of float64 logits, relative to the largest: far above rounding, far below errors."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The largest float64 logit of a model, and the largest difference of the module's logits."""

    nodes: int
    largest: float
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether the logits differ by rounding only."""
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
    grid: ProcessGrid, saved: SavedModel, module: torch.nn.Module, library: str
) -> Comparison:
    """Compare the module's outputs on the whole graph with those of the saved model.

    The `grid` has one rank, the module is in float64. Raises `CollectiveInputError` if the store
    cannot be read.
    """
    config = _plain(saved.config)
    saved = replace(saved, config=config)
    case = _CASES.get(config.train.task, _of_nodes)(grid, saved)
    expected, facts = case.outputs, case.facts
    if facts.targets:
        means, scales = (
            torch.tensor(target, dtype=torch.float64)
            for target in (facts.target_means, facts.target_scales)
        )
        expected = expected * scales + means
    outputs = module(*_arguments(config, case, library))
    if case.of_edges is not None:
        # Compare values of nodes and edges as one list.
        expected, outputs = (
            torch.cat([values.flatten() for values in pair])
            for pair in ((expected, case.of_edges), outputs)
        )
    return Comparison(
        len(case.outputs),
        float(expected.abs().max()) if len(expected) else 0.0,
        float((outputs - expected).abs().max()) if len(expected) else 0.0,
    )


@dataclass(frozen=True, eq=False)
class _Case:
    """The `outputs` of a saved model on a graph, before targets are scaled back to their units.

    `order` are the rows of nodes in the order of the module's input, that of original ids; `batch`
    has each node's graph number, and `more` has further arguments for the head. `facts` describe
    the predictions; `of_edges` are predictions for edges in addition to nodes.
    """

    graph: LocalGraph
    facts: GraphFacts
    order: Tensor
    outputs: Tensor
    batch: Tensor | None = None
    of_edges: Tensor | None = None
    more: Sequence[Tensor] = ()

    @property
    def positions(self) -> Tensor:
        """The number (N,) of each row in the module."""
        return torch.argsort(self.order)


@collective
def _encoded(
    saved: SavedModel, graph: LocalGraph, make: Callable[[int], NodeModel]
) -> tuple[Any, _Case]:
    """Return a saved model in float64, and its outputs on a graph in the order of its rows."""
    model, best = make(saved.checkpoint.state["seed"]), saved.checkpoint.best
    wide = {
        name: value.double() if value.is_floating_point() else value
        for name, value in take_rows(model, best, best).items()
    }
    model.load_state_dict(wide)
    # The module has nodes, also those of each type, in the order of original ids.
    order = torch.from_numpy(np.argsort(graph.products.node_ids, kind="stable"))
    outputs, of_edges = model.with_edges(graph.view, graph.features, None)
    return model, _Case(graph, graph.facts, order, outputs, of_edges=of_edges)


@collective
def _of_nodes(grid: ProcessGrid, saved: SavedModel) -> _Case:
    graph = load_saved_graph(grid, saved)
    _, case = _encoded(saved, graph, partial(saved.make_model, graph))
    return replace(case, outputs=case.outputs[case.order])


@collective
def _of_graphs(grid: ProcessGrid, saved: SavedModel) -> _Case:
    graph = load_saved_graph(grid, saved)
    assert graph.node_graph is not None
    _, case = _encoded(saved, graph, partial(graph.make_model, saved.config))
    batch = torch.from_numpy(np.searchsorted(graph.ids, graph.node_graph))
    return replace(case, batch=batch[case.order])


@collective
def _of_links(grid: ProcessGrid, saved: SavedModel) -> _Case:
    task = links_of_other(grid, saved)
    model, case = _encoded(saved, task.graph, task.make_model)
    count, relations = len(case.order), len(task.links.names)
    # Arbitrary pairs.
    sources = torch.arange(count)
    targets, relation_numbers = (sources * 7 + 3) % max(count, 1), sources % relations
    scores = model.scorer(case.outputs[sources], case.outputs[targets], relation_numbers)
    pairs = torch.stack([case.positions[sources], case.positions[targets]])
    more = [pairs, relation_numbers] if relations > 1 else [pairs]
    return replace(case, outputs=scores, more=more)


@collective
def _of_edges(grid: ProcessGrid, saved: SavedModel) -> _Case:
    task = EdgeObjective.for_predictions(grid, saved)
    model, case = _encoded(saved, task.graph, task.make_model)
    edges, _, needed = task.read_all()
    logits, pairs = task.predict(model, case.outputs, needed), edges.edges
    more = [case.positions[torch.from_numpy(np.stack([pairs.sources, pairs.targets]))]]
    if len(task.relations) > 1:
        more.append(torch.from_numpy(pairs.relations))
    if edges.features.shape[1]:
        graph = replace(saved.config.graph, normalize_edge_features="none")
        raw = replace(saved, config=replace(saved.config, graph=graph))
        unscaled, _, _ = EdgeObjective.for_predictions(grid, raw).read_all()
        more.append(torch.from_numpy(unscaled.features))
    return replace(case, facts=task.facts, outputs=logits, more=more)


@collective
def _of_fields(grid: ProcessGrid, saved: SavedModel) -> _Case:
    task = FieldObjective.of_saved(Context(grid, saved.config), saved)
    dynamics, first = task.dynamics, task.series.frames(0, saved.config.fields.history - 1)
    read, of_edges = first.frames
    frames = [dynamics.filled(first.at(index)) for index in range(len(read))]
    task.series.reader.store.close()
    view = dynamics.view_at(frames)
    graph = replace(task.graph, features=dynamics.inputs(frames), view=view)
    _, case = _encoded(saved, graph, task.make_model)
    rows, edges = dynamics.rows, case.of_edges
    nodes = rows.nodes.predicted(case.outputs, frames[-1].nodes)
    if edges is not None:
        edges = rows.edges.predicted(edges, frames[-1].edges)
    facts, more = replace(case.facts, targets=()), [read[:, case.order].double()]
    if of_edges.shape[2]:
        more.append(of_edges.double())
    return replace(
        case, graph=task.graph, facts=facts, outputs=nodes[case.order], of_edges=edges, more=more
    )


_CASES = {"fields": _of_fields, "graphs": _of_graphs, "links": _of_links, "edges": _of_edges}


def _plain(config: Config) -> Config:
    """Return the configuration for one rank in float64, without post-processing of logits."""
    train = replace(
        config.train, dtype="float64", precision="float32", reproducible=False, device="cpu"
    )
    return replace(
        config,
        graph=replace(config.graph, sparse_features="never"),
        train=train,
        exchange=ExchangeConfig(),
        correct_and_smooth=CorrectAndSmoothConfig(),
    )


@collective
def read_structure(grid: ProcessGrid, config: Config) -> FloatArray:
    """Return the features (nodes, columns) float64 of ``graph.structure``, by original id.

    The `grid` has one rank. Raises `CollectiveInputError` if the store cannot be read.
    """
    with StoredRows.opened(Context(grid, _plain(config)), ()) as stored:
        ids = stored.store.read_original_id(0, stored.store.num_nodes)
        return structural_features(stored, ids)[np.argsort(ids, kind="stable")]


def _arguments(config: Config, case: _Case, library: str) -> list[Any]:
    graph, order = case.graph, case.order
    with GraphStore.open(config.graph.store) as store:
        nodes = store.read_nodes(0, store.num_nodes)
        edges, relation_numbers, weights = _edges(config, store, order)
        names = config.graph.relations or store.relations
        of_edges = [store.read_edge_data(0, store.num_nodes, name).features for name in names]
    arguments: list[Any] = [edges]
    more = list(case.more)
    features = graph.features
    if isinstance(features, TypedRows):
        types = features.types[order]
        tables = []
        for number, part in enumerate(features.parts):
            raw = part
            if nodes.types is not None:
                raw = torch.from_numpy(nodes.type_features[number].astype(np.float64))
            # Both are in the order of the store's nodes of the type.
            tables.append(raw[features.part_rows[order[types == number]]])
        inputs: list[Any] = [tables, types]
    else:
        stored_rows = [] if nodes.features is None else [nodes.features.astype(np.float64)]
        parts = [torch.from_numpy(table)[order] for table in stored_rows]
        if config.graph.num_structural:
            parts.append(torch.from_numpy(read_structure(graph.grid, config)))
        # Columns of labels come last, and are not scaled.
        parts.append(features[:, graph.facts.num_features :][order])
        inputs = [torch.cat(parts, dim=1)]
    if library == "dgl":
        dgl = importlib.import_module("dgl")
        batch = dgl.graph((edges[0], edges[1]), num_nodes=len(order))
        if case.batch is not None:
            batch.set_batch_num_nodes(torch.bincount(case.batch))
        arguments = [batch, *inputs]
    else:
        arguments = [*inputs, edges]
        more = [*more, case.batch] if case.batch is not None else more
    if graph.facts.num_edge_features:
        none: FloatArray = np.empty((edges.shape[1], 0))
        stored = [rows for rows in of_edges if rows is not None]
        table = np.concatenate(stored or [none])
        arguments.append(torch.from_numpy(table.astype(np.float64)))
    if graph.facts.relations:
        arguments.append(relation_numbers)
    if weights is not None:
        arguments.append(weights)
    return [*arguments, *more]


def _edges(
    config: Config, store: GraphStore, order: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the store's edges (2, E), relation by relation, with relation numbers and weights."""
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order))
    names = config.graph.relations or store.relations
    weighted = config.graph.weights == "use" and any(store.weighted(name) for name in names)
    edges, relation_numbers, weights = [], [], []
    for number, name in enumerate(names):
        block = store.read_adjacency(0, store.num_nodes, name)
        rows = np.repeat(np.arange(store.num_nodes), np.diff(block.indptr))
        ends = np.stack([block.indices.astype(np.int64), rows])
        edges.append(position[torch.from_numpy(ends)])
        relation_numbers.append(torch.full((block.num_edges,), number))
        values = np.ones(block.num_edges) if block.weights is None else block.weights
        weights.append(torch.from_numpy(values.astype(np.float64)))
    return (
        torch.cat(edges, 1),
        torch.cat(relation_numbers),
        torch.cat(weights) if weighted else None,
    )
