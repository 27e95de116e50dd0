"""Full-graph node classification: the loss over all ranks, and how logits score."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey, activations_as
from hpcgnn.comm import raise_on_all
from hpcgnn.errors import InputError
from hpcgnn.nn import NodeFeatures, NodeModel, tensors_of
from hpcgnn.nn.losses import multi_label_loss, single_label_loss
from hpcgnn.storage import Split
from hpcgnn.train.config import Config
from hpcgnn.train.graph_report import describe_graph_run, summarise_graph
from hpcgnn.train.kept_products import KeptProducts
from hpcgnn.train.label_inputs import HiddenLabels
from hpcgnn.train.local_graph import GraphFacts, LocalGraph
from hpcgnn.train.metrics import Evaluation, evaluate_multi_label, evaluate_single_label
from hpcgnn.train.predictions import save_predictions
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.task import Step

__all__ = ["NodeTask"]


class NodeTask:
    """The rows of one rank and the loss over all ranks.

    Collective.

    Parameters
    ----------
    graph
        The share of this rank, with labels and split.
    config
        The configuration.

    Raises
    ------
    CollectiveInputError
        When no node of the whole graph is there to train on, or none to be patient about.
    """

    def __init__(self, graph: LocalGraph, config: Config) -> None:
        assert graph.labels is not None
        assert graph.split is not None
        self.graph, self.grid, self._config = graph, graph.grid, config
        multi_label = graph.facts.multi_label
        # (N,) int64 with -1 for none, or (N, C) zeros and ones in the training dtype.
        self.labels = graph.device.tensor(graph.labels).to(
            graph.features.dtype if multi_label else torch.int64
        )
        self.split = graph.device.tensor(graph.split)
        labelled = np.ones(len(graph.split), bool) if multi_label else graph.labels >= 0
        rows = {each: np.flatnonzero((graph.split == each) & labelled) for each in Split}
        self.train_rows = graph.device.tensor(rows[Split.TRAIN])
        counts = [len(rows[each]) for each in (Split.TRAIN, Split.VALID)]
        self.num_train, num_valid = (int(graph.grid.layer.allreduce(each)) for each in counts)
        raise_on_all(graph.grid.world, _fault(config, self.num_train, num_valid))
        self._compact, self._activations = config.exchange.active_sets, config.train.activations
        self._kept = KeptProducts(config, graph.model_shape(config))
        self._train_view = self._evaluate_view = graph.view
        self._train_features: NodeFeatures = graph.features
        self._rows_in_features = self.train_rows
        self._hidden_labels: HiddenLabels | None = None
        self._prepared = False
        if config.exchange.prepare == "before":
            self._prepare()

    @property
    def facts(self) -> GraphFacts:
        """Sizes of the whole graph."""
        return self.graph.facts

    def make_model(self, seed: int) -> NodeModel:
        """Return a new model, equal on all ranks.

        Not collective.
        """
        return self.graph.make_model(self._config, seed)

    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the one step of an epoch.

        Not collective.
        """
        yield partial(self._train_loss, DropoutKey(seed, epoch))

    def _prepare(self) -> None:
        """Find what training reads; collective."""
        graph, config, self._prepared = self.graph, self._config, True
        if self._compact:
            self._activate(graph.num_aggregations(config))
        with graph.products.trace.span("plan.kept_products"):
            self._train_view = self._kept.for_training(self._train_view, self._train_features)
            self._evaluate_view = self._kept.for_evaluation(graph.view, graph.features)
        if config.train.label_augmentation > 0:
            if self._train_features is graph.features:
                # Evaluation sees the labels that training hides.
                self._train_features = graph.features.clone()
            self._hidden_labels = HiddenLabels(
                self._train_features,
                self._rows_in_features,
                graph.products.node_ids[self.train_rows.cpu().numpy()],
                graph.facts.num_classes,
                config.train.label_augmentation,
            )

    def _train_loss(self, key: DropoutKey, model: NodeModel) -> Tensor:
        if not self._prepared:
            self._prepare()
        hidden = None if self._hidden_labels is None else self._hidden_labels.draw(key)
        resident = (*tensors_of(self._train_features), *self._kept.tensors(), *model.parameters())
        with activations_as(self._activations, resident):
            logits_TC: Tensor = model(self._train_view, self._train_features, key)
        if not self._compact:
            logits_TC = logits_TC[self.train_rows]
        labels, count = self.labels[self.train_rows], self.num_train
        if hidden is not None:
            logits_TC, labels = logits_TC[hidden], labels[hidden]
            count = max(int(self.graph.grid.layer.allreduce(len(labels))), 1)
        loss = multi_label_loss if self.graph.facts.multi_label else single_label_loss
        return loss(logits_TC, labels, count, self._config.train.label_smoothing)

    def _activate(self, depth: int) -> None:
        graph = self.graph
        targets = np.zeros(len(self.split), np.bool_)
        targets[self.train_rows.cpu().numpy()] = True
        with graph.products.trace.span("plan.active_sets"):
            active = graph.products.active_views(targets, depth)
        self._train_view = replace(graph.view, active=active.layers)
        if len(active.inputs) < len(self.split):
            self._train_features = graph.features[active.inputs]
        self._rows_in_features = torch.searchsorted(active.inputs, self.train_rows)

    @torch.no_grad()
    def evaluate(self, model: NodeModel) -> Evaluation:
        """Return the metrics of `model` on all splits.

        Collective.
        """
        return self._judge(model(self._evaluate_view, self.graph.features, None))

    @torch.no_grad()
    def evaluate_kept(self, model: NodeModel) -> dict[str, Any]:
        """Return the metrics of the corrected and smoothed predictions, where that is on.

        Collective.
        """
        smoother = self.graph.smoother
        if smoother is None:
            return {}
        smoothed = self._judge(smoother(model(self._evaluate_view, self.graph.features, None)))
        return {"smoothed": {split: smoothed.chosen(split) for split in ("valid", "test")}}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what the features were scaled by, where that comes from the graph.

        Not collective.
        """
        scales = self.graph.scales.items()
        return {key: value for name, each in scales for key, value in each.tensors(name).items()}

    def describe(self, threads: int) -> str:
        """Return the line that says what is about to run.

        Not collective.
        """
        return describe_graph_run(self.graph, self._config, threads)

    def rank_details(self) -> dict[str, Any]:
        """Return sizes of this rank's share.

        Not collective.
        """
        buffers = self.grid.buffers
        sizes = {"ghost_bytes_max": buffers.ghosts.peak, "buffer_bytes": buffers.num_bytes}
        sizes["kept_bytes"] = self._kept.num_bytes
        return {**sizes, **self.graph.details}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the graph, and how its rows moved.

        Not collective.
        """
        return summarise_graph(self.graph, self._config, ranks)

    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write probabilities of all nodes in original order, by the model that `seed` kept.

        Collective.
        """
        save_predictions(self.graph, directory, seed)

    def _judge(self, logits_NC: Tensor) -> Evaluation:
        evaluate = evaluate_multi_label if self.graph.facts.multi_label else evaluate_single_label
        return evaluate(self.graph.grid, logits_NC, self.labels, self.split)


def _fault(config: Config, num_train: int, num_valid: int) -> InputError | None:
    if num_train == 0:
        return InputError(
            f"{config.graph.store}: no labelled node is in the training split; "
            "convert the graph with a split that has training nodes"
        )
    if num_valid == 0 and config.train.patience > 0:
        return InputError(
            f"train.patience = {config.train.patience}, but {config.graph.store} has no labelled "
            "validation node; set train.patience=0 or convert with a validation split"
        )
    return None
