"""Full-graph node classification: the loss over all ranks, and how logits score."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey, activations_as
from hpcgnn.comm import raise_on_all
from hpcgnn.errors import InputError
from hpcgnn.nn import Model
from hpcgnn.nn.losses import multi_label_loss, single_label_loss
from hpcgnn.storage import Split
from hpcgnn.train.config import Config
from hpcgnn.train.label_inputs import HiddenLabels
from hpcgnn.train.local_graph import LocalGraph
from hpcgnn.train.metrics import Evaluation, evaluate_multi_label, evaluate_single_label

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
        self.graph = graph
        multi_label = graph.facts.multi_label
        # (N,) int64 with -1 for none, or (N, C) zeros and ones in the training dtype.
        self.labels = torch.from_numpy(graph.labels).to(
            graph.features.dtype if multi_label else torch.int64
        )
        self.split = torch.from_numpy(graph.split)
        labelled = np.ones(len(graph.split), bool) if multi_label else graph.labels >= 0
        rows = {each: np.flatnonzero((graph.split == each) & labelled) for each in Split}
        self._train_rows = torch.from_numpy(rows[Split.TRAIN])
        counts = [len(rows[each]) for each in (Split.TRAIN, Split.VALID)]
        self.num_train, num_valid = (int(graph.grid.layer.allreduce(each)) for each in counts)
        raise_on_all(graph.grid.world, _fault(config, self.num_train, num_valid))
        self._compact, self._activations = config.exchange.active_sets, config.train.activations
        self._train_view, self._train_features = graph.view, graph.features
        self._rows_in_features = self._train_rows
        if self._compact:
            self._activate(graph.num_aggregations(config))
        self._hidden_labels: HiddenLabels | None = None
        if config.train.label_augmentation > 0:
            if not self._compact:
                # Evaluation sees the labels that training hides.
                self._train_features = graph.features.clone()
            self._hidden_labels = HiddenLabels(
                self._train_features,
                self._rows_in_features,
                graph.view.node_ids[self._train_rows.numpy()],
                graph.facts.num_classes,
                config.train.label_augmentation,
            )

    def train_loss(self, model: Model, key: DropoutKey, smoothing: float) -> Tensor:
        """Return this rank's share of the training loss; the shares of a layer add up to it.

        Collective.

        Parameters
        ----------
        model
            The model.
        key
            The draw of dropout masks and hidden labels.
        smoothing
            Label smoothing.
        """
        hidden = None if self._hidden_labels is None else self._hidden_labels.draw(key)
        resident = (self._train_features, *model.parameters())
        with activations_as(self._activations, resident):
            logits_TC: Tensor = model(self._train_view, self._train_features, key)
        if not self._compact:
            logits_TC = logits_TC[self._train_rows]
        labels, count = self.labels[self._train_rows], self.num_train
        if hidden is not None:
            logits_TC, labels = logits_TC[hidden], labels[hidden]
            count = max(int(self.graph.grid.layer.allreduce(len(labels))), 1)
        loss = multi_label_loss if self.graph.facts.multi_label else single_label_loss
        return loss(logits_TC, labels, count, smoothing)

    def _activate(self, depth: int) -> None:
        graph = self.graph
        targets = np.zeros(len(self.split), np.bool_)
        targets[self._train_rows.numpy()] = True
        with graph.products.trace.span("plan.active_sets"):
            active = graph.products.active_views(targets, depth)
        self._train_view = replace(graph.view, active=active.layers)
        self._train_features = graph.features[active.inputs]
        self._rows_in_features = torch.searchsorted(active.inputs, self._train_rows)

    @torch.no_grad()
    def evaluate(self, model: Model) -> Evaluation:
        """Return the metrics of `model` on all splits.

        Collective.
        """
        return self._judge(model(self.graph.view, self.graph.features, None))

    @torch.no_grad()
    def evaluate_smoothed(self, model: Model) -> Evaluation:
        """Return the metrics of the corrected and smoothed predictions of `model`.

        Collective.
        """
        assert self.graph.smoother is not None
        return self._judge(self.graph.smoother(model(self.graph.view, self.graph.features, None)))

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
