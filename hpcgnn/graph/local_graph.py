"""What one rank holds of a graph: its rows, products, features."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.device import CPU, Device
from hpcgnn.graph.facts import GraphFacts, restricted_aggregations, shape_for
from hpcgnn.graph.inputs import FeatureScale
from hpcgnn.graph.products import Products
from hpcgnn.graph.smoothing import Smoother
from hpcgnn.nn import (
    GraphView,
    ModelShape,
    NodeFeatures,
    NodeModel,
    TypedModel,
    TypedRows,
    find_model,
    make_model,
)
from hpcgnn.sparse import PatternRows
from hpcgnn.typing import Array, GlobalIndices


@dataclass(frozen=True, eq=False)
class LocalRows:
    """The rows of a rank with global columns, from which graphs to sample are made.

    Parameters
    ----------
    edges
        What the model aggregates over, with self loops where it wants them.
    both_ways
        Edges and their reverses; the same object unless the graph is directed.
    """

    edges: PatternRows
    both_ways: PatternRows


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalGraph:
    """The share of one rank.

    Parameters
    ----------
    grid, row_map
        The ranks, and the rows of this one.
    facts
        Sizes of the whole graph.
    view
        Operators and original ids of the local nodes.
    products
        What the operators are made of, for views of some nodes only.
    features
        Of the local nodes, scaled as the configuration says; with label augmentation the labels of
        all training nodes behind them, see `hpcgnn.graph.inputs`.
    scales
        What the features were scaled by, by node type, where that comes from the graph.
    labels, split
        (N,) or (N, C) and (N,) as the store holds them, None where it does not; of numbers to
        predict (N, T) float64, scaled as the facts say, NaN where missing.
    smoother
        What corrects and smooths predictions; None when that is off.
    details
        Sizes of this rank's share, for the summary.
    device
        Where features, products and views are.
    rows
        For sampling; None where nobody asked for them.
    """

    grid: ProcessGrid
    row_map: RowMap
    facts: GraphFacts
    view: GraphView
    products: Products
    features: NodeFeatures
    scales: Mapping[str, FeatureScale]
    labels: Array | None
    split: Array | None
    smoother: Smoother | None
    details: dict[str, int]
    device: Device = CPU
    rows: LocalRows | None = None

    def make_model(self, config: Config, seed: int) -> NodeModel:
        """Return the model of `config` for this graph, equal on all ranks but for rows of nodes."""
        model = make_model(
            config.model.name,
            self.model_shape(config),
            directed=self.facts.directed,
            seed=seed,
            dtype=getattr(torch, config.train.dtype),
        )
        if config.train.precision == "bfloat16":
            _require_narrow_maps(config.model.name, model)
        if config.model.embeddings:
            assert isinstance(model, TypedModel)
            model.inputs.add_vectors(self._bare_ids(), seed)
        return model.to(self.device.place)

    def _bare_ids(self) -> dict[int, GlobalIndices]:
        assert isinstance(self.features, TypedRows)
        types = self.features.types.cpu().numpy()
        return {t: self.products.node_ids[types == t] for t in self.facts.bare_types}

    def model_shape(self, config: Config) -> ModelShape:
        """Return the sizes and options of the model of `config` for this graph."""
        return shape_for(config, self.facts)

    def restricted_aggregations(self, config: Config) -> int:
        """Return how many of the last aggregations of the model of `config` are restricted."""
        return restricted_aggregations(config, self.model_shape(config))

    def num_aggregations(self, config: Config) -> int:
        """Return how many times in a row the model of `config` aggregates."""
        return find_model(config.model.name).num_aggregations(self.model_shape(config))


def _require_narrow_maps(name: str, model: NodeModel) -> None:
    if any(type(each) is torch.nn.Linear for each in model.modules()):
        raise InputError(
            f"model.name = {name!r}: torch.nn.Linear cannot read rows of bfloat16; use "
            "hpcgnn.nn.Linear, or train.precision=float32"
        )
