"""Train several objectives with weights on one encoder, such as node labels and links."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.comm import agree
from hpcgnn.config.config import Config
from hpcgnn.config.multi_task import width_of, with_one_width
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.labels import Reading
from hpcgnn.graph.load import FEATURES
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import MultiTaskModel
from hpcgnn.sparse import HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait, union
from hpcgnn.train.cached_products import WholeView
from hpcgnn.train.evaluation import SPLITS, Evaluation
from hpcgnn.train.objectives.objective import GraphObjective, SingleObjective
from hpcgnn.train.objectives.report import GraphReport
from hpcgnn.train.run.saved_model import SavedModel
from hpcgnn.train.sources.source import StepData, WholeExamples, WholeTargets

_LACKS: Reasons = {Trait.LABEL_INPUTS: "they would tell one objective what another one predicts"}
_OF_ONE = frozenset(
    {
        Trait.CLASSES,
        Trait.NUMBERS,
        Trait.SEVERAL_LABELS,
        Trait.LABELLED_NODES,
        Trait.NODE_SPLITS,
        Trait.PROBABILITIES,
        Trait.PAIRS,
    }
)
"""Traits that a joint objective has if any of its objectives has them."""


class MultiTaskExamples(WholeExamples):
    """The training examples of all objectives."""

    trains = None

    def __init__(self, parts: Iterable[SingleObjective]) -> None:
        self._parts = tuple(parts)
        self.num_train = sum(part.examples.num_train for part in self._parts)

    @collective
    @override
    def on_whole(self, seed: int, epoch: int) -> WholeTargets:
        values = tuple(part.examples.on_whole(seed, epoch) for part in self._parts)
        return WholeTargets(None, values, self.num_train)


class MultiTaskObjective(GraphObjective):
    """Minimises a weighted sum of losses, see ``train.task_weights`` and `train_together`.

    All read the outputs of one encoder as node embeddings. Their metrics are prefixed with their
    names in ``train.task``; models are chosen by the metric of the first, as in a run of it alone.
    `kinds` are the classes of the objectives by name, `parts` the objectives of this rank.
    """

    kinds: ClassVar[Mapping[str, type[SingleObjective]]]
    lacks: ClassVar[Reasons] = _LACKS
    reads: ClassVar[Reading] = FEATURES

    @collective
    def __init__(
        self, graph: LocalGraph, config: Config, parts: Mapping[str, SingleObjective]
    ) -> None:
        self._width = width_of(config)
        encoder = graph.facts.with_embeddings(self._width)
        self.graph, self.grid, self.config = replace(graph, facts=encoder), graph.grid, config
        self.parts, self._names = parts, tuple(parts)
        self._weights = config.train.task_weights or (1.0,) * len(parts)
        self.examples, self.whole = MultiTaskExamples(parts.values()), WholeView(self.graph)
        reports: list[Any] = [part.about for part in parts.values()]
        counted = dict(chain.from_iterable(report.counted.items() for report in reports))
        self.about = GraphReport(reports[0].graph, config, counted=counted)

    @classmethod
    @collective
    @override
    def draw(cls, context: Context) -> tuple[Any, HiddenEdges | None]:
        with agree(context.grid.world):
            config = with_one_width(context.config)
        drawn, hidden = {}, None
        for name, kind in cls.kinds.items():
            drawn[name], own_hidden = kind.draw(replace(context, config=config))
            hidden = own_hidden if hidden is None else hidden
        return drawn, hidden

    @classmethod
    @collective
    @override
    def on(cls, graph: LocalGraph, config: Config, drawn: Mapping[str, Any]) -> Self:
        config = with_one_width(config)
        on_graph = {name: kind.on(graph, config, drawn[name]) for name, kind in cls.kinds.items()}
        return cls(graph, config, on_graph)

    @property
    @override
    def facts(self) -> GraphFacts:
        return self.parts[self._names[0]].facts

    @property
    @override
    def metric(self) -> str:
        return f"{self._names[0]}_{self.facts.metric}"

    @override
    def state(self) -> Mapping[str, Any]:
        return {"parts": {name: asdict(part.facts) for name, part in self.parts.items()}}

    @override
    def make_model(self, seed: int) -> MultiTaskModel:
        encoder = self.graph.make_model(self.config, seed)
        heads = {name: part.make_part(encoder, self._width, seed) for name, part in self._items}
        return MultiTaskModel(encoder, heads)

    @collective
    @override
    def loss_of(self, model: MultiTaskModel, outputs: Tensor, step: StepData) -> Tensor:
        loss = outputs.new_zeros(())
        for (name, part), weight, own in zip(self._items, self._weights, step.targets, strict=True):
            head = model.parts[name]
            data = StepData(step.view, step.features, own.values, own.size, own.rows)
            loss = loss + weight * part.loss_of(head, head.outputs(outputs), data)
        return loss

    @collective
    @override
    def judge(self, model: MultiTaskModel, outputs: Tensor) -> Evaluation:
        values: dict[str, float] = {}
        sums, constant = dict.fromkeys(SPLITS, 0.0), []
        for (name, part), weight in zip(self._items, self._weights, strict=True):
            head = model.parts[name]
            evaluation = part.judge(head, head.outputs(outputs))
            constant += [evaluation.constant] if evaluation.constant else []
            for key, value in evaluation.values.items():
                split, _, metric = key.partition("_")
                values[f"{split}_{name}_{metric}"] = value
            for split in SPLITS:
                # If one objective has no loss on a split, its sum is NaN and left out.
                sums[split] += weight * evaluation.values.get(f"{split}_loss", np.nan)
        losses = {f"{split}_loss": loss for split, loss in sums.items() if np.isfinite(loss)}
        return Evaluation(values | losses, self.metric, "; ".join(constant))

    @collective
    @override
    def evaluate_kept(self, model: MultiTaskModel) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name, part in self._items:
            results |= part.evaluate_kept(model.parts[name])
        return results

    @torch.no_grad()
    @collective
    @override
    def write(self, path: Path, saved: SavedModel, model: MultiTaskModel) -> None:
        # The first objective's file has the name it would have in a run of it alone.
        for name, part in self._items:
            part_path = (
                path if name == self._names[0] else path.with_suffix(f".{name}{path.suffix}")
            )
            part.write(part_path, saved.of_task(name), model.parts[name])

    @property
    def _items(self) -> list[tuple[str, SingleObjective]]:
        return [*self.parts.items()]


def train_together(kinds: Mapping[str, type[SingleObjective]]) -> type[MultiTaskObjective]:
    """Return the class of the joint objective of `kinds`, by name."""
    joined = union(*kinds.values())
    absent = {
        trait: reason
        for trait, reason in joined.lacks.items()
        if trait not in _OF_ONE or all(trait in kind.lacks for kind in kinds.values())
    }
    fields = dict.fromkeys(chain.from_iterable(kind.reads.fields for kind in kinds.values()))
    # All objectives with labels have node labels.
    label = next(iter(kinds.values())).reads.label
    content = {
        "kinds": MappingProxyType({**kinds}),
        "reads": Reading(tuple(fields), label),
        "needs": joined.needs,
        "lacks": MappingProxyType({**absent, **_LACKS}),
    }
    return type("MultiTaskObjective", (MultiTaskObjective,), content)
