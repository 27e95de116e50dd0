"""A task: an objective on a source."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.spmd import collective
from hpcgnn.train.objectives.objective import Objective
from hpcgnn.train.sources.source import Ready, Source

Step: TypeAlias = Callable[[Any], Tensor]
"""Gives, for the model, this rank's share of a step's loss; collective. The shares of a layer of
the grid add up to the loss."""

Predicted = TypeVar("Predicted", bound=Objective, covariant=True)


@dataclass(frozen=True, eq=False)
class Task(Generic[Predicted]):
    """What is predicted, by what steps it is learned.

    Parameters
    ----------
    objective
        What is predicted of the data of this rank, and how models are judged.
    source
        What steps are made of.
    """

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
