"""Sampled subgraphs, or batches of nodes with sampled neighbours; models are judged on the whole.

Ranks sample one topology, which a host holds once, or each its part of the graph. On a shared
topology a step has the same subgraphs on any number of ranks. Ranks set theirs side by side,
so that normalisation over nodes sees one batch, and their shares of the loss add up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from typing_extensions import override

from hpcgnn.autograd import DropoutKey, arithmetic
from hpcgnn.comm import agree
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.label_inputs import LabelInputs
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.objectives.objective import GraphObjective, SingleObjective
from hpcgnn.train.sampled.graph import HomeRows, SampledGraph, between, home_rows, share_whole
from hpcgnn.train.sampled.input import BatchInput, StepInput, SubgraphInput
from hpcgnn.train.sampled.part import choose_part, fetch_part
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.train.sources.source import Examples, Ready, Source, StepData, numbered

SUBGRAPHS: Reasons = {
    Trait.PLANNED_FROM_DEGREES: "its subgraphs are drawn of the graph itself",
}
"""What steps lack that are of subgraphs or of batches of graphs."""


class Sampled(Protocol):
    """Gives what an epoch samples from: a function of seed and epoch."""

    def at(self, seed: int, epoch: int) -> StepInput:
        """Return it; collective."""

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary; not collective."""


@dataclass(frozen=True, eq=False)
class Population:
    """What graphs to sample are made of, and what is trained on."""

    context: Context
    home: HomeRows
    aggregations: tuple[Aggregation, ...]
    examples: Examples

    @collective
    def input(self, graph: SampledGraph, *, parts: bool) -> StepInput:
        """Return the steps on a graph that all ranks know, or on this rank's part."""
        views = SampledViews(self.context, graph, self.aggregations)
        with self.context.trace.span("plan.sampling"):
            if self.context.config.sampling.sampler == "neighbour":
                return BatchInput(views, self.examples.in_batches(graph), parts=parts)
            make = SubgraphInput.of_part if parts else SubgraphInput.of_whole
            return make(views, self.examples.in_subgraphs(graph))

    @collective
    def shared(self) -> StepInput:
        """Return the steps on one graph for all ranks and epochs."""
        with self.context.trace.span("read.whole"):
            graph = share_whole(self.context.grid, self.home)
        return self.input(graph, parts=False)


