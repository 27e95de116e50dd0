"""What the training loop asks of a task; each kind of training is one."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import Facts
from hpcgnn.nn import TrainableModule
from hpcgnn.storage import GraphStore, InstanceStore
from hpcgnn.support import Reasons, Trait
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.run.directory import RunDirectory

Step: TypeAlias = Callable[[Any], Tensor]
"""Gives, for the model, this rank's share of a step's loss; collective. The shares of a layer of
the grid add up to the loss."""


StoreKind: TypeAlias = type[GraphStore] | type[InstanceStore]

Drawn = TypeVar("Drawn")


def steps_of(
    trace: TraceRecorder,
    drawn: Iterator[Drawn],
    loss: Callable[[Drawn, DropoutKey, Any], Tensor],
    seed: int,
    epoch: int,
) -> Iterator[Step]:
    """Yield a step for each item, which is waited for in a span; each has masks of its own."""
    for number in itertools.count():
        with trace.span("wait.input"):
            found = next(drawn, None)
        if found is None:
            return
        # Epochs have fewer steps than this.
        yield partial(loss, found, DropoutKey(seed, (epoch << 32) + number))


@dataclass(frozen=True)
class Outcome:
    """What the loop has reached.

    Parameters
    ----------
    results
        A line for each finished seed, see `SeedRun.result`.
    stopped
        Whether a signal ended it before all seeds were done; a checkpoint holds every epoch.
    epochs_run
        Epochs since the start of this process.
    """

    results: list[dict[str, Any]]
    stopped: bool
    epochs_run: int


class Task(Protocol):
    """The data of one rank, how a step's loss comes from it, and how models are judged.

    All that a task draws at random is a function of seed and epoch, so that a run which goes on
    from a checkpoint, which lies between two epochs, is the run that was not interrupted.
    """

    grid: ProcessGrid
    store: ClassVar[StoreKind]
    """The kind of store that it reads."""
    needs: ClassVar[frozenset[Trait]]
    lacks: ClassVar[Reasons]
    """What it needs of other features of a run, and lacks for them, see `hpcgnn.support`."""

    @classmethod
    def load(cls, context: Context) -> "Task":
        """Read this rank's share and prepare to train on it; collective."""
        ...

    @property
    def facts(self) -> Facts:
        """What is trained on."""
        ...

    def make_model(self, seed: int) -> TrainableModule:
        """Return a new model, equal on all ranks; not collective."""
        ...

    def steps(self, seed: int, epoch: int) -> Iterable[Step]:
        """Yield the steps of an epoch, at least one and equally many on all ranks; collective.

        The loop updates the model by a step's loss before it asks for the next step.
        """
        ...

    def evaluate(self, model: Any) -> Evaluation:
        """Return the metrics of `model` on all splits; collective."""
        ...

    def evaluate_kept(self, model: Any) -> dict[str, Any]:
        """Return what an ended seed's line says beside its metrics; collective."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what a checkpoint keeps beside the model, for predictions; not collective."""
        ...

    def describe(self, threads: int) -> str:
        """Return the line that says what is about to run; not collective."""
        ...

    def remarks(self) -> list[str]:
        """Return what in this rank's inputs is likely to be a mistake, a line each."""
        ...

    def rank_details(self) -> dict[str, Any]:
        """Return this rank's line in the summary, beside times and bytes; not collective."""
        ...

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the task's keys of summary.json, from all `rank_details`; not collective."""
        ...

    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write the predictions of the model that `seed` kept; collective."""
        ...
