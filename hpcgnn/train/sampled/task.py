"""Training on sampled subgraphs, judged on the full graph.

Ranks sample one topology, which a host holds once, or each its part of the graph. On a shared
topology a step has the same subgraphs whatever the number of ranks. Ranks set theirs side by side,
so that normalisation over nodes sees one batch, and their shares of the loss add up.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias

from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import agree
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import NodeModel
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.evaluation import Evaluator
from hpcgnn.train.graph_task import NODES, ClassTask
from hpcgnn.train.sampled.graph import HomeRows, between, home_rows, share_whole
from hpcgnn.train.sampled.input import BatchInput, StepData, StepInput, SubgraphInput
from hpcgnn.train.sampled.part import choose_part, fetch_part
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.train.task import Step, steps_of

SUBGRAPHS: Reasons = {
    Trait.EQUAL_BITS: "sums over its steps round in the order of the ranks",
    Trait.RELATIONS: "its subgraphs unite relations",
    Trait.EDGE_FEATURES: "its subgraphs do not hold them",
    Trait.NODE_VECTORS: "its subgraphs do not hold vectors of nodes",
    Trait.LABEL_INPUTS: "its subgraphs do not hold labels as inputs",
    Trait.PLANNED: "its steps are not counted",
}
"""What steps lack that are of subgraphs or of batches of graphs."""

NO_MESSAGES: Reasons = {Trait.EDGE_MESSAGES: "its subgraphs do not hold features of edges"}
"""What steps of subgraphs lack beside it; batches of graphs hold features of edges."""


class SamplingSource(Protocol):
    """Gives what an epoch samples from: a function of seed and epoch."""

    def at(self, seed: int, epoch: int) -> StepInput[StepData]:
        """Return it; collective."""
        ...

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary; not collective."""
        ...


class SharedSource:
    """One graph for all ranks and epochs."""

    @collective
    def __init__(self, context: Context, home: HomeRows, wanted: tuple[Aggregation, ...]) -> None:
        grid, config, trace = context.grid, context.config, context.trace
        with trace.span("read.whole"):
            graph = share_whole(grid, home)
        views = SampledViews(context, graph, wanted)
        with trace.span("plan.sampling"):
            self._input: StepInput[StepData]
            if config.sampling.sampler == "neighbour":
                self._input = BatchInput(views, parts=False)
            else:
                self._input = SubgraphInput.of_whole(views)

    def at(self, seed: int, epoch: int) -> StepInput[StepData]:
        """Return the same for all."""
        return self._input

    def details(self) -> dict[str, Any]:
        """Return what waited in the pool."""
        return {"pool_bytes_max": self._input.pool_bytes}


