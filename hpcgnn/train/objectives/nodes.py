"""The objectives of nodes and of whole graphs: predict a class, several labels, or numbers."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import raise_on_all
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.label_inputs import labelled_nodes
from hpcgnn.graph.labels import Reading, label_graphs, label_nodes
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import HeadedModel, MeanLoss, NodeModel, for_loss, make_headed_model
from hpcgnn.sampling import Subgraph
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.cached_products import CachedProducts, WholeView
from hpcgnn.train.early_stopping import patience_fault
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.label_metrics import loss_of, score
from hpcgnn.train.objectives.objective import SingleObjective
from hpcgnn.train.objectives.report import GraphReport
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.train.sources.source import (
    BatchExamples,
    BatchShare,
    Examples,
    StepData,
    SubgraphExamples,
    WholeTargets,
)
from hpcgnn.typing import Array, LocalIndices, Mask


class LabelledRows(Examples):
    """The labels and splits of a graph's rows, as examples.

    `labels` are (N,) int64 classes with -1 for none, or in the training dtype (N, C) zeros and
    ones, or (N, T) scaled numbers, NaN where missing. `split` is (N,) uint8. `train_rows` (T,)
    int64 are the labelled training rows of this rank; `num_train` counts those of all ranks,
    `num_valid` the labelled validation rows.
    """

    @collective
    def __init__(self, graph: LocalGraph, config: Config) -> None:
        assert graph.labels is not None
        assert graph.split is not None
        wide = graph.labels.ndim == 2
        self.labels = graph.device.tensor(graph.labels).to(
            getattr(torch, config.train.dtype) if wide else torch.int64
        )
        self.split = graph.device.tensor(graph.split)
        labelled = labelled_nodes(graph.labels)
        rows = {role: np.flatnonzero((graph.split == role) & labelled) for role in Split}
        self.train_rows = graph.device.tensor(rows[Split.TRAIN])
        counts = np.array([len(rows[role]) for role in (Split.TRAIN, Split.VALID)])
        graph.grid.sum_over_blocks(counts)
        self.num_train, self.num_valid = counts.tolist()

    @cached_property
    def _train_labels(self) -> Tensor:
        """The labels of the training rows, without a copy if these are all rows."""
        all_train = len(self.train_rows) == len(self.labels)
        return self.labels if all_train else self.labels[self.train_rows]

    @property
    @override
    def trains(self) -> Mask:
        mask = np.zeros(len(self.split), np.bool_)
        mask[self.train_rows.cpu().numpy()] = True
        return mask

    @property
    @override
    def labels_of_nodes(self) -> Array:
        labels: Array = self.labels.cpu().numpy()
        return labels

    @override
    def on_whole(self, seed: int, epoch: int) -> WholeTargets:
        # A plan rehearses one rank alone, which may have no training rows.
        size = max(self.num_train, 1)
        return WholeTargets(self.train_rows, self._train_labels, size)

    @override
    def in_batches(self, graph: SampledGraph) -> "LabelledNodes":
        return LabelledNodes(graph)

    @override
    def in_subgraphs(self, graph: SampledGraph) -> "LabelledNodes":
        return LabelledNodes(graph)


class LabelledNodes(BatchExamples, SubgraphExamples):
    """The labelled nodes of a graph to sample, without those whose labels an epoch shows."""

    unit = "nodes"

    def __init__(self, graph: SampledGraph) -> None:
        self._graph, self._labels = graph, graph.labels
        self._nodes = np.flatnonzero(graph.trained).astype(np.int32)

    def __len__(self) -> int:
        return len(self._nodes)

    @override
    def batch(self, share: BatchShare) -> tuple[LocalIndices, LocalIndices]:
        nodes = np.sort(self._nodes[share.own_numbers])
        nodes = nodes[self._predicted(nodes, share.seeds)]
        return nodes, nodes

    @override
    def targets(self, pieces: Sequence[LocalIndices]) -> Tensor:
        return self._labels[torch.from_numpy(np.concatenate(pieces)).long()]

    @override
    def inside(
        self, subgraphs: Sequence[Subgraph], nodes: LocalIndices, seeds: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        numbers = torch.from_numpy(nodes).long()
        predicted = torch.from_numpy(self._predicted(nodes, seeds))
        return predicted, self._labels[numbers[predicted]]

    def _predicted(self, nodes: LocalIndices, seeds: tuple[int, int]) -> Mask:
        trained: Mask = self._graph.trained[nodes]
        inputs = self._graph.label_inputs
        if inputs is None:
            return trained
        return trained & ~inputs.shown(self._graph.node_ids[nodes], seeds)


def _fault(config: Config, num_train: int, num_valid: int) -> InputError | None:
    if num_train == 0:
        return InputError(
            f"{config.graph.store}: no labelled node is in the training split; "
            "convert the graph with a split that has training nodes"
        )
    lacks = f"{config.graph.store} has no labelled validation node"
    remedy = "convert with a validation split"
    if config.train.threshold == "top" and num_valid == 0 == config.train.patience:
        return InputError(
            f"train.threshold = 'top', but {lacks}; set train.threshold=half or {remedy}"
        )
    return patience_fault(config.train, num_valid, lacks, remedy)


_NODES: Reasons = {
    Trait.PAIRS: "it predicts no pairs of nodes",
    Trait.FIELDS: "it predicts values without time",
    Trait.PROGRAMS: "it reads one graph, or many as one",
}


class NodeObjective(SingleObjective):
    """Learns labels or numbers of nodes from the store or a file; see `LabelledRows`."""

    lacks: ClassVar[Reasons] = _NODES
    reads: ClassVar[Reading] = Reading(("features", "labels", "split"), label_nodes)
    examples: LabelledRows

    @collective
    def __init__(self, graph: LocalGraph, config: Config) -> None:
        self.graph, self.grid, self.config = graph, graph.grid, config
        self.examples = LabelledRows(graph, config)
        self.whole = WholeView(graph, CachedProducts(config, graph.model_shape(config)))
        self.about = GraphReport(graph, config, self.whole.cached_products)

    @classmethod
    @collective
    @override
    def on(cls, graph: LocalGraph, config: Config, drawn: None) -> Self:
        objective = cls(graph, config)
        examples = objective.examples
        raise_on_all(graph.grid.world, _fault(config, examples.num_train, examples.num_valid))
        return objective

    @override
    def make_part(self, encoder: NodeModel, width: int, seed: int) -> HeadedModel:
        return make_headed_model(encoder, width, self.facts.num_classes, seed)

    @collective
    @override
    def loss(self, model: Any, step: StepData, key: DropoutKey) -> Tensor:
        return self.loss_of(model, for_loss(model, step.view, step.features, key), step)

    @collective
    @override
    def loss_of(self, model: object, outputs: Tensor, step: StepData) -> Tensor:
        assert step.size is not None
        return self.loss_of_rows(step.counted(outputs), step.targets, step.size, step.weights)

    def loss_of_rows(
        self, logits_TC: Tensor, labels: Tensor, size: float, weights_T: Tensor | None = None
    ) -> Tensor:
        """Return this rank's share of the loss of some rows; see `MeanLoss`."""
        loss = MeanLoss(size, self.config.train.label_smoothing, weights_T)
        return loss_of(self.facts, loss, logits_TC, labels)

    @collective
    @override
    def judge(self, model: object, outputs: Tensor) -> Evaluation:
        rows, threshold = self.examples, self.config.train.threshold
        return score(self.grid, outputs, rows.labels, rows.split, self.facts, threshold)

    @collective
    @override
    def evaluate_kept(self, model: Callable[..., Tensor]) -> dict[str, Any]:
        smoother = self.graph.smoother
        if smoother is None:
            return {}
        smoothed = self.judge(model, smoother(self.whole.outputs(model)))
        # With several tasks, the choosing metric may belong to another task.
        metric = self.config.train.metric
        metric = metric if f"valid_{metric}" in smoothed.values else self.metric
        means = {split: smoothed.values.get(f"{split}_{metric}") for split in ("valid", "test")}
        return {"smoothed": means}


class GraphsObjective(NodeObjective):
    """Learns classes, labels or numbers of whole graphs, from a store of many graphs."""

    reads: ClassVar[Reading] = Reading(("features", "labels", "split"), label_graphs)
    needs: ClassVar[frozenset[Trait]] = frozenset({Trait.TRAINED_STATISTICS, Trait.LAYER_VIEWS})
    lacks: ClassVar[Reasons] = {
        **_NODES,
        Trait.SOME_EDGES: "its splits are of whole graphs",
        Trait.ONE_GRAPH: "values of one graph's nodes tell nothing about another graph",
        Trait.LABELLED_NODES: "its labels are of whole graphs",
        Trait.PLANNED_FROM_DEGREES: "its read-outs can only be counted in the graph",
    }
