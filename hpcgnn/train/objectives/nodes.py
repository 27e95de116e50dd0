"""What is predicted of nodes, or of whole graphs: a class, several labels, or numbers."""

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.graph.labelled import Reading, label_graphs, label_nodes
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph, LocalRows
from hpcgnn.nn import MeanLoss, NodeModel
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.evaluation import evaluate_single_label
from hpcgnn.train.full.predictions import save_predictions
from hpcgnn.train.kept_products import KeptProducts, WholeView
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.multi_label import evaluate_multi_label
from hpcgnn.train.objectives.labelled import LabelledRows
from hpcgnn.train.objectives.objective import GraphObjective, StoreKind
from hpcgnn.train.objectives.report import GraphReport, scale_tensors
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.sources.examples import StepData
from hpcgnn.train.targets import constant_targets, target_metrics

_NODES: Reasons = MappingProxyType(
    {
        Trait.PAIRS: "it predicts no links",
        Trait.PROGRAMS: "it reads one graph, or many as one",
    }
)


class NodeObjective(GraphObjective):
    """Labels or numbers of nodes, or of graphs, that the store or a file has.

    Parameters
    ----------
    graph
        The share of this rank, with labels and split.

    Raises
    ------
    CollectiveInputError
        As `LabelledRows`.
    """

    needs: ClassVar[frozenset[Trait]] = frozenset()
    lacks: ClassVar[Reasons] = _NODES
    store: ClassVar[StoreKind] = GraphStore
    reads: ClassVar[Reading] = Reading(("features", "labels", "split"), label_nodes)
    examples: LabelledRows

    @collective
    def __init__(self, graph: LocalGraph, config: Config) -> None:
        self.graph, self.grid, self._config = graph, graph.grid, config
        self.examples = LabelledRows(graph, config)
        self.whole = WholeView(graph, KeptProducts(config, graph.model_shape(config)))
        self.about = GraphReport(graph, config, self.whole.kept)

    @classmethod
    @collective
    @override
    def load(
        cls, context: Context, *, with_rows: bool = False
    ) -> tuple["NodeObjective", LocalRows | None]:
        graph = load_graph(context, cls.reads, with_rows=with_rows)
        return cls(replace(graph, rows=None), context.config), graph.rows

    @override
    def make_model(self, seed: int) -> NodeModel:
        return self.graph.make_model(self._config, seed)

    @collective
    @override
    def loss(self, model: Callable[..., Tensor], step: StepData, key: DropoutKey) -> Tensor:
        logits_TC = step.counted(model(step.view, step.features, key))
        assert step.size is not None
        return self.loss_of(logits_TC, step.targets, step.size, step.weights)

    def loss_of(
        self, logits_TC: Tensor, labels: Tensor, size: float, weights_T: Tensor | None = None
    ) -> Tensor:
        """Return this rank's share of the loss of some rows; see `MeanLoss`."""
        loss = MeanLoss(size, self._config.train.label_smoothing, weights_T)
        if self.facts.targets:
            return loss.squared(logits_TC, labels)
        return (loss.multi_label if self.facts.multi_label else loss.single_label)(
            logits_TC, labels
        )

    @collective
    @override
    def evaluate(self, model: Callable[..., Tensor]) -> Evaluation:
        return self._score(self.whole.outputs(model))

    @collective
    def evaluate_kept(self, model: Callable[..., Tensor]) -> dict[str, Any]:
        """Return the metrics of the corrected and smoothed predictions, where that is on."""
        smoother = self.graph.smoother
        if smoother is None:
            return {}
        smoothed = self._score(smoother(self.whole.outputs(model)))
        return {"smoothed": {split: smoothed.chosen(split) for split in ("valid", "test")}}

    @collective
    def _score(self, logits_NC: Tensor) -> Evaluation:
        facts, rows = self.facts, self.examples
        arguments = (self.grid, logits_NC, rows.labels, rows.split)
        if facts.targets:
            values: dict[str, float] = {}
            by_part = target_metrics(*arguments, facts.targets, facts.target_scales)
            for part, metrics_of_part in by_part.items():
                values |= {f"{part}_{key}": value for key, value in metrics_of_part.items()}
            alike = "; ".join(
                f"all {count} that are tested are given {number:.4g} for {name}"
                for name, count, number in constant_targets(*arguments, facts)
            )
            return Evaluation(values, "r2", alike)
        if facts.multi_label:
            return evaluate_multi_label(*arguments, tuned=self._config.train.threshold)
        return evaluate_single_label(*arguments, facts.class_names)

    @override
    def tensors(self) -> dict[str, Tensor]:
        return scale_tensors(self.graph)

    @collective
    @override
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        save_predictions(self.graph, directory, seed)


class GraphsObjective(NodeObjective):
    """Classes, labels or numbers of whole graphs, of a store of many."""

    reads: ClassVar[Reading] = Reading(("features", "labels", "split"), label_graphs)
    needs: ClassVar[frozenset[Trait]] = frozenset({Trait.TRAINED_STATISTICS})
    lacks: ClassVar[Reasons] = MappingProxyType(
        {
            **_NODES,
            Trait.EQUAL_BITS: "its read-outs round in the order of the ranks",
            Trait.SOME_EDGES: "its splits are of whole graphs",
            Trait.ONE_GRAPH: "what is of the nodes of one graph tells nothing of another",
            Trait.LABELLED_NODES: "its labels are of whole graphs",
            Trait.EXPORTED: "read-outs of whole graphs have no counterpart elsewhere; use hpcgnn "
            "predict",
            Trait.PLANNED_FROM_DEGREES: "its read-outs are counted in the graph only",
        }
    )
