"""The tasks by the names that configurations use: which objective on which source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hpcgnn.config.config import Config
from hpcgnn.config.features import show
from hpcgnn.graph.context import Context
from hpcgnn.spmd import collective
from hpcgnn.support import Feature, load_own, union
from hpcgnn.train.graphs.source import BatchSource
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.objectives.nodes import GraphsObjective, NodeObjective
from hpcgnn.train.objectives.objective import Objective
from hpcgnn.train.programs.objective import ProgramObjective
from hpcgnn.train.programs.source import ProgramSource
from hpcgnn.train.sampled.source import SampledSource
from hpcgnn.train.sources.source import Source
from hpcgnn.train.sources.whole import WholeSource
from hpcgnn.train.task import Task


@dataclass(frozen=True)
class Pair:
    """An objective with the source that it is learned on.

    Parameters
    ----------
    source
        Where no option chooses another.
    option
        Of the configuration, SECTION.KEY, that chooses `other` where it is neither 0 nor false;
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


TASKS: Mapping[str, Pair] = MappingProxyType(
    {
        "full": Pair(NodeObjective, WholeSource),
        "sampled": Pair(NodeObjective, SampledSource),
        "links": Pair(LinkObjective, WholeSource, "links.sampled", SampledSource),
        "graphs": Pair(GraphsObjective, WholeSource, "graphs.batch", BatchSource),
        "programs": Pair(ProgramObjective, ProgramSource),
    }
)
"""``train.task`` -> its objective and its source."""


def find_pair(name: str) -> Pair:
    """Return the pair called `name`: of `TASKS`, or ``package.module:NAME``, see `load_own`.

    Raises
    ------
    InputError
        When there is none, or its module does not load.
    """
    if name in TASKS:
        return TASKS[name]
    pair: Pair = load_own("train.task", name, _is_pair, "hpcgnn.train.tasks.Pair")
    return pair


def _is_pair(value: object) -> bool:
    return isinstance(value, Pair)


@collective
def load_task(context: Context) -> Task[Any]:
    """Read this rank's share of the data of a configuration, and prepare to train on it.

    Raises
    ------
    CollectiveInputError
        When the data do not fit.
    """
    pair = find_pair(context.config.train.task)
    source = pair.source_of(context.config)
    objective, rows = pair.objective.load(context, with_rows=source.needs_rows)
    return Task(objective, source(context, objective, rows))
