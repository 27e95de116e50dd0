"""What objectives move beside the products: those of links and of whole graphs, others nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.label_inputs import training_mask
from hpcgnn.graph.labelled import Labelled
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.stored import StoredRows
from hpcgnn.plan.graph_pieces import WholeGraphs
from hpcgnn.plan.link_pairs import WholePairs
from hpcgnn.plan.moves import Log
from hpcgnn.plan.share import Predicted, Predictions
from hpcgnn.plan.traffic import PatternKey, Traffic
from hpcgnn.storage import NodeBlock
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.objectives.nodes import GraphsObjective
from hpcgnn.train.objectives.objective import GraphObjective, Objective
from hpcgnn.typing import Offsets


@dataclass(frozen=True)
class OwnNodes(Predicted):
    """The nodes of a rank, whose labels its share has; `kind` is the objective."""

    kind: Any

    @override
    def objective(self, graph: LocalGraph, config: Config, log: Log) -> GraphObjective:
        objective: GraphObjective = self.kind(graph, config)
        return objective


class WholeNodes(Predictions):
    """All nodes: what an objective predicts of them, ranks have without asking others."""

    hidden = None
    cuts_rows = True

    def __init__(
        self, kind: type[Objective], stored: StoredRows, nodes: NodeBlock, labelled: Labelled
    ) -> None:
        assert labelled.labels is not None
        assert labelled.split is not None
        self._kind, self.trains = kind, training_mask(labelled.labels, labelled.split)

    @override
    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        return facts

    @override
    def traffic(self, starts: Offsets) -> dict[PatternKey, Traffic]:
        return {}

    @override
    def share(self, starts: Offsets, block: int) -> OwnNodes:
        return OwnNodes(self._kind)


PREDICTIONS: Mapping[type[Objective], Any] = MappingProxyType(
    {LinkObjective: WholePairs, GraphsObjective: WholeGraphs}
)
"""Objectives that move more than products, and what counts it."""


def find_predictions(objective: type[Objective]) -> Any:
    """Return the `Predictions` of an objective, or of the one that it is derived from."""
    kinds = (PREDICTIONS[base] for base in objective.__mro__ if base in PREDICTIONS)
    return next(kinds, WholeNodes)
