"""Products of the first layer with the features, computed once and kept.

``A X`` of the first layer is the same in every epoch unless X is random, as with input dropout:
then its exchange and product are computed once. It takes the memory of the product, once for the
rows that training reads and once for all rows, which evaluation reads; only once if these are the
same. Products are kept if that saves enough, or if the configuration asks for it; those of many
relations also where training would hold them anyway.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures, memory_of
from hpcgnn.config.config import Config
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphView, ModelShape, NodeFeatures, find_model
from hpcgnn.operator import AggregationOperator, CachedProduct, is_worth_caching
from hpcgnn.spmd import collective
from hpcgnn.train.optimizer import num_evaluations
from hpcgnn.typing import Array


class CachedProducts:
    """Decides which products a run keeps, and holds them."""

    def __init__(self, config: Config, shape: ModelShape) -> None:
        model, train = find_model(config.model.name), config.train
        self._depth = model.num_aggregations(shape)
        self._steps = model.num_feature_products(shape)
        # With typed features, input layers come first, and their outputs change with their weights.
        possible = config.keeps_products and self._steps > 0 and not shape.type_features
        evaluations = num_evaluations(train)
        self._trains = possible and shape.input_dropout == train.label_augmentation == 0
        self._evaluates = possible and evaluations * len(train.seeds) > 1
        self._always = config.exchange.keep_products == "always"
        in_width, out_width, *_ = shape.widths()
        self._widths = in_width, out_width
        self._known: dict[tuple[AggregationOperator, int], CachedProduct] = {}

    @property
    def num_bytes(self) -> int:
        """The size in bytes of the kept products of this rank."""
        return sum(kept.product.nbytes for kept in self._known.values())

    @collective
    def for_training(self, view: GraphView, features: NodeFeatures) -> GraphView:
        """Return a view whose first layer has its products with the features of a step."""
        return self._with_products(view, features, trains=True) if self._trains else view

    @collective
    def for_evaluation(self, view: GraphView, features: NodeFeatures) -> GraphView:
        """Return a view whose first layer has its products with all features."""
        return self._with_products(view, features) if self._evaluates else view

    def _with_products(
        self, view: GraphView, features: NodeFeatures, *, trains: bool = False
    ) -> GraphView:
        if isinstance(features, SparseFeatures):
            # Sparse features are multiplied by weights before they are aggregated.
            return view
        assert isinstance(features, Tensor)
        memory = memory_of(features)
        layers = [view.layer(index) for index in range(self._depth)]
        operators = [each for step in layers[: self._steps] for each in step.operators.items()]
        if not self._always and not any(
            (operator, 0) in self._known
            or is_worth_caching(
                operator.size,
                self._widths,
                len(layers[0].relation_rows) if kind.by_relation else 0,
                trains=trains,
            )
            for kind, operator in operators
        ):
            return view
        with memory.ordered():
            x = memory.array(features.contiguous())
            rows = dict.fromkeys(layers[0].operators, x)
            for number in range(self._steps):
                step = layers[number]
                kept = {
                    kind: self._product(number, operator, rows[kind])
                    for kind, operator in step.operators.items()
                }
                layers[number] = replace(step, operators=kept)
                # A second aggregation reads the product of the same matrix.
                rows = {kind: operator.product for kind, operator in kept.items()}
        return replace(view, active=tuple(layers))

    def _product(self, index: int, operator: AggregationOperator, rows: Array) -> CachedProduct:
        """Return the product; training and evaluation share it if they read the same rows."""
        key = operator, index
        if key not in self._known:
            self._known[key] = CachedProduct(operator, rows)
        return self._known[key]


class WholeView:
    """The view of the whole graph that models are evaluated on.

    `cached_products` holds the products that no epoch changes; None to keep none.
    """

    def __init__(self, graph: LocalGraph, cached_products: CachedProducts | None = None) -> None:
        self._graph, self.cached_products = graph, cached_products
        self._view = graph.view if cached_products is None else None

    @collective
    def prepare(self) -> GraphView:
        """Return the view, with kept products if there are any.

        They are computed at the first call, at the latest by the first evaluation.
        """
        if self._view is None:
            assert self.cached_products is not None
            graph = self._graph
            span = graph.products.trace.span("plan.cached_products")
            with span, graph.grid.run_position.before_epochs():
                self._view = self.cached_products.for_evaluation(graph.view, graph.features)
        return self._view

    @torch.no_grad()
    @collective
    def outputs(self, model: Callable[..., Tensor]) -> Tensor:
        """Return the outputs of `model` for this rank's nodes, or graphs, without dropout."""
        return model(self.prepare(), self._graph.features, None)
