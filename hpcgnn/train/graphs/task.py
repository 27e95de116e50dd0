"""Prediction for whole graphs, of a store of many: a step is a batch of them, or all at once.

The loss of a step is the mean over its graphs. Models are judged over the whole store, whose graphs
may lie on several ranks each; trained on all graphs at once they run there as well.
"""

from dataclasses import replace
from typing import Any

from hpcgnn.comm import agree
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import NORMS_OVER_NODES, find_model
from hpcgnn.operator import on_graph
from hpcgnn.spmd import collective
from hpcgnn.train.evaluation import Evaluator
from hpcgnn.train.full.task import NodeTask
from hpcgnn.train.graph_task import ClassTask
from hpcgnn.train.graphs.batches import GraphBatches, TrainGraphs
from hpcgnn.train.sampled.graph import home_rows
from hpcgnn.train.sampled.task import SampledTask, check_sampled_options


class GraphsTask(SampledTask):
    """Batches of whole graphs in place of subgraphs; see `ClassTask`."""

    @classmethod
    @collective
    def load(cls, context: Context) -> ClassTask:
        """Read this rank's share and prepare to train on it."""
        config = context.config
        with agree(context.grid.world):
            check_graph_options(config)
            if config.graphs.batch:
                check_sampled_options(config, context.wanted)
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


def check_graph_options(config: Config) -> None:
    """Raise `InputError` where options have no meaning for whole graphs."""
    model = config.model
    over_all = find_model(model.name).reads_edges and model.norm in NORMS_OVER_NODES
    for given, key, why in (
        (config.train.label_augmentation > 0, "train.label_augmentation", "leave it out"),
        (config.correct_and_smooth.enabled, "correct_and_smooth.enabled", "leave it out"),
        (model.embeddings, "model.embeddings", "vectors of nodes tell of no other graph"),
        (
            config.graph.structure not in ("none", "degree"),
            "graph.structure",
            "give none or degree: the others tell of the nodes of one graph",
        ),
        (
            over_all and config.graphs.batch == 0,
            f"model.norm = {model.norm!r}",
            "all at once, graphs that are not trained on would count in a model that reads "
            "features of edges; set graphs.batch=64, or model.norm=layer",
        ),
    ):
        if given:
            raise InputError(f"{key} does not apply to train.task = 'graphs': {why}")
