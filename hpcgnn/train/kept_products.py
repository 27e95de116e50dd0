"""Products of features that no epoch changes, computed before training and kept.

``A X`` of the first layer is the same in every epoch, as long as nothing is drawn for X: then its
exchange and its product are paid once. It costs the memory of the product, once for the rows that
training reads and once for all rows, which evaluation reads; where both are the same rows, once.
Products with more rows than X, as of many relations, are not kept, and by themselves
none that save little.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures, memory_of
from hpcgnn.config.config import Config
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphView, ModelShape, NodeFeatures, find_model
from hpcgnn.operator import AggregationOperator, KeptProduct, is_worth_keeping
from hpcgnn.spmd import collective
from hpcgnn.train.optimizer import num_evaluations
from hpcgnn.typing import Array


class KeptProducts:
    """Which products a run keeps, and those that it has."""

    def __init__(self, config: Config, shape: ModelShape) -> None:
        model, train = find_model(config.model.name), config.train
        self._depth = model.num_aggregations(shape)
        self._steps = model.num_feature_products(shape)
        # The rows of input layers change with their weights.
        possible = config.keeps_products and self._steps > 0 and not shape.type_features
        evaluations = num_evaluations(train)
        self._trains = possible and shape.input_dropout == train.label_augmentation == 0
        self._evaluates = possible and evaluations * len(train.seeds) > 1
        self._always, self._widths = config.exchange.keep_products == "always", shape.widths()[:2]
        self._known: dict[tuple[AggregationOperator, int], KeptProduct] = {}

    @property
    def num_bytes(self) -> int:
        """Of the products of this rank."""
        return sum(kept.product.nbytes for kept in self._known.values())

    @collective
    def for_training(self, view: GraphView, features: NodeFeatures) -> GraphView:
        """Return a view whose first layer has its products with the features of a step."""
        return self._with_products(view, features) if self._trains else view

    @collective
    def for_evaluation(self, view: GraphView, features: NodeFeatures) -> GraphView:
        """Return a view whose first layer has its products with all features."""
        return self._with_products(view, features) if self._evaluates else view

    def _with_products(self, view: GraphView, features: NodeFeatures) -> GraphView:
        if isinstance(features, SparseFeatures):
            # Their map comes first.
            return view
        assert isinstance(features, Tensor)
        memory = memory_of(features)
        layers = [view.layer(index) for index in range(self._depth)]
        sizes = [e.size for step in layers[: self._steps] for e in step.operators.values()]
        if any(size.num_rows > size.num_columns for size in sizes):
            return view
        if not (self._always or any(is_worth_keeping(size, *self._widths) for size in sizes)):
            return view
        with memory.ordered():
            x = memory.array(features.contiguous())
            rows = dict.fromkeys(layers[0].operators, x)
            for place in range(self._steps):
                step = layers[place]
                kept = {
                    kind: self._product(place, operator, rows[kind])
                    for kind, operator in step.operators.items()
                }
                layers[place] = replace(step, operators=kept)
                # Who aggregates again aggregates what came of the same matrix.
                rows = {kind: operator.product for kind, operator in kept.items()}
        return replace(view, active=tuple(layers))

    def _product(self, place: int, operator: AggregationOperator, rows: Array) -> KeptProduct:
        """Return the product; the same where training and evaluation read the same rows."""
        key = operator, place
        if key not in self._known:
            self._known[key] = KeptProduct(operator, rows)
        return self._known[key]


class WholeView:
    """The view of the whole graph that models are judged on.

    `kept` are the products that no epoch changes; None: none are kept.
    """

    def __init__(self, graph: LocalGraph, kept: KeptProducts | None = None) -> None:
        self._graph, self.kept = graph, kept
        self._view = graph.view if kept is None else None

    @collective
    def prepare(self) -> GraphView:
        """Return the view with the products that no evaluation changes, if they are kept.

        They are computed once: by the first evaluation, if nobody asks before.
        """
        if self._view is None:
            assert self.kept is not None
            graph = self._graph
            span = graph.products.trace.span("plan.kept_products")
            with span, graph.grid.moment.before_epochs():
                self._view = self.kept.for_evaluation(graph.view, graph.features)
        return self._view

    @torch.no_grad()
    @collective
    def outputs(self, model: Callable[..., Tensor]) -> Tensor:
        """Return what `model` says of this rank's nodes, or graphs, without dropout."""
        return model(self.prepare(), self._graph.features, None)
