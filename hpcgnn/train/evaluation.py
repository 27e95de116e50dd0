"""How good a model is: accuracy and F1 from counts, so that the number of ranks does not matter."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum, raise_on_all
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.label_inputs import labelled_nodes
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import MeanLoss
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.train.kept_products import KeptProducts
from hpcgnn.train.metrics import SPLITS, Evaluation
from hpcgnn.train.multi_label import evaluate_multi_label
from hpcgnn.train.targets import constant_targets, target_metrics
from hpcgnn.typing import Array, Mask


@collective
def evaluate_single_label(
    grid: ProcessGrid,
    logits_NC: Tensor,
    labels_N: Tensor,
    split_N: Tensor,
    names: Sequence[str] = (),
) -> Evaluation:
    """Return loss and accuracy over all ranks; nodes without a label (-1) do not count.

    Parameters
    ----------
    labels_N, split_N
        Classes (int64) and splits (uint8) of the local nodes.
    names
        Of the classes; empty: their numbers.
    """
    sums = np.zeros((len(SPLITS), 3 + logits_NC.shape[1]))
    predicted_N = logits_NC.argmax(dim=1)
    for row, split in enumerate(SPLITS.values()):
        inside = (split_N == int(split)) & (labels_N >= 0)
        labels = labels_N[inside]
        loss = MeanLoss(1).single_label(logits_NC[inside].double(), labels)
        correct = (predicted_N[inside] == labels).sum()
        sums[row, :3] = [len(labels), float(loss), float(correct)]
        given = predicted_N[inside].bincount(minlength=logits_NC.shape[1])
        sums[row, 3:] = given.cpu().numpy()
    allreduce_sum(grid.layer, sums)
    return Evaluation(means_by_split(SPLITS, sums[:, :3]), "accuracy", _one_class(sums[-1], names))


def _one_class(sums: Array, names: Sequence[str]) -> str:
    """Return that all nodes are given one class which not all have, from a row of the sums."""
    count, _, correct = sums[:3].astype(np.int64).tolist()
    given = np.flatnonzero(sums[3:])
    if len(given) != 1 or correct == count:
        return ""
    name = names[given[0]] if names else str(given[0])
    return f"all {count} that are tested are given class {name}, which {correct} of them have"


def means_by_split(splits: Iterable[str], sums: Array) -> dict[str, float]:
    """Return loss and accuracy of splits that are not empty, from (splits, 3) counts and sums."""
    values = {}
    for prefix, (count, loss_sum, correct_sum) in zip(splits, sums, strict=True):
        if count:
            values[f"{prefix}_loss"] = loss_sum / count
            values[f"{prefix}_accuracy"] = correct_sum / count
    return values


class Evaluator:
    """The labels and splits of a graph: which nodes count, and how a model scores on them.

    Parameters
    ----------
    graph
        The share of this rank, with labels and split.

    Attributes
    ----------
    labels
        (N,) int64 with -1 for none, or (N, C) zeros and ones in the training dtype; of numbers to
        predict (N, T) in it, scaled, NaN where missing.
    split
        (N,) uint8.
    train_rows
        (T,) int64 the labelled training nodes of this rank.
    num_train
        Labelled training nodes of all ranks.
    kept
        The products that the run keeps.

    Raises
    ------
    CollectiveInputError
        When no node of the whole graph is there to train on, or none to be patient about.
    """

    @collective
    def __init__(self, graph: LocalGraph, config: Config) -> None:
        assert graph.labels is not None
        assert graph.split is not None
        self._graph, self._smoothing = graph, config.train.label_smoothing
        self._facts = graph.facts
        wide = graph.labels.ndim == 2
        self._tuned = config.train.threshold
        self.labels = graph.device.tensor(graph.labels).to(
            getattr(torch, config.train.dtype) if wide else torch.int64
        )
        self.split = graph.device.tensor(graph.split)
        labelled = labelled_nodes(graph.labels)
        rows = {each: np.flatnonzero((graph.split == each) & labelled) for each in Split}
        self.train_rows = graph.device.tensor(rows[Split.TRAIN])
        counts = [len(rows[each]) for each in (Split.TRAIN, Split.VALID)]
        self.num_train, num_valid = (int(graph.grid.layer.allreduce(each)) for each in counts)
        raise_on_all(graph.grid.world, _fault(config, graph.facts, self.num_train, num_valid))
        self.kept = KeptProducts(config, graph.model_shape(config))
        self._view = graph.view

    @property
    def trains(self) -> Mask:
        """(N,) whether a node is a labelled training node."""
        mask = np.zeros(len(self.split), np.bool_)
        mask[self.train_rows.cpu().numpy()] = True
        return mask

    @collective
    def keep_products(self) -> None:
        """Compute the products that no evaluation changes, where the configuration keeps them."""
        self._view = self.kept.for_evaluation(self._graph.view, self._graph.features)

    def loss(
        self, logits_TC: Tensor, labels: Tensor, count: float, weights_T: Tensor | None = None
    ) -> Tensor:
        """Return this rank's share of a step's loss; see `MeanLoss`."""
        loss = MeanLoss(count, self._smoothing, weights_T)
        if self._facts.targets:
            return loss.squared(logits_TC, labels)
        multi_label = self._facts.multi_label
        return (loss.multi_label if multi_label else loss.single_label)(logits_TC, labels)

    @torch.no_grad()
    @collective
    def evaluate(self, model: Callable[..., Tensor]) -> Evaluation:
        """Return the metrics of `model` on all splits."""
        return self._score(model(self._view, self._graph.features, None))

    @torch.no_grad()
    @collective
    def evaluate_kept(self, model: Callable[..., Tensor]) -> dict[str, Any]:
        """Return the metrics of the corrected and smoothed predictions, where that is on."""
        smoother = self._graph.smoother
        if smoother is None:
            return {}
        smoothed = self._score(smoother(model(self._view, self._graph.features, None)))
        return {"smoothed": {split: smoothed.chosen(split) for split in ("valid", "test")}}

    def _score(self, logits_NC: Tensor) -> Evaluation:
        facts, arguments = self._facts, (self._graph.grid, logits_NC, self.labels, self.split)
        if facts.targets:
            values: dict[str, float] = {}
            found = target_metrics(*arguments, facts.targets, facts.target_scales)
            for part, each in found.items():
                values |= {f"{part}_{key}": value for key, value in each.items()}
            alike = "; ".join(
                f"all {count} that are tested are given {number:.4g} for {name}"
                for name, count, number in constant_targets(*arguments, facts)
            )
            return Evaluation(values, "r2", alike)
        if facts.multi_label:
            return evaluate_multi_label(*arguments, tuned=self._tuned)
        return evaluate_single_label(*arguments, facts.class_names)


def _fault(config: Config, facts: GraphFacts, num_train: int, num_valid: int) -> InputError | None:
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
    if config.train.threshold == "top" and not facts.multi_label:
        return InputError(
            "train.threshold = 'top' is for nodes that may have several labels; leave it out"
        )
    if config.train.threshold == "top" and num_valid == 0:
        return InputError(
            f"train.threshold = 'top', but {config.graph.store} has no labelled validation node; "
            "set train.threshold=half or convert with a validation split"
        )
    return None