class PartSource:
    """A part of the graph and its halo for each rank, another one from time to time.

    Parameters
    ----------
    context, home, wanted
        As for `SharedSource`.
    """

    def __init__(self, context: Context, home: HomeRows, wanted: tuple[Aggregation, ...]) -> None:
        self._context, self._home, self._wanted = context, home, wanted
        self._input: StepInput[StepData] | None = None
        self._period = (-1, -1)
        self._sizes = dict.fromkeys(("part_nodes", "halo_nodes", "part_bytes"), 0)
        self._moved = self._pool_bytes = 0

    @collective
    def at(self, seed: int, epoch: int) -> StepInput[StepData]:
        """Return this rank's part in an epoch; fetch it when the epoch begins a period."""
        every = self._context.config.sampling.reshuffle_epochs
        period = (seed, epoch // every if every > 0 else 0)
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

    def _fetch(self, seed: int, period: int) -> StepInput[StepData]:
        grid, trace = self._context.grid, self._context.trace
        options = self._context.config.sampling
        with trace.span("plan.reshuffle"):
            share = options.reshuffle_share
            part = choose_part(grid, self._home.row_map, share, seed, period)
            graph, moved = fetch_part(grid, self._home, part, options.halo)
        sizes = {
            "part_nodes": len(part),
            "halo_nodes": graph.edges.num_nodes - len(part),
            "part_bytes": graph.nbytes,
        }
        self._sizes = {key: max(size, self._sizes[key]) for key, size in sizes.items()}
        self._moved += moved
        views = SampledViews(self._context, graph, self._wanted)
        with trace.span("plan.sampling"):
            if options.sampler == "neighbour":
                return BatchInput(views, parts=True)
            return SubgraphInput.of_part(views)


MakeSource: TypeAlias = Callable[[Context, LocalGraph, Evaluator], SamplingSource]
"""Makes what an epoch samples from; collective."""


@collective
def sample_nodes(context: Context, graph: LocalGraph, evaluator: Evaluator) -> SamplingSource:
    """Return subgraphs, or batches of nodes, of the rows of a graph."""
    grid, config = context.grid, context.config
    wanted = on_graph(context.wanted, directed=graph.facts.directed)
    with agree(grid.world):
        if config.sampling.sampler == "neighbour":
            check_fan_outs(config, graph.num_aggregations(config))
    source = PartSource if config.sampling.topology == "partitioned" else SharedSource
    home = home_rows(graph, evaluator.labels.cpu().numpy(), evaluator.trains)
    if config.train.inductive:
        assert graph.split is not None
        home = between(grid, home, graph.split == Split.TRAIN)
    return source(context, home, wanted)


class SampledTask(ClassTask):
    """A graph to sample from, and the rows of this rank to evaluate models with.

    Parameters
    ----------
    graph
        The share of this rank, read with its rows.

    Raises
    ------
    CollectiveInputError
        As `ClassTask`.
    """

    lacks: ClassVar[Reasons] = MappingProxyType({**NODES, **SUBGRAPHS, **NO_MESSAGES})

    @collective
    def __init__(self, context: Context, graph: LocalGraph, make_source: "MakeSource") -> None:
        config, trace = context.config, context.trace
        # Sources keep the rows as long as they need them.
        super().__init__(replace(graph, rows=None), config)
        if config.exchange.prepare == "before":
            with trace.span("plan.kept_products"), self.grid.moment.before_epochs():
                self.evaluator.keep_products()
        self._trace = trace
        self._source = make_source(context, graph, self.evaluator)
        self._described: dict[str, Any] = {}

    @classmethod
    @collective
    def load(cls, context: Context) -> ClassTask:
        """Read this rank's share and prepare to train on it."""
        graph = load_graph(context, needs=("features", "labels", "split"), with_rows=True)
        return cls(context, graph, sample_nodes)

    @collective
    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the steps of an epoch; threads sample ahead."""
        drawn = self._source.at(seed, epoch)
        self._described = drawn.describe()
        steps = drawn.steps(seed, epoch)
        yield from steps_of(self._trace, steps, self._train_loss, seed, epoch)

    def rank_details(self) -> dict[str, Any]:
        """Return sizes of this rank's share, and of what it sampled from."""
        return {**super().rank_details(), **self._source.details()}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the graph, and how it was sampled."""
        names = [name for name in self._source.details() if name != "reshuffle_rows"]
        sizes = {name: max(rank[name] for rank in ranks) for name in names}
        return {**super().summary(ranks), "sampling": {**self._described, **sizes}}

    def _train_loss(
        self, ready: Callable[[], StepData], key: DropoutKey, model: NodeModel
    ) -> Tensor:
        with self._trace.span("plan.view"):
            step = ready()
        logits_TC: Tensor = model(step.view, step.features, key)
        if step.trained is not None:
            logits_TC = logits_TC[step.trained]
        return self.evaluator.loss(logits_TC, step.labels, self._count(step), step.weights)

    def _count(self, step: StepData) -> float:
        """Return what the sum of a step's losses is divided by, the same on all ranks."""
        options, layer = self._config.sampling, self.grid.layer
        if step.size is not None:
            return step.size
        if step.weights is None:
            return max(int(layer.allreduce(len(step.labels))), 1)
        # Weights are 1 / the chance of a node to be in a subgraph. Their own sum in place of the
        # number of nodes that it estimates gives the ratio estimator: biased, with less noise.
        if options.estimator == "ratio":
            return max(float(layer.allreduce(float(step.weights.double().sum()))), 1.0)
        # Each subgraph's weighted sum estimates the sum over all training nodes.
        return self.evaluator.num_train * options.subgraphs


def check_fan_outs(config: Config, depth: int) -> None:
    """Raise `InputError` where fan-outs do not fit a model that aggregates `depth` times."""
    given = len(config.sampling.fan_outs)
    if given != depth:
        raise InputError(
            f"sampling.fan_outs has {given} numbers: the model aggregates {depth} times"
        )
