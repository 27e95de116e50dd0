"""Tasks: pairs of an objective and a source, by the names used in configurations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, TypeAlias, TypeVar

from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.config import run_features
from hpcgnn.config.config import Config
from hpcgnn.config.run_features import show
from hpcgnn.graph.context import Context
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import Feature, Trait, check, load_own, needs, union
from hpcgnn.train.edges.objective import EdgeObjective
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.fields.source import SampleSource
from hpcgnn.train.graphs.batches import BatchSource
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.objectives.multi_task import train_together
from hpcgnn.train.objectives.nodes import GraphsObjective, NodeObjective
from hpcgnn.train.objectives.objective import Objective
from hpcgnn.train.programs.input import ProgramSource
from hpcgnn.train.programs.objective import ProgramObjective
from hpcgnn.train.sampled.source import SampledSource
from hpcgnn.train.sources.source import Ready, Source
from hpcgnn.train.sources.whole import WholeSource

Step: TypeAlias = Callable[[Any], Tensor]
"""Returns this rank's share of a step's loss for a model; collective. The shares of the ranks of a
grid layer add up to the loss."""

Predicted = TypeVar("Predicted", bound=Objective, covariant=True)


@dataclass(frozen=True, eq=False)
class Task(Generic[Predicted]):
    """An objective, which defines targets and loss, and a source, which makes training steps."""

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
        """Return this rank's entry in the summary, beside times and bytes."""
        return {**self.objective.about.details(), **self.source.details()}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the task's entries of summary.json, from the details of all ranks."""
        return {**self.objective.about.summary(ranks), **self.source.summary(ranks)}


@dataclass(frozen=True)
class Pair:
    """An objective with the source of its training steps.

    The configuration's `option`, SECTION.KEY, selects `alternative` if it is neither 0 nor false;
    an empty one never does.
    """

    objective: type[Objective]
    source: type[Source]
    option: str = ""
    alternative: type[Source] | None = None

    def option_value(self, config: Config) -> Any:
        """Return the value of the option, None without one; it is false if `source` is used."""
        section, _, key = self.option.partition(".")
        return getattr(getattr(config, section), key) if self.option else None

    def source_of(self, config: Config) -> type[Source]:
        """Return the source that a configuration selects."""
        return (
            self.alternative
            if self.alternative is not None and self.option_value(config)
            else self.source
        )

    @collective
    def load(self, context: Context) -> Task[Any]:
        """Read this rank's share of the data and prepare training on it; see `load_task`."""
        source = self.source_of(context.config)
        takes_sparse = Trait.SPARSE_FEATURES not in union(self.objective, source).lacks
        context = replace(context, takes_sparse=context.takes_sparse and takes_sparse)
        objective, rows = self.objective.load(context, with_rows=source.needs_rows)
        return Task(objective, source(context, objective, rows))

    def features(self, config: Config) -> Iterator[Feature]:
        """Yield the features that a run has through its objective and its source."""
        task, value = config.train.task, self.option_value(config)
        parts = (self.objective,) if value else (self.objective, self.source)
        yield Feature(f"train.task = {show(task)}", union(*parts), ("train.task",))
        if value:
            # The allowed values of a flag are listed elsewhere, but the 0 of a number is not.
            remedy = "" if value is True else f"set {self.option} = 0"
            traits = self.source_of(config)
            yield Feature(f"{self.option} = {show(value)}", traits, (self.option,), remedy)


TASKS: Mapping[str, Pair] = {
    "full": Pair(NodeObjective, WholeSource),
    "sampled": Pair(NodeObjective, SampledSource),
    "links": Pair(LinkObjective, WholeSource, "links.sampled", SampledSource),
    "edges": Pair(EdgeObjective, WholeSource, "edges.sampled", SampledSource),
    "graphs": Pair(GraphsObjective, WholeSource, "graphs.batch", BatchSource),
    "fields": Pair(FieldObjective, SampleSource),
    "programs": Pair(ProgramObjective, ProgramSource),
}
"""Maps ``train.task`` to its objective and source."""


def find_pair(name: str) -> Pair:
    """Return the pair of a name in `TASKS`, or of ``package.module:NAME``, see `load_own`.

    Raises `InputError` if there is none, or its module cannot be loaded.
    """
    if name in TASKS:
        return TASKS[name]
    if "+" in name:
        return _joined(name)
    kind = "hpcgnn.train.tasks.Pair"
    pair: Pair = load_own("train.task", name, lambda value: isinstance(value, Pair), kind)
    return pair


@cache
def _joined(names: str) -> Pair:
    """Return the joint pair of several objectives, such as "full+links", on the whole graph."""
    kinds: dict[str, Any] = {name: TASKS[name].objective for name in names.split("+")}
    return Pair(train_together(kinds), WholeSource)


@collective
def load_task(context: Context) -> Task[Any]:
    """Read this rank's share of the data of a configuration, and prepare training on it.

    Raises `CollectiveInputError` if the data do not fit.
    """
    return find_pair(context.config.train.task).load(context)


PLAN = Feature("hpcgnn plan", needs(Trait.PLANNED))
EXPORT = Feature("hpcgnn export", needs(Trait.EXPORTED))
LIBRARY = Feature("hpcgnn.open_graph", needs(Trait.OWN_LOOPS))


def features_of(
    config: Config, doors: Sequence[Feature] = (), aggregations: Sequence[Aggregation] = ()
) -> list[Feature]:
    """Return all features of a run.

    `doors` are its entry points, such as `PLAN`, none for training; `aggregations` replace those
    of the model.
    """
    # First, so that conflicts with the command are reported before those within the configuration.
    of_task = find_pair(config.train.task).features(config)
    return [*doors, *run_features.features_of(config, aggregations), *of_task]


def check_run(config: Config, *doors: Feature, aggregations: Sequence[Aggregation] = ()) -> Pair:
    """Return the objective and source of a run after checking that its features work together.

    Raises `InputError` if two of them do not, see `features_of`, and like `find_pair`.
    """
    pair = find_pair(config.train.task)
    check(config, lambda changed: features_of(changed, doors, aggregations), run_features.changes)
    return pair


def check_saved(config: Config, *doors: Feature) -> None:
    """Raise `InputError` if a finished run does not support what is asked of it."""
    check(config, lambda same: features_of(same, doors), lambda _config, _key: ())
