"""Training on sampled subgraphs, judged on the full graph.

Every rank samples other subgraphs of one topology, which its host holds once. A step has the same
subgraphs whatever the number of ranks; ranks set theirs side by side, so that normalisation over
nodes sees one batch, and their shares of the loss add up.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS, REVERSED, Aggregations, Model
from hpcgnn.nn.losses import multi_label_loss, single_label_loss
from hpcgnn.sampling import LayeredSample, Subgraph
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import Config
from hpcgnn.train.load import load_graph
from hpcgnn.train.node_task import NodeTask
from hpcgnn.train.sampled_graph import read_sampled_graph
from hpcgnn.train.sampled_input import BatchInput, SubgraphInput
from hpcgnn.train.sampled_views import SampledViews
from hpcgnn.train.task import Step
from hpcgnn.typing import LocalIndices

__all__ = ["SampledTask"]


class SampledTask(NodeTask):
    """The whole graph on every host to sample from, and the rows of this rank to judge models with.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    config
        The configuration.
    trace
        Where times are recorded.

    Raises
    ------
    CollectiveInputError
        As `load_graph` and `NodeTask`, and when options do not apply to sampled training.
    """

    def __init__(self, grid: ProcessGrid, config: Config, trace: TraceRecorder) -> None:
        with agree(grid.world):
            _check_options(config)
        # Evaluation is of all nodes: active sets would be made for nothing.
        whole = replace(config, exchange=replace(config.exchange, active_sets=False))
        graph = load_graph(grid, whole, trace, needs=("features", "labels", "split"))
        super().__init__(graph, whole)
        wanted = MODELS[config.model.name].aggregations
        if not graph.facts.directed:
            wanted = tuple(kind for kind in wanted if kind not in REVERSED)
        by_layer = config.sampling.sampler == "neighbour"
        with agree(grid.world):
            if by_layer:
                _check_fan_outs(config, wanted, graph.num_aggregations(config))
        self._trace, self._smoothing = trace, config.train.label_smoothing
        self._weighted = config.sampling.coverage > 0
        with trace.span("read.whole"):
            self._sampled = read_sampled_graph(grid, config, self)
        self._views = SampledViews(grid, self._sampled, wanted, config.train.dtype, trace)
        with trace.span("plan.sampling"):
            self._input: BatchInput | SubgraphInput
            if by_layer:
                self._input = BatchInput(grid, self._sampled, config.sampling)
            else:
                self._input = SubgraphInput(grid, self._sampled, config.sampling)

    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the steps of an epoch; threads sample ahead.

        Not collective.
        """
        losses, number = self._losses(seed, epoch), 0
        while True:
            with self._trace.span("wait.input"):
                loss = next(losses, None)
            if loss is None:
                return
            # Epochs have fewer steps than this.
            yield partial(loss, DropoutKey(seed, (epoch << 32) + number))
            number += 1

    def rank_details(self) -> dict[str, Any]:
        """Return sizes of this rank's share, and of what waited in its pool.

        Not collective.
        """
        return {**super().rank_details(), "pool_bytes_max": self._input.pool_bytes}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the graph, and how it was sampled.

        Not collective.
        """
        steps: dict[str, Any] = {"steps_per_epoch": self._input.num_steps}
        if isinstance(self._input, SubgraphInput):
            steps["mean_nodes"] = self._input.mean_nodes
            steps["counted_subgraphs"] = self._input.num_counted
        steps["pool_bytes_max"] = max(rank["pool_bytes_max"] for rank in ranks)
        return {**super().summary(ranks), "sampling": steps}

    def _losses(self, seed: int, epoch: int) -> Iterator[Callable[[DropoutKey, Model], Tensor]]:
        if isinstance(self._input, SubgraphInput):
            for subgraphs in self._input.steps(seed, epoch):
                yield partial(self._subgraph_loss, subgraphs)
        else:
            for sample, size in self._input.steps(seed, epoch):
                yield partial(self._batch_loss, sample, size)

    def _subgraph_loss(self, subgraphs: list[Subgraph], key: DropoutKey, model: Model) -> Tensor:
        with self._trace.span("plan.view"):
            view = self._views.of_subgraphs(subgraphs, weighted=self._weighted)
            nodes_N = _rows(view.nodes)
            features_NF = self._sampled.features[nodes_N]
        logits_NC: Tensor = model(view.graph, features_NF, key)
        trained_N = torch.from_numpy(self._sampled.trained)[nodes_N]
        labels = self._sampled.labels[nodes_N[trained_N]]
        weights = view.weights
        if weights is None:
            count = max(int(self.grid.layer.allreduce(len(labels))), 1)
            return self._loss(logits_NC[trained_N], labels, count, None)
        weights_T = torch.from_numpy(weights).to(logits_NC.dtype)[trained_N]
        # Each subgraph's weighted sum estimates the sum over all training nodes.
        count = self.num_train * self._config.sampling.subgraphs
        return self._loss(logits_NC[trained_N], labels, count, weights_T)

    def _batch_loss(
        self, sample: LayeredSample, size: int, key: DropoutKey, model: Model
    ) -> Tensor:
        with self._trace.span("plan.view"):
            view, inputs = self._views.of_layers(sample)
            features = self._sampled.features[_rows(inputs)]
        logits_NC: Tensor = model(view, features, key)
        labels = self._sampled.labels[_rows(sample.layers[-1].outputs)]
        return self._loss(logits_NC, labels, size, None)

    def _loss(
        self, logits_NC: Tensor, labels: Tensor, count: int, weights_N: Tensor | None
    ) -> Tensor:
        loss = multi_label_loss if self.graph.facts.multi_label else single_label_loss
        return loss(logits_NC, labels, count, self._smoothing, weights_N)


def _rows(nodes: LocalIndices) -> Tensor:
    return torch.from_numpy(nodes).long()


def _check_options(config: Config) -> None:
    if Aggregations.MEAN_BY_RELATION in MODELS[config.model.name].aggregations:
        raise InputError(
            f"model.name = {config.model.name!r} tells relations apart, which subgraphs do not: "
            "choose another model or train.task=full"
        )
    if config.train.label_augmentation > 0:
        raise InputError("train.label_augmentation needs train.task=full")
    if config.train.activations != "native":
        raise InputError("train.activations=bfloat16 needs train.task=full")


def _check_fan_outs(config: Config, wanted: tuple[Aggregations, ...], depth: int) -> None:
    given = len(config.sampling.fan_outs)
    if given != depth:
        raise InputError(
            f"sampling.fan_outs has {given} numbers: the model aggregates {depth} times"
        )
    if not REVERSED.isdisjoint(wanted):
        raise InputError(
            "sampling.sampler=neighbour draws along one direction of edges: "
            "set graph.undirected=true"
        )
