"""Train on sampled subgraphs, or batches with sampled neighbours; evaluate on the whole graph.

Ranks sample from one graph, held once per host, or each from its part. On a shared graph, a step
has the same subgraphs for any number of ranks. The ranks' subgraphs form one disjoint union, so
that normalisation over nodes sees one batch, and their shares of the loss add up.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from hpcgnn.autograd import DropoutKey, arithmetic
from hpcgnn.comm import agree
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
    Trait.PLANNED_FROM_DEGREES: "its subgraphs are drawn from the graph itself",
}
"""The traits that steps on subgraphs or on batches of graphs lack."""


@collective
def make_input(
    context: Context, aggregations: tuple[Aggregation, ...], examples: Examples, graph: SampledGraph
) -> StepInput:
    """Return the step input for a graph that all ranks know, or for this rank's part."""
    views, options = SampledViews(context, graph, aggregations), context.config.sampling
    parts = options.topology == "partitioned"
    with context.trace.span("plan.sampling"):
        views.know_degrees()
        if options.sampler == "neighbour":
            return BatchInput(views, examples.in_batches(graph), parts=parts)
        make = SubgraphInput.of_part if parts else SubgraphInput.of_whole
        return make(views, examples.in_subgraphs(graph))


class PartOfGraph:
    """A part of the graph and its halo for each rank, reshuffled from time to time.

    Parts are taken from the `home` rows of all ranks; `make` returns the input for one.
    """

    def __init__(
        self, context: Context, home: HomeRows, make: Callable[[SampledGraph], StepInput]
    ) -> None:
        self._context, self._home, self._make = context, home, make
        self._input: StepInput | None = None
        self._period = (-1, -1)
        self._sizes = dict.fromkeys(("part_nodes", "halo_nodes", "part_bytes"), 0)
        self._moved = self._pool_bytes = 0

    @collective
    def at(self, seed: int, epoch: int) -> StepInput:
        """Return the input of this rank's part in an epoch; fetch it if a new period begins."""
        interval = self._context.config.sampling.reshuffle_epochs
        period = (seed, epoch // interval if interval > 0 else 0)
        if self._input is None or period != self._period:
            self._keep_peaks()
            # Free the old part first: memory may hold only one.
            self._input = None
            self._input, self._period = self._fetch(*period), period
        return self._input

    def details(self) -> dict[str, Any]:
        """Return the peak bytes in prefetch pools, and the largest part with its halo."""
        self._keep_peaks()
        moved = {"reshuffle_rows": self._moved}
        return {"pool_bytes_max": self._pool_bytes, **self._sizes, **moved}

    def _keep_peaks(self) -> None:
        if self._input is not None:
            self._pool_bytes = max(self._pool_bytes, self._input.pool_bytes)

    def _fetch(self, seed: int, period: int) -> StepInput:
        grid, home = self._context.grid, self._home
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
        return self._make(graph)


class DrawnSource(Source):
    """A source of steps that threads draw ahead of their use.

    `described` has the summary's facts about an epoch until the first one has begun.
    """

    needs_rows: ClassVar[bool] = True

    def __init__(
        self, context: Context, sampled: StepInput | PartOfGraph, described: dict[str, Any]
    ) -> None:
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
        """Return the number of steps of an epoch."""
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
        # Facts about the sampling, and the maximum of each size over all ranks.
        names = [name for name in self.details() if name != "reshuffle_rows"]
        sizes = {name: max(rank[name] for rank in ranks) for name in names}
        return {"sampling": {**self._described, **sizes}}


class SampledSource(DrawnSource):
    """A source of subgraphs, or of batches with sampled neighbours, of one graph.

    Raises `CollectiveInputError` if fan-outs do not fit the model, or the graph has too many nodes
    to sample.
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
        aggregations = on_graph(context.required_aggregations, directed=graph.facts.directed)
        with agree(grid.world):
            if config.sampling.sampler == "neighbour":
                depth, num_fan_outs = graph.num_aggregations(config), len(config.sampling.fan_outs)
                if num_fan_outs != depth:
                    raise InputError(
                        f"sampling.fan_outs has {num_fan_outs} numbers: the model aggregates "
                        f"{depth} times"
                    )
        trains = examples.trains
        if trains is None:
            trains = np.zeros(graph.row_map.num_local, np.bool_)
        home = home_rows(graph, rows, examples.labels_of_nodes, trains)
        home = replace(home, label_inputs=LabelInputs.of(config, graph.facts))
        if config.train.inductive:
            assert graph.split is not None
            home = between(grid, home, graph.split == Split.TRAIN)
        make = partial(make_input, context, aggregations, examples)
        if config.sampling.topology == "partitioned":
            sampled: StepInput | PartOfGraph = PartOfGraph(context, home, make)
        else:
            with context.trace.span("read.whole"):
                whole = share_whole(grid, home)
            sampled = make(whole)
        super().__init__(context, sampled, {})

    @collective
    @override
    def _step(self, ready: Callable[[], StepData]) -> StepData:
        step = super()._step(ready)
        return step if step.size is not None else replace(step, size=self._size(step))

    @collective
    def _size(self, step: StepData) -> float:
        """Return the divisor of the summed losses of subgraphs, the same on all ranks."""
        options, layer = self._context.config.sampling, self._context.grid.layer
        if step.weights is None:
            return max(int(layer.allreduce(len(step.targets))), 1)
        # Weights are inverse probabilities of a node to be sampled. Dividing by their sum, not by
        # the number of nodes it estimates, is the ratio estimator: biased, with less variance.
        if options.estimator == "ratio":
            sums = self._context.grid.sum_over_blocks
            return max(float(arithmetic().sums_and_count(step.weights[:, None], sums)[0]), 1.0)
        # Each subgraph's weighted sum estimates the sum over all training nodes.
        shown = self._context.config.train.label_augmentation
        return self._num_train * options.subgraphs * (1 - shown)


@collective
def prepare_products(context: Context, objective: GraphObjective) -> None:
    """Compute the products that evaluations reuse, if ``exchange.prepare`` is "before"."""
    if context.config.exchange.prepare == "before":
        objective.whole.prepare()
