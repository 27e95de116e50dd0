"""A user's objective: the degree of a node as a number, with the absolute error as loss."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
from torch import Tensor, no_grad

from hpcgnn.graph.labels import Labelled, Reading, TargetScale
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.read_edges import read_union
from hpcgnn.storage import GraphStore
from hpcgnn.support import Trait
from hpcgnn.train.cached_products import WholeView
from hpcgnn.train.evaluation import Evaluation, target_metrics
from hpcgnn.train.objectives.nodes import LabelledRows
from hpcgnn.train.objectives.objective import GraphObjective
from hpcgnn.train.objectives.report import GraphReport
from hpcgnn.train.sampled.source import SampledSource
from hpcgnn.train.sources.whole import WholeSource
from hpcgnn.train.tasks import Pair


def in_degrees(stored, nodes):
    rows = read_union(stored, (), undirected=False)
    degrees, scale = np.diff(rows.indptr)[:, None], TargetScale(("degree",), (0.0,), (1.0,))
    return Labelled(nodes.original_id, degrees.astype(np.float64), nodes.split, targets=scale)


class Degree(GraphObjective):
    needs, store, reads = frozenset(), GraphStore, Reading(("features", "split"), in_degrees)
    lacks = MappingProxyType(
        {
            Trait.CLASSES: "it predicts a number",
            Trait.PLANNED_FROM_DEGREES: "its graph is read",
            Trait.EQUAL_BITS: "sums of its loss round in the order of the ranks",
            Trait.SOME_EDGES: "its degrees are of all edges",
        }
    )

    def __init__(self, graph, config):
        self.graph, self.grid, self.config = graph, graph.grid, config
        self.examples, self.whole = LabelledRows(graph, config), WholeView(graph)
        self.about = GraphReport(graph, config)

    @classmethod
    def load(cls, context, *, with_rows=False):
        graph = load_graph(context, cls.reads, with_rows=with_rows)
        return cls(replace(graph, rows=None), context.config), graph.rows

    def loss(self, model, step, key) -> Tensor:
        errors = step.counted(model(step.view, step.features, key)) - step.targets
        return errors.abs().sum() / step.size

    @no_grad()
    def evaluate(self, model):
        rows, facts = self.examples, self.facts
        given = self.grid, self.whole.outputs(model), rows.labels, rows.split
        parts = target_metrics(*given, facts)
        values = {f"{part}_{key}": v for part, each in parts.items() for key, v in each.items()}
        return Evaluation(values, "r2")


ON_WHOLE, ON_SAMPLES = Pair(Degree, WholeSource), Pair(Degree, SampledSource)
