"""Batches of whole graphs, of a store of many.

The loss of a step is the mean over its graphs. Models are judged over the whole store, whose graphs
may lie on several ranks each.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.operator import on_graph
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons
from hpcgnn.train.graphs.batches import GraphBatches, TrainGraphs
from hpcgnn.train.objectives.nodes import NodeObjective
from hpcgnn.train.sampled.graph import home_rows
from hpcgnn.train.sampled.source import (
    SUBGRAPHS,
    prepare_products,
    summary_of_sampling,
)
from hpcgnn.train.sources.examples import StepData
from hpcgnn.train.sources.source import Ready, Source, numbered


class BatchSource(Source):
    """The same batches of each epoch of a seed, whatever came before."""

    lacks: ClassVar[Reasons] = SUBGRAPHS
    needs_rows: ClassVar[bool] = True

    @collective
    def __init__(self, context: Context, objective: NodeObjective, rows: LocalRows | None) -> None:
        self._context, graph, labelled = context, objective.graph, objective.examples
        assert rows is not None
        assert graph.node_graph is not None
        prepare_products(context, objective)
        # Nodes are distinguished by their graphs; there are no random walks.
        home = home_rows(graph, rows, graph.node_graph, graph.nodes_of(labelled.trains))
        home = replace(home, walked=home.edges)
        with context.trace.span("read.whole"):
            of_graphs = labelled.train_rows.cpu().numpy()
            trained = TrainGraphs.share(graph, labelled.labels.cpu(), of_graphs)
            wanted = on_graph(context.wanted, directed=graph.facts.directed)
            edges = graph.view.edges
            self._batches = GraphBatches(context, home, trained, wanted, edges)

    @collective
    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        """Yield the steps of an epoch; threads make batches ahead."""
        drawn = self._batches.steps(seed, epoch)
        for ready, key in numbered(self._context.trace, drawn, seed, epoch):
            yield partial(self._step, ready), key

    @override
    def details(self) -> dict[str, Any]:
        return {"pool_bytes_max": self._batches.pool_bytes, **self._batches.details}

    @override
    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        return summary_of_sampling(self._batches.describe(), self.details(), ranks)

    @collective
    def _step(self, ready: Callable[[], StepData]) -> StepData:
        with self._context.trace.span("plan.view"):
            return ready()
