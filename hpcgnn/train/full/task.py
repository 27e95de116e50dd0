"""Full-graph node classification: a step is an epoch, its loss over all ranks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.graph.label_inputs import HiddenLabels
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import NodeFeatures, NodeModel
from hpcgnn.sparse import EdgesOutside
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.train.graph_task import NODES, ClassTask
from hpcgnn.train.task import Step


class NodeTask(ClassTask):
    """The rows of one rank and the loss over all ranks; see `ClassTask`.

    Parameters
    ----------
    trained
        The graph that training sees, with the same nodes; None: the whole one.
    """

    lacks = NODES

    @collective
    def __init__(
        self, graph: LocalGraph, config: Config, trained: LocalGraph | None = None
    ) -> None:
        super().__init__(graph, config)
        self._trained = trained or graph
        self._restricted = graph.restricted_aggregations(config)
        self._train_view = self._trained.view
        self._train_features: NodeFeatures = graph.features
        self._rows_in_features = self.evaluator.train_rows
        self._hidden_labels: HiddenLabels | None = None
        self._prepared = False
        if config.exchange.prepare == "before":
            self._prepare()

    @classmethod
    @collective
    def load(cls, context: Context) -> "NodeTask":
        """Read this rank's share and prepare to train on it."""
        graph = load_graph(context, needs=("features", "labels", "split"))
        if not context.config.train.inductive:
            return cls(graph, context.config)
        assert graph.split is not None
        hidden = EdgesOutside(context.grid, graph.row_map, graph.split == Split.TRAIN)
        trained = load_graph(replace(context, hidden=hidden), needs=("features",))
        # Both have the same features.
        trained = replace(trained, features=graph.features)
        return cls(graph, context.config, trained)

    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the one step of an epoch."""
        yield partial(self._train_loss, DropoutKey(seed, epoch))

    def _prepare(self) -> None:
        """Find what training reads; collective."""
        graph, config, self._prepared = self.graph, self._config, True
        train_rows, kept = self.evaluator.train_rows, self.evaluator.kept
        if self._restricted:
            self._activate(graph.num_aggregations(config))
        span = graph.products.trace.span("plan.kept_products")
        with span, self.grid.moment.before_epochs():
            self._train_view = kept.for_training(self._train_view, self._train_features)
            self.evaluator.keep_products()
        if config.train.label_augmentation > 0:
            if self._train_features is graph.features:
                # Evaluation sees the labels that training hides.
                self._train_features = graph.features.clone()
            self._hidden_labels = HiddenLabels(
                self._train_features,
                self._rows_in_features,
                graph.products.node_ids[train_rows.cpu().numpy()],
                graph.facts.num_classes,
                config.train.label_augmentation,
            )

    def _train_loss(self, key: DropoutKey, model: NodeModel) -> Tensor:
        if not self._prepared:
            self._prepare()
        evaluator = self.evaluator
        hidden = None if self._hidden_labels is None else self._hidden_labels.draw(key)
        logits_TC: Tensor = model(self._train_view, self._train_features, key)
        # Graphs that are predicted are all there, those that no node is active of with rows of 0.
        if not self._restricted or self.graph.facts.num_graphs:
            logits_TC = logits_TC[evaluator.train_rows]
        labels, count = evaluator.labels[evaluator.train_rows], evaluator.num_train
        if hidden is not None:
            logits_TC, labels = logits_TC[hidden], labels[hidden]
            count = max(int(self.grid.layer.allreduce(len(labels))), 1)
        return evaluator.loss(logits_TC, labels, count)

    def _activate(self, depth: int) -> None:
        graph, train_rows = self.graph, self.evaluator.train_rows
        # The last layer's outputs are the training nodes. The view numbers them among themselves,
        # and features among the inputs of the first layer: nothing else is held or sent.
        with graph.products.trace.span("plan.active_sets"):
            products = self._trained.products
            trained = graph.nodes_of(self.evaluator.trains)
            active = products.active_views(trained, depth, self._restricted)
        self._train_view = replace(self._trained.view, active=active.layers)
        if (members := self._trained.view.members) is not None:
            self._train_view = replace(self._train_view, members=members.of_nodes(trained))
        if len(active.inputs) < graph.row_map.num_local:
            self._train_features = graph.features[active.inputs]
        self._rows_in_features = torch.searchsorted(active.inputs, train_rows)
