"""The labelled rows of a graph: nodes, or whole graphs, that are trained on and judged."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.comm import raise_on_all
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.label_inputs import labelled_nodes
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.sampling import Subgraph
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.train.sources.examples import (
    BatchExamples,
    Examples,
    SubgraphExamples,
    WholeTargets,
)
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask


class LabelledRows(Examples):
    """The labels and splits of a graph: which rows are trained on.

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
        (T,) int64 the labelled training rows of this rank.
    num_train
        Labelled training rows of all ranks.

    Raises
    ------
    CollectiveInputError
        When no row of the whole graph is there to train on, or none to be patient about.
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
        counts = [len(rows[role]) for role in (Split.TRAIN, Split.VALID)]
        self.num_train, num_valid = (int(graph.grid.layer.allreduce(count)) for count in counts)
        raise_on_all(graph.grid.world, _fault(config, self.num_train, num_valid))

    @property
    def trains(self) -> Mask:
        """(N,) whether a row is a labelled one of the training split."""
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
        return WholeTargets(self.train_rows, self.labels[self.train_rows], self.num_train)

    @override
    def in_batches(self, graph: SampledGraph) -> "LabelledNodes":
        return LabelledNodes(graph)

    @override
    def in_subgraphs(self, graph: SampledGraph) -> "LabelledNodes":
        return LabelledNodes(graph)


class LabelledNodes(BatchExamples, SubgraphExamples):
    """The labelled nodes of a graph to sample."""

    unit = "nodes"

    def __init__(self, graph: SampledGraph) -> None:
        self._labels, self._trained = graph.labels, torch.from_numpy(graph.trained)
        self._nodes = np.flatnonzero(graph.trained).astype(np.int32)

    def __len__(self) -> int:
        return len(self._nodes)

    @override
    def batch(
        self, numbers: GlobalIndices, selected: GlobalIndices, seeds: tuple[int, int]
    ) -> tuple[LocalIndices, LocalIndices]:
        nodes = np.sort(self._nodes[numbers[selected]])
        return nodes, nodes

    @override
    def targets(self, rows: LocalIndices) -> Tensor:
        return self._labels[torch.from_numpy(rows).long()]

    @override
    def inside(
        self, subgraphs: Sequence[Subgraph], nodes: LocalIndices, seeds: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        numbers = torch.from_numpy(nodes).long()
        trained = self._trained[numbers]
        return trained, self._labels[numbers[trained]]


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
    if config.train.threshold == "top" and num_valid == 0:
        return InputError(
            f"train.threshold = 'top', but {config.graph.store} has no labelled validation node; "
            "set train.threshold=half or convert with a validation split"
        )
    return None