class PartOfGraph:
    """A part of the graph and its halo for each rank, another one from time to time."""

    def __init__(self, population: Population) -> None:
        self._population, self._context = population, population.context
        self._input: StepInput | None = None
        self._period = (-1, -1)
        self._sizes = dict.fromkeys(("part_nodes", "halo_nodes", "part_bytes"), 0)
        self._moved = self._pool_bytes = 0

    @collective
    def at(self, seed: int, epoch: int) -> StepInput:
        """Return this rank's part in an epoch; fetch it when the epoch begins a period."""
        interval = self._context.config.sampling.reshuffle_epochs
        period = (seed, epoch // interval if interval > 0 else 0)
        if self._input is None or period != self._period:
            self._keep_peaks()
            # Two parts at a time would not fit where one does.
            self._input = None
            self._input, self._period = self._fetch(*period), period
        return self._input

    def details(self) -> dict[str, Any]:
        """Return what waited in the pools, and the largest part with its halo."""
        self._keep_peaks()
        moved = {"reshuffle_rows": self._moved}
        return {"pool_bytes_max": self._pool_bytes, **self._sizes, **moved}

    def _keep_peaks(self) -> None:
        if self._input is not None:
            self._pool_bytes = max(self._pool_bytes, self._input.pool_bytes)

    def _fetch(self, seed: int, period: int) -> StepInput:
        grid, home = self._context.grid, self._population.home
        options = self._context.config.sampling
        with self._context.trace.span("plan.reshuffle"):
            share = options.reshuffle_share
            part = choose_part(grid, home.row_map, share, seed, period)
            graph, moved = fetch_part(grid, home, part, options.halo)
        sizes = {
            "part_nodes": len(part),
            "halo_nodes": graph.edges.num_nodes - len(part),
            "part_bytes": graph.nbytes,
        }
        self._sizes = {key: max(size, self._sizes[key]) for key, size in sizes.items()}
        self._moved += moved
        return self._population.input(graph, parts=True)


class DrawnSource(Source):
    """Steps that threads draw ahead of their use.

    `described` is what the summary says of an epoch before there was one.
    """

    needs_rows: ClassVar[bool] = True

    def __init__(self, context: Context, sampled: Sampled, described: dict[str, Any]) -> None:
        self._context, self._sampled, self._described = context, sampled, described

    @collective
    @override
    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        drawn, trace = self._sampled.at(seed, epoch), self._context.trace
        self._described = drawn.describe()
        for ready, key in numbered(trace, drawn.steps(seed, epoch), seed, epoch):
            yield partial(self._step, ready), key

    @collective
    def num_steps(self, seed: int, epoch: int) -> int:
        """Return the steps of an epoch."""
        return self._sampled.at(seed, epoch).num_steps

    @collective
    def _step(self, ready: Callable[[], StepData]) -> StepData:
        with self._context.trace.span("plan.view"):
            return ready()

    @override
    def details(self) -> dict[str, Any]:
        return self._sampled.details()

    @override
    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        # How the graph was sampled, with the largest of each size of all ranks.
        names = [name for name in self.details() if name != "reshuffle_rows"]
        sizes = {name: max(rank[name] for rank in ranks) for name in names}
        return {"sampling": {**self._described, **sizes}}


class SampledSource(DrawnSource):
    """Subgraphs, or batches with sampled neighbours, of the rows of a graph.

    Raises `CollectiveInputError` when fan-outs do not fit the model, or the graph has too many
    nodes to sample.
    """

    needs: ClassVar[frozenset[Trait]] = frozenset({Trait.LAYER_VIEWS})
    lacks: ClassVar[Reasons] = SUBGRAPHS

    @collective
    def __init__(
        self, context: Context, objective: SingleObjective, rows: LocalRows | None
    ) -> None:
        assert rows is not None
        graph, examples = objective.graph, objective.examples
        self._num_train = examples.num_train
        prepare_products(context, objective)
        grid, config = context.grid, context.config
        aggregations = on_graph(context.wanted, directed=graph.facts.directed)
        with agree(grid.world):
            if config.sampling.sampler == "neighbour":
                check_fan_outs(config, graph.num_aggregations(config))
        trains = examples.trains
        if trains is None:
            trains = np.zeros(graph.row_map.num_local, np.bool_)
        home = home_rows(graph, rows, examples.labels_of_nodes, trains)
        home = replace(home, label_inputs=LabelInputs.of(config, graph.facts))
        if config.train.inductive:
            assert graph.split is not None
            home = between(grid, home, graph.split == Split.TRAIN)
        population = Population(context, home, aggregations, examples)
        in_parts = config.sampling.topology == "partitioned"
        sampled: Sampled = PartOfGraph(population) if in_parts else population.shared()
        super().__init__(context, sampled, {})

    @collective
    @override
    def _step(self, ready: Callable[[], StepData]) -> StepData:
        step = super()._step(ready)
        return step if step.size is not None else replace(step, size=self._size(step))

    @collective
    def _size(self, step: StepData) -> float:
        """Return what the sum of the losses of subgraphs is divided by, the same on all ranks."""
        options, layer = self._context.config.sampling, self._context.grid.layer
        if step.weights is None:
            return max(int(layer.allreduce(len(step.targets))), 1)
        # Weights are 1 / the chance of a node to be in a subgraph. Their own sum in place of the
        # number of nodes that it estimates gives the ratio estimator: biased, with less noise.
        if options.estimator == "ratio":
            sums = self._context.grid.sum_over_blocks
            return max(float(arithmetic().sums_and_count(step.weights[:, None], sums)[0]), 1.0)
        # Each subgraph's weighted sum estimates the sum over all training nodes.
        shown = self._context.config.train.label_augmentation
        return self._num_train * options.subgraphs * (1 - shown)


@collective
def prepare_products(context: Context, objective: GraphObjective) -> None:
    """Compute the products that evaluations keep, where that is to be done before training."""
    if context.config.exchange.prepare == "before":
        objective.whole.prepare()


def check_fan_outs(config: Config, depth: int) -> None:
    """Raise `InputError` where fan-outs do not fit a model that aggregates `depth` times."""
    num_fan_outs = len(config.sampling.fan_outs)
    if num_fan_outs != depth:
        raise InputError(
            f"sampling.fan_outs has {num_fan_outs} numbers: the model aggregates {depth} times"
        )
