"""Several objectives at once, on one encoder: labels of nodes and links, say, with weights."""

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
from hpcgnn.config.joined import width_of, with_one_width
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.labelled import Reading
from hpcgnn.graph.load import FEATURES
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import SeveralModel
from hpcgnn.sparse import HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait, union
from hpcgnn.train.evaluation import SPLITS, Evaluation
from hpcgnn.train.kept_products import WholeView
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
"""What is there where one of the objectives has it."""


class SeveralExamples(WholeExamples):
    """What all objectives train on."""

    trains = None

    def __init__(self, parts: Iterable[SingleObjective]) -> None:
        self._parts = tuple(parts)
        self.num_train = sum(part.examples.num_train for part in self._parts)

    @collective
    @override
    def on_whole(self, seed: int, epoch: int) -> WholeTargets:
        # Of each objective its own, in their order.
        values = tuple(part.examples.on_whole(seed, epoch) for part in self._parts)
        return WholeTargets(None, values, self.num_train)


class SeveralObjectives(GraphObjective):
    """The sum of the losses of several objectives, with ``train.task_weights``; see `several`.

    All read the outputs of one encoder as embeddings of nodes. Their metrics begin with their names
    in ``train.task``; models are chosen by that of the first, as a run of it alone chooses them.
    `kinds` are the objectives by name, `parts` those of this rank.
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
        self.examples, self.whole = SeveralExamples(parts.values()), WholeView(self.graph)
        said: list[Any] = [part.about for part in parts.values()]
        remark = "".join(report.remark for report in said)
        keys = dict(chain.from_iterable(report.keys.items() for report in said))
        self.about = GraphReport(said[0].graph, config, remark=remark, keys=keys)

    @classmethod
    @collective
    @override
    def draw(cls, context: Context) -> tuple[Any, HiddenEdges | None]:
        with agree(context.grid.world):
            config = with_one_width(context.config)
        drawn, hidden = {}, None
        for name, kind in cls.kinds.items():
            drawn[name], taken = kind.draw(replace(context, config=config))
            hidden = taken if hidden is None else hidden
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
    def make_model(self, seed: int) -> SeveralModel:
        encoder = self.graph.make_model(self.config, seed)
        heads = {name: part.make_part(encoder, self._width, seed) for name, part in self._items}
        return SeveralModel(encoder, heads)

    @collective
    @override
    def loss_of(self, model: SeveralModel, outputs: Tensor, step: StepData) -> Tensor:
        loss = outputs.new_zeros(())
        for (name, part), weight, of_part in zip(
            self._items, self._weights, step.targets, strict=True
        ):
            own = model.parts[name]
            targets = StepData(step.view, step.features, of_part.values, of_part.size, of_part.rows)
            loss = loss + weight * part.loss_of(own, own.outputs(outputs), targets)
        return loss

    @collective
    @override
    def judge(self, model: SeveralModel, outputs: Tensor) -> Evaluation:
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
                # A loss that one objective does not tell makes no sum.
                sums[split] += weight * evaluation.values.get(f"{split}_loss", np.nan)
        losses = {f"{split}_loss": loss for split, loss in sums.items() if np.isfinite(loss)}
        return Evaluation(values | losses, self.metric, "; ".join(constant))

    @collective
    @override
    def evaluate_kept(self, model: SeveralModel) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for name, part in self._items:
            said |= part.evaluate_kept(model.parts[name])
        return said

    @torch.no_grad()
    @collective
    @override
    def write(self, path: Path, saved: SavedModel, model: SeveralModel) -> None:
        # The first one's file is where that of a run of it alone would be.
        for name, part in self._items:
            part_path = (
                path if name == self._names[0] else path.with_suffix(f".{name}{path.suffix}")
            )
            part.write(part_path, saved.of_task(name), model.parts[name])

    @property
    def _items(self) -> list[tuple[str, SingleObjective]]:
        return [*self.parts.items()]


def several(kinds: Mapping[str, type[SingleObjective]]) -> type[SeveralObjectives]:
    """Return the objective that joins some, by their names."""
    joined = union(*kinds.values())
    absent = {
        trait: reason
        for trait, reason in joined.lacks.items()
        if trait not in _OF_ONE or all(trait in kind.lacks for kind in kinds.values())
    }
    fields = dict.fromkeys(chain.from_iterable(kind.reads.fields for kind in kinds.values()))
    # All label nodes, or nothing.
    label = next(iter(kinds.values())).reads.label
    content = {
        "kinds": MappingProxyType({**kinds}),
        "reads": Reading(tuple(fields), label),
        "needs": joined.needs,
        "lacks": MappingProxyType({**absent, **_LACKS}),
    }
    return type("SeveralObjectives", (SeveralObjectives,), content)
