"""The share of one rank in a graph: rows, products, features; and the model for it."""

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.device import CPU, Device
from hpcgnn.graph.facts import GraphFacts, restricted_aggregations, shape_for
from hpcgnn.graph.inputs import Scales
from hpcgnn.graph.operators import Adjacency, Products
from hpcgnn.graph.smoothing import Smoother
from hpcgnn.nn import (
    GraphView,
    ModelShape,
    NodeFeatures,
    NodeModel,
    NodeTraits,
    TypedModel,
    TypedRows,
    find_model,
    make_graph_model,
    make_model,
)
from hpcgnn.sparse import EdgeTable, PatternRows
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Mask


@dataclass(frozen=True, eq=False)
class LocalRows:
    """The rows of a rank with global columns, from which subgraphs are sampled.

    `edges` are those that the model aggregates over, with self loops if it needs them; `both_ways`
    also has their reverses, and is the same object unless the graph is directed. `table` has the
    features of `edges` that messages or layers read, None if they read none. `relations` has the
    relation and weight of each edge if the model distinguishes relations.
    """

    edges: PatternRows
    both_ways: PatternRows
    table: EdgeTable | None = None
    relations: EdgeTable | None = None


def node_traits(
    device: Device, nodes: NodeBlock, edge_means: FloatArray | None, precision: str
) -> NodeTraits:
    """Return the `NodeTraits` of a block's nodes, on the device."""
    types = None if nodes.types is None else device.tensor(nodes.types.astype(np.int64))
    means = None if edge_means is None else device.tensor(edge_means)
    if means is not None and precision == "bfloat16":
        # Layers compute with bfloat16 rows.
        means = means.bfloat16()
    return NodeTraits(types, means)


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalGraph:
    """The share of one rank in the graph.

    `products` makes views that are restricted to some nodes; `features` are the inputs of the local
    nodes, see `hpcgnn.graph.inputs.make_inputs`; `labels` and `split` are as in `Labelled`;
    `smoother` is None if predictions are not corrected and smoothed; `details` are sizes for the
    summary. `rows`, for sampling, and `adjacency`, which makes products of copies of the graph, are
    None unless requested. If graphs are predicted, `graph_ids` are the numbers of those that this
    rank owns, and `node_graph` has the graph number of each local node.
    """

    grid: ProcessGrid
    row_map: RowMap
    facts: GraphFacts
    view: GraphView
    products: Products
    features: NodeFeatures
    scales: Scales
    labels: Array | None
    split: Array | None
    smoother: Smoother | None
    details: dict[str, int]
    device: Device = CPU
    rows: LocalRows | None = None
    adjacency: Adjacency | None = None
    graph_ids: GlobalIndices | None = None
    node_graph: GlobalIndices | None = None

    @property
    def ids(self) -> GlobalIndices:
        """The original ids of the nodes, or the numbers of the graphs, to predict."""
        return self.products.node_ids if self.graph_ids is None else self.graph_ids

    @collective
    def nodes_of(self, chosen: Mask) -> Mask:
        """Return a mask (num_local,) of the nodes that belong to `chosen`, a mask over `ids`."""
        if self.view.members is None:
            return chosen
        return self.view.members.at_nodes(chosen)

    def make_model(self, config: Config, seed: int) -> NodeModel:
        """Return the model of `config` for this graph, equal on all ranks except for embeddings."""
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
        return with_readout(config, self.facts, model, seed).to(self.device.torch_device)

    def _bare_ids(self) -> dict[int, GlobalIndices]:
        assert isinstance(self.features, TypedRows)
        types = self.features.types.cpu().numpy()
        return {t: self.products.node_ids[types == t] for t in self.facts.bare_types}

    def model_shape(self, config: Config) -> ModelShape:
        """Return the sizes and options of the model of `config` for this graph."""
        return shape_for(config, self.facts)

    def restricted_aggregations(self, config: Config) -> int:
        """Return how many of the last aggregations are restricted, see `facts`."""
        return restricted_aggregations(config, self.model_shape(config))

    def num_aggregations(self, config: Config) -> int:
        """Return how many aggregations the model of `config` does one after the other."""
        return find_model(config.model.name).num_aggregations(self.model_shape(config))


def with_readout(config: Config, facts: GraphFacts, encoder: NodeModel, seed: int) -> NodeModel:
    """Add a read-out to the encoder if graphs are predicted."""
    if not facts.num_graphs:
        return encoder
    return make_graph_model(
        encoder,
        config.graphs.readout,
        width=shape_for(config, facts).num_classes,
        num_classes=facts.num_classes,
        dropout=config.model.dropout,
        seed=seed,
    )


def _require_narrow_maps(name: str, model: NodeModel) -> None:
    if any(type(module) is torch.nn.Linear for module in model.modules()):
        raise InputError(
            f"model.name = {name!r}: torch.nn.Linear cannot read rows of bfloat16; use "
            "hpcgnn.nn.Linear, or train.precision=float32"
        )
