"""Prediction for whole graphs, of a store of many: a step is a batch of them, or all at once.

The loss of a step is the mean over its graphs. Models are judged over the whole store, whose graphs
may lie on several ranks each; trained on all graphs at once they run there as well.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.operator import on_graph
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.evaluation import Evaluator
from hpcgnn.train.full.task import NodeTask
from hpcgnn.train.graph_task import NODES, ClassTask
from hpcgnn.train.graphs.batches import GraphBatches, TrainGraphs
from hpcgnn.train.sampled.graph import home_rows
from hpcgnn.train.sampled.task import SampledTask


class GraphsTask(SampledTask):
    """Batches of whole graphs in place of subgraphs; see `ClassTask`."""

    needs: ClassVar[frozenset[Trait]] = frozenset({Trait.TRAINED_STATISTICS})
    lacks: ClassVar[Reasons] = MappingProxyType(
        {
            **NODES,
            Trait.EQUAL_BITS: "its read-outs round in the order of the ranks",
            Trait.SOME_EDGES: "its splits are of whole graphs",
            Trait.ONE_GRAPH: "what is of the nodes of one graph tells nothing of another",
            Trait.LABELLED_NODES: "its labels are of whole graphs",
            Trait.EXPORTED: "read-outs of whole graphs have no counterpart elsewhere; use hpcgnn "
            "predict",
            Trait.PLANNED_FROM_DEGREES: "its read-outs are counted in the graph only",
        }
    )

    @classmethod
    @collective
    def load(cls, context: Context) -> ClassTask:
        """Read this rank's share and prepare to train on it."""
        config = context.config
        needs = ("features", "labels", "split")
        if config.graphs.batch == 0:
            return NodeTask(load_graph(context, needs=needs), config)
        return cls(context, load_graph(context, needs=needs, with_rows=True), BatchSource)


class BatchSource:
    """The same batches of each epoch of a seed, whatever came before; a `SamplingSource`.

    Parameters
    ----------
    context, graph, evaluator
        Of the run; the graph was read with its rows.
    """

    @collective
    def __init__(self, context: Context, graph: LocalGraph, evaluator: Evaluator) -> None:
        assert graph.node_graph is not None
        rows = evaluator.train_rows.cpu().numpy()
        # What nodes are told apart by are their graphs; nothing walks.
        home = home_rows(graph, graph.node_graph, graph.nodes_of(evaluator.trains))
        home = replace(home, walked=home.edges)
        with context.trace.span("read.whole"):
            trained = TrainGraphs.share(graph, evaluator.labels.cpu(), rows)
            wanted = on_graph(context.wanted, directed=graph.facts.directed)
            edges = graph.view.edges
            self._batches = GraphBatches(context, home, trained, wanted, edges)

    def at(self, seed: int, epoch: int) -> GraphBatches:
        """Return the same for all."""
        return self._batches

    def details(self) -> dict[str, Any]:
        """Return what waited in the pool, and the size of what is held."""
        return {"pool_bytes_max": self._batches.pool_bytes, **self._batches.details}
