"""The source of the whole graph: one step per epoch, with one exchange of rows per layer."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from typing_extensions import override

from hpcgnn.autograd import ChosenSums, DropoutKey
from hpcgnn.comm import agree
from hpcgnn.graph.context import Context
from hpcgnn.graph.feature_storage import FeatureStorage
from hpcgnn.graph.label_inputs import HiddenLabels
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph, LocalRows
from hpcgnn.sparse import EdgesOutside
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.support import NOTHING, Reasons
from hpcgnn.train.objectives.objective import GraphObjective
from hpcgnn.train.sources.source import Ready, Source, StepData


class WholeSource(Source):
    """Makes one step per epoch of this rank's rows, restricted to those that affect the loss.

    With ``train.inductive``, training uses the graph with all nodes, but only the edges between
    training nodes.
    """

    lacks: ClassVar[Reasons] = NOTHING

    @collective
    def __init__(
        self, context: Context, objective: GraphObjective, rows: LocalRows | None = None
    ) -> None:
        config, self._graph = context.config, objective.graph
        self._config, self._objective = config, objective
        self._storage = FeatureStorage(config.graph.features_dir)
        self._trained = (
            _between_train_nodes(context, self._graph) if config.train.inductive else self._graph
        )
        self._train_view = self._trained.view
        self._train_features = self._graph.features
        self._hidden_labels: HiddenLabels | None = None
        # If the rows with a loss differ between steps, nothing is restricted or kept.
        self._prepared = objective.examples.trains is None
        self._restricted = 0
        if not self._prepared:
            self._restricted = self._graph.restricted_aggregations(config)
            if config.exchange.prepare == "before":
                self._prepare()

    @override
    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        key = DropoutKey(seed, epoch)
        yield partial(self._step, seed, epoch, key), key

    @collective
    def _step(self, seed: int, epoch: int, key: DropoutKey) -> StepData:
        if not self._prepared:
            self._prepare()
        hidden = None if self._hidden_labels is None else self._hidden_labels.draw(key)
        targets = self._objective.examples.on_whole(seed, epoch)
        rows, values, size = targets.rows, targets.values, targets.size
        # A restricted view outputs the training nodes, but a read-out all graphs: 0 if inactive.
        if self._restricted and not self._graph.facts.num_graphs:
            rows = None
        if hidden is not None:
            rows, values = hidden if rows is None else rows[hidden], values[hidden]
            size = max(int(self._graph.grid.layer.allreduce(len(values))), 1)
        return StepData(self._train_view, self._train_features, values, size, rows)

    @collective
    def _prepare(self) -> None:
        """Find the rows that training reads, and keep products and hidden labels for them."""
        graph, config, self._prepared = self._graph, self._config, True
        examples, whole = self._objective.examples, self._objective.whole
        assert examples.trains is not None
        rows_in_features = train_rows = graph.device.tensor(examples.trains.nonzero()[0])
        if self._restricted:
            rows_in_features = self._activate(graph.num_aggregations(config), train_rows)
        if whole.cached_products is not None:
            span = graph.products.trace.span("plan.cached_products")
            with span, graph.grid.run_position.before_epochs():
                view, features = self._train_view, self._train_features
                self._train_view = whole.cached_products.for_training(view, features)
        whole.prepare()
        if config.train.label_augmentation > 0:
            with agree(graph.grid.world):
                if self._train_features is graph.features:
                    # Copy the features: evaluation reads the labels that training hides.
                    self._train_features = self._storage.select_rows(graph.features, None)
            self._hidden_labels = HiddenLabels(
                self._train_features,
                rows_in_features,
                graph.products.node_ids[train_rows.cpu().numpy()],
                graph.facts.num_classes,
                config.train.label_augmentation,
            )

    @collective
    def _activate(self, depth: int, train_rows: torch.Tensor) -> torch.Tensor:
        """Restrict the view; return the positions of the training nodes among the features."""
        graph, trains = self._graph, self._objective.examples.trains
        assert trains is not None
        # The outputs of the last layer are the training nodes. The view numbers them consecutively,
        # and the inputs of the first layer likewise: nothing else is held or sent.
        with graph.products.trace.span("plan.active_sets"):
            products = self._trained.products
            trained = graph.nodes_of(trains)
            active = products.active_views(trained, depth, self._restricted)
        sums = self._trained.view.sums
        layers = tuple(replace(layer, sums=sums) for layer in active.layers)
        self._train_view = replace(self._trained.view, active=layers)
        if (members := self._trained.view.members) is not None:
            self._train_view = self._train_view.of_graphs(members.of_nodes(trained))
        with agree(graph.grid.world):
            if len(active.inputs) < graph.row_map.num_local:
                self._train_features = self._storage.select_rows(graph.features, active.inputs)
        return torch.searchsorted(active.inputs, train_rows)


@collective
def _between_train_nodes(context: Context, graph: LocalGraph) -> LocalGraph:
    """Return the graph with the edges between training nodes only, and with all its features."""
    assert graph.split is not None
    chosen = graph.split == Split.TRAIN
    trained = load_graph(replace(context, hidden=EdgesOutside(context.grid, graph.row_map, chosen)))
    view = replace(trained.view, sums=ChosenSums(trained.view.sums, chosen))
    return replace(trained, features=graph.features, view=view)
