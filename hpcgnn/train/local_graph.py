"""What one rank holds of a graph: its rows, products, features."""

from dataclasses import dataclass

from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.nn import MODELS, GraphView, ModelShape, NodeModel, make_model
from hpcgnn.train.config import Config
from hpcgnn.train.device import CPU, Device
from hpcgnn.train.features import FeatureScale
from hpcgnn.train.products import AdjacencyProducts
from hpcgnn.train.smoothing import Smoother
from hpcgnn.train.task import Facts
from hpcgnn.typing import Array

__all__ = ["GraphFacts", "LocalGraph", "shape_for"]


@dataclass(frozen=True, kw_only=True)
class GraphFacts(Facts):
    """Sizes of the graph, equal on all ranks; `relations` are those that the model tells apart."""

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    multi_label: bool
    directed: bool
    num_parts: int
    class_names: tuple[str, ...]
    relations: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """The metric that models are chosen by."""
        return "micro_f1" if self.multi_label else "accuracy"


def shape_for(config: Config, facts: GraphFacts) -> ModelShape:
    """Return the sizes and options of the model of `config` for a graph.

    Not collective.
    """
    label_width = facts.num_classes if config.train.label_augmentation > 0 else 0
    return config.model.shape(
        num_features=facts.num_features + label_width,
        num_classes=facts.num_classes,
        num_relations=max(len(facts.relations), 1),
    )


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
        (N, F) in the training dtype, scaled as the configuration says; with label augmentation
        (N, F + C), the labels of all training nodes behind the features.
    scale
        What the features were scaled by, where that comes from the graph.
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
    features: Tensor
    scale: FeatureScale | None
    labels: Array | None
    split: Array | None
    smoother: Smoother | None
    details: dict[str, int]
    device: Device = CPU

    def make_model(self, config: Config, seed: int) -> NodeModel:
        """Return the model of `config` for this graph, equal on all ranks.

        Not collective.
        """
        model = make_model(
            config.model.name,
            self.model_shape(config),
            directed=self.facts.directed,
            seed=seed,
            dtype=self.features.dtype,
        )
        return model.to(self.device.place)

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
