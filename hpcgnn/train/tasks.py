"""Tasks: an objective on a source, by the names that configurations use."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, TypeAlias, TypeVar

from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.config import features
from hpcgnn.config.config import Config
from hpcgnn.config.features import show
from hpcgnn.graph.context import Context
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import Feature, Trait, check, load_own, needs, union
from hpcgnn.train.edges.objective import EdgeObjective
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.fields.source import SampleSource
from hpcgnn.train.graphs.batches import BatchSource
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.objectives.nodes import GraphsObjective, NodeObjective
from hpcgnn.train.objectives.objective import Objective
from hpcgnn.train.objectives.several import several
from hpcgnn.train.programs.input import ProgramSource
from hpcgnn.train.programs.objective import ProgramObjective
from hpcgnn.train.sampled.source import SampledSource
from hpcgnn.train.sources.source import Ready, Source
from hpcgnn.train.sources.whole import WholeSource

Step: TypeAlias = Callable[[Any], Tensor]
"""Gives, for the model, this rank's share of a step's loss; collective. The shares of a layer of
the grid add up to the loss."""

Predicted = TypeVar("Predicted", bound=Objective, covariant=True)


@dataclass(frozen=True, eq=False)
class Task(Generic[Predicted]):
    """An objective, what is predicted, on a source, what the steps of training are made of."""

    objective: Predicted
    source: Source

    @collective
    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the steps of an epoch, see `Source`."""
        for ready, key in self.source.steps(seed, epoch):
            yield partial(self._loss, ready, key)

    @collective
    def _loss(self, ready: Ready, key: DropoutKey, model: Any) -> Tensor:
        return self.objective.loss(model, ready(), key)

    def details(self) -> dict[str, Any]:
        """Return this rank's line in the summary, beside times and bytes."""
        return {**self.objective.about.details(), **self.source.details()}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the task's keys of summary.json, from the details of all ranks."""
        return {**self.objective.about.summary(ranks), **self.source.summary(ranks)}


@dataclass(frozen=True)
class Pair:
    """An objective with the source that it is learned on.

    `option` of the configuration, SECTION.KEY, chooses `other` where it is neither 0 nor false;
    empty: none does.
    """

    objective: type[Objective]
    source: type[Source]
    option: str = ""
    other: type[Source] | None = None

    def chosen(self, config: Config) -> Any:
        """Return the value of the option; nothing where `source` is learned on."""
        section, _, key = self.option.partition(".")
        return getattr(getattr(config, section), key) if self.option else None

    def source_of(self, config: Config) -> type[Source]:
        """Return the source of a configuration."""
        return self.other if self.other is not None and self.chosen(config) else self.source

    @collective
    def load(self, context: Context) -> Task[Any]:
        """Read this rank's share of the data, and prepare to train on it; see `load_task`."""
        source = self.source_of(context.config)
        taken = Trait.SPARSE_FEATURES not in union(self.objective, source).lacks
        context = replace(context, takes_sparse=context.takes_sparse and taken)
        objective, rows = self.objective.load(context, with_rows=source.needs_rows)
        return Task(objective, source(context, objective, rows))

    def features(self, config: Config) -> Iterator[Feature]:
        """Yield what a run has by its objective and its source."""
        task, other = config.train.task, self.chosen(config)
        parts = (self.objective,) if other else (self.objective, self.source)
        yield Feature(f"train.task = {show(task)}", union(*parts), ("train.task",))
        if other:
            # Zero is no value that is listed.
            remedy = "" if other is True else f"set {self.option} = 0"
            traits = self.source_of(config)
            yield Feature(f"{self.option} = {show(other)}", traits, (self.option,), remedy)


TASKS: Mapping[str, Pair] = {
    "full": Pair(NodeObjective, WholeSource),
    "sampled": Pair(NodeObjective, SampledSource),
    "links": Pair(LinkObjective, WholeSource, "links.sampled", SampledSource),
    "edges": Pair(EdgeObjective, WholeSource, "edges.sampled", SampledSource),
    "graphs": Pair(GraphsObjective, WholeSource, "graphs.batch", BatchSource),
    "fields": Pair(FieldObjective, SampleSource),
    "programs": Pair(ProgramObjective, ProgramSource),
}
"""``train.task`` -> its objective and its source."""


def find_pair(name: str) -> Pair:
    """Return the pair called `name`: of `TASKS`, or ``package.module:NAME``, see `load_own`.

    Raises `InputError` when there is none, or its module does not load.
    """
    if name in TASKS:
        return TASKS[name]
    if "+" in name:
        return _joined(name)
    pair: Pair = load_own("train.task", name, _is_pair, "hpcgnn.train.tasks.Pair")
    return pair


@cache
def _joined(names: str) -> Pair:
    """Return the pair of the objectives that ``train.task`` joins, on the whole graph."""
    kinds: dict[str, Any] = {name: TASKS[name].objective for name in names.split("+")}
    return Pair(several(kinds), WholeSource)


def _is_pair(value: object) -> bool:
    return isinstance(value, Pair)


@collective
def load_task(context: Context) -> Task[Any]:
    """Read this rank's share of the data of a configuration, and prepare to train on it.

    Raises `CollectiveInputError` when the data do not fit.
    """
    return find_pair(context.config.train.task).load(context)


PLAN = Feature("hpcgnn plan", needs(Trait.PLANNED))
EXPORT = Feature("hpcgnn export", needs(Trait.EXPORTED))
LIBRARY = Feature("hpcgnn.open_graph", needs(Trait.OWN_LOOPS))


def features_of(
    config: Config, doors: Sequence[Feature] = (), wanted: Sequence[Aggregation] = ()
) -> list[Feature]:
    """Return all features of a run.

    `doors` are what it is for: `PLAN` and its like, none to train; `wanted` are aggregations in
    place of the model's.
    """
    # What a command lacks counts before what the configuration lacks by itself.
    of_task = find_pair(config.train.task).features(config)
    return [*doors, *features.features_of(config, wanted), *of_task]


def check_run(config: Config, *doors: Feature, wanted: Sequence[Aggregation] = ()) -> Pair:
    """Return the objective and source of a run, whose features all work together.

    Raises an `InputError` where two of them do not, see `features_of`, and as `find_pair` does.
    """
    pair = find_pair(config.train.task)
    check(config, lambda changed: features_of(changed, doors, wanted), features.changes)
    return pair


def check_saved(config: Config, *doors: Feature) -> None:
    """Raise an `InputError` where a run that has ended does not go with what is asked of it."""
    check(config, lambda same: features_of(same, doors), lambda _config, _key: ())
