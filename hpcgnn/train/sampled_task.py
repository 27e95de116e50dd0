"""Training on sampled subgraphs, judged on the full graph.

Ranks sample one topology, which a host holds once, or each its part of the graph. On a shared
topology a step has the same subgraphs whatever the number of ranks. Ranks set theirs side by side,
so that normalisation over nodes sees one batch, and their shares of the loss add up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS, REVERSED, Aggregations, GraphView, NodeFeatures, NodeModel
from hpcgnn.nn.losses import multi_label_loss, single_label_loss
from hpcgnn.sampling import LayeredSample, Subgraph
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.ahead import ready_ahead
from hpcgnn.train.config import Config
from hpcgnn.train.load import load_graph
from hpcgnn.train.node_task import NodeTask
from hpcgnn.train.sampled_graph import read_home
from hpcgnn.train.sampled_input import SubgraphInput
from hpcgnn.train.sampled_source import PartSource, Sampling, SamplingSource, SharedSource
from hpcgnn.train.task import Step
from hpcgnn.typing import LocalIndices

__all__ = ["SampledTask"]


@dataclass(frozen=True, eq=False)
class _Step:
    """What a step needs, where the model is.

    Parameters
    ----------
    view, features, labels
        What the model sees, and the labels of the rows that count.
    size
        Of a batch, over all ranks.
    trained, weights
        Of subgraphs: the rows that count, and the factors of their losses.
    """

    view: GraphView
    features: NodeFeatures
    labels: Tensor
    size: int
    trained: Tensor | None = None
    weights: Tensor | None = None


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
        with agree(grid.world):
            if config.sampling.sampler == "neighbour":
                _check_fan_outs(config, wanted, graph.num_aggregations(config))
        self._trace, self._smoothing = trace, config.train.label_smoothing
        with trace.span("read.rows"):
            home = read_home(grid, config, self)
        source = PartSource if config.sampling.topology == "partitioned" else SharedSource
        self._source: SamplingSource = source(grid, config, home, wanted, trace)
        self._told: dict[str, Any] = {}

    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the steps of an epoch; threads sample ahead.

        Collective.
        """
        sampling = self._source.at(seed, epoch)
        self._told = _describe(sampling)
        losses, number = self._losses(sampling, seed, epoch), 0
        while True:
            with self._trace.span("wait.input"):
                loss = next(losses, None)
            if loss is None:
                return
            # Epochs have fewer steps than this.
            yield partial(loss, DropoutKey(seed, (epoch << 32) + number))
            number += 1

    def rank_details(self) -> dict[str, Any]:
        """Return sizes of this rank's share, and of what it sampled from.

        Not collective.
        """
        return {**super().rank_details(), **self._source.details()}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the graph, and how it was sampled.

        Not collective.
        """
        names = [name for name in self._source.details() if name != "reshuffle_rows"]
        told = {**self._told, **{name: max(rank[name] for rank in ranks) for name in names}}
        return {**super().summary(ranks), "sampling": told}

    def _losses(
        self, sampling: Sampling, seed: int, epoch: int
    ) -> Iterator[Callable[[DropoutKey, NodeModel], Tensor]]:
        device = self.graph.device
        if isinstance(sampling.input, SubgraphInput):
            prepare = partial(self._of_subgraphs, sampling)
            for ready in ready_ahead(device, sampling.input.steps(seed, epoch), prepare):
                yield partial(self._subgraph_loss, ready)
        else:
            batches = sampling.input.steps(seed, epoch)
            for made in ready_ahead(device, batches, partial(self._of_layers, sampling)):
                yield partial(self._batch_loss, made)

    def _of_subgraphs(self, sampling: Sampling, subgraphs: list[Subgraph]) -> _Step:
        graph, put = sampling.graph, self.graph.device.put
        view = sampling.views.of_subgraphs(subgraphs)
        nodes_N = _rows(view.nodes)
        trained_N = torch.from_numpy(graph.trained)[nodes_N]
        labels, weights_T = graph.labels[nodes_N[trained_N]], None
        if view.weights is not None:
            weights_T = put(torch.from_numpy(view.weights).to(graph.features.dtype)[trained_N])
        features = graph.features[nodes_N].to(self.graph.device.place)
        return _Step(view.graph, features, put(labels), 0, put(trained_N), weights_T)

    def _of_layers(self, sampling: Sampling, drawn: tuple[LayeredSample, int]) -> _Step:
        graph, put, (sample, size) = sampling.graph, self.graph.device.put, drawn
        view, inputs = sampling.views.of_layers(sample)
        labels = graph.labels[_rows(sample.layers[-1].outputs)]
        features = graph.features[_rows(inputs)].to(self.graph.device.place)
        return _Step(view, features, put(labels), size)

    def _subgraph_loss(
        self, ready: Callable[[], _Step], key: DropoutKey, model: NodeModel
    ) -> Tensor:
        with self._trace.span("plan.view"):
            step = ready()
        logits_NC: Tensor = model(step.view, step.features, key)
        count = self._count(step.labels, step.weights)
        return self._loss(logits_NC[step.trained], step.labels, count, step.weights)

    def _count(self, labels: Tensor, weights_T: Tensor | None) -> float:
        """Return what the sum of a step's losses is divided by, the same on all ranks."""
        options, layer = self._config.sampling, self.grid.layer
        if weights_T is None:
            return max(int(layer.allreduce(len(labels))), 1)
        if options.estimator == "ratio":
            return max(float(layer.allreduce(float(weights_T.double().sum()))), 1.0)
        # Each subgraph's weighted sum estimates the sum over all training nodes.
        return self.num_train * options.subgraphs

    def _batch_loss(self, ready: Callable[[], _Step], key: DropoutKey, model: NodeModel) -> Tensor:
        with self._trace.span("plan.view"):
            step = ready()
        logits_NC: Tensor = model(step.view, step.features, key)
        return self._loss(logits_NC, step.labels, step.size, None)

    def _loss(
        self, logits_NC: Tensor, labels: Tensor, count: float, weights_N: Tensor | None
    ) -> Tensor:
        loss = multi_label_loss if self.graph.facts.multi_label else single_label_loss
        return loss(logits_NC, labels, count, self._smoothing, weights_N)


def _rows(nodes: LocalIndices) -> Tensor:
    return torch.from_numpy(nodes).long()


def _describe(sampling: Sampling) -> dict[str, Any]:
    """Return how the steps of an epoch are sampled."""
    steps: dict[str, Any] = {"steps_per_epoch": sampling.input.num_steps}
    if isinstance(sampling.input, SubgraphInput):
        steps["mean_nodes"] = sampling.input.mean_nodes
        steps["counted_subgraphs"] = sampling.input.num_counted
    return steps


def _check_options(config: Config) -> None:
    if Aggregations.MEAN_BY_RELATION in MODELS[config.model.name].aggregations:
        raise InputError(
            f"model.name = {config.model.name!r} tells relations apart, which subgraphs do not: "
            "choose another model or train.task=full"
        )
    if config.train.label_augmentation > 0:
        raise InputError("train.label_augmentation needs train.task=full")
    if config.model.embeddings:
        raise InputError("model.embeddings=true needs train.task=full")
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
