"""What one rank holds of a graph: its rows, products, features."""

from collections.abc import Mapping
from dataclasses import dataclass

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.errors import InputError
from hpcgnn.nn import (
    MODELS,
    GraphView,
    ModelShape,
    NodeFeatures,
    NodeModel,
    TypedModel,
    TypedRows,
    make_model,
)
from hpcgnn.storage import GraphStore
from hpcgnn.train.config import Config
from hpcgnn.train.device import CPU, Device
from hpcgnn.train.features import FeatureScale
from hpcgnn.train.products import AdjacencyProducts
from hpcgnn.train.smoothing import Smoother
from hpcgnn.train.task import Facts
from hpcgnn.typing import Array, GlobalIndices

__all__ = ["GraphFacts", "LocalGraph", "shape_for"]


@dataclass(frozen=True, kw_only=True)
class GraphFacts(Facts):
    """Sizes of the graph, equal on all ranks.

    Parameters
    ----------
    relations
        Those that the model tells apart.
    type_names, type_nodes, type_features
        The node types, how many nodes each has, and how many features these have; empty without
        types, otherwise `num_features` is 0.
    labelled_types
        Node types with labelled training nodes.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    multi_label: bool
    directed: bool
    num_parts: int
    class_names: tuple[str, ...]
    relations: tuple[str, ...] = ()
    type_names: tuple[str, ...] = ()
    type_nodes: tuple[int, ...] = ()
    type_features: tuple[int, ...] = ()
    labelled_types: tuple[str, ...] = ()

    @classmethod
    def of_store(
        cls,
        store: GraphStore,
        *,
        num_edges: int,
        directed: bool,
        relations: tuple[str, ...],
        labelled_types: tuple[str, ...],
    ) -> "GraphFacts":
        """Return the sizes of a store's graph, as a configuration trains on it.

        Not collective.
        """
        types = store.node_types
        return cls(
            name=store.name,
            fingerprint=store.fingerprint,
            num_nodes=store.num_nodes,
            num_edges=num_edges,
            num_features=store.num_features,
            num_classes=store.num_classes,
            multi_label=store.multi_label,
            directed=directed,
            num_parts=store.num_parts,
            class_names=store.class_names,
            relations=relations,
            type_names=tuple(each.name for each in types),
            type_nodes=tuple(each.num_nodes for each in types),
            type_features=tuple(each.num_features for each in types),
            labelled_types=labelled_types,
        )

    @property
    def bare_types(self) -> tuple[int, ...]:
        """Numbers of the node types without features."""
        return tuple(t for t, width in enumerate(self.type_features) if width == 0)

    @property
    def metric(self) -> str:
        """The metric that models are chosen by."""
        return "micro_f1" if self.multi_label else "accuracy"


def shape_for(config: Config, facts: GraphFacts) -> ModelShape:
    """Return the sizes and options of the model of `config` for a graph.

    Not collective.

    Raises
    ------
    InputError
        When options of the model do not fit the graph.
    """
    model = config.model
    if model.input_width and not facts.type_names:
        raise InputError(
            f"model.input_width = {model.input_width}: {facts.name} has no node types, and so no "
            "input layers; leave it out"
        )
    if model.embeddings and not facts.bare_types:
        raise InputError(
            f"model.embeddings: {facts.name} has no node type without features; leave it out"
        )
    label_width = facts.num_classes if config.train.label_augmentation > 0 else 0
    shape = model.shape(
        num_features=0 if facts.type_names else facts.num_features + label_width,
        num_classes=facts.num_classes,
        num_relations=max(len(facts.relations), 1),
        type_features=tuple(
            width + label_width * (name in facts.labelled_types)
            for name, width in zip(facts.type_names, facts.type_features, strict=True)
        ),
    )
    MODELS[model.name].check(shape)
    return shape


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
        all training nodes behind them, see `hpcgnn.train.node_inputs`.
    scales
        What the features were scaled by, by node type, where that comes from the graph.
    labels, split
        (N,) or (N, C) and (N,) as the store holds them, None where it does not.
    smoother
        What corrects and smooths predictions; None when that is off.
    details
        Sizes of this rank's share, for the summary.
    device
        Where features, products and views are.
    """

    grid: ProcessGrid
    row_map: RowMap
    facts: GraphFacts
    view: GraphView
    products: AdjacencyProducts
    features: NodeFeatures
    scales: Mapping[str, FeatureScale]
    labels: Array | None
    split: Array | None
    smoother: Smoother | None
    details: dict[str, int]
    device: Device = CPU

    def make_model(self, config: Config, seed: int) -> NodeModel:
        """Return the model of `config` for this graph, equal on all ranks but for rows of nodes.

        Not collective.
        """
        model = make_model(
            config.model.name,
            self.model_shape(config),
            directed=self.facts.directed,
            seed=seed,
            dtype=self.features.dtype,
        )
        if config.model.embeddings:
            assert isinstance(model, TypedModel)
            model.inputs.add_vectors(self._bare_ids(), seed)
        return model.to(self.device.place)

    def _bare_ids(self) -> dict[int, GlobalIndices]:
        assert isinstance(self.features, TypedRows)
        types = self.features.types.cpu().numpy()
        return {t: self.products.node_ids[types == t] for t in self.facts.bare_types}

    def model_shape(self, config: Config) -> ModelShape:
        """Return the sizes and options of the model of `config` for this graph.

        Not collective.
        """
        return shape_for(config, self.facts)

    def num_aggregations(self, config: Config) -> int:
        """Return how many times in a row the model of `config` aggregates.

        Not collective.
        """
        return MODELS[config.model.name].num_aggregations(self.model_shape(config))
