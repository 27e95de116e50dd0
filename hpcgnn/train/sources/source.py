"""The interface of a source: what the steps of an epoch are made of."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from hpcgnn.autograd import DropoutKey
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.support import Reasons, Trait
from hpcgnn.trace import TraceRecorder

Ready: TypeAlias = Callable[[], Any]
"""Returns what a step works on, where the model is; collective."""

Drawn = TypeVar("Drawn")


class Source(Protocol):
    """What the steps of an epoch are made of.

    All that it draws at random is a function of seed and epoch, so that a run which goes on from a
    checkpoint, which lies between two epochs, is the run that was not interrupted.
    """

    needs: ClassVar[frozenset[Trait]] = frozenset()
    lacks: ClassVar[Reasons]
    """What it needs of other features of a run, and lacks for them, see `hpcgnn.support`."""
    needs_rows: ClassVar[bool]
    """Whether it is made of the rows of the graph."""

    def __init__(self, context: Context, objective: Any, rows: LocalRows | None) -> None:
        """Prepare steps of an objective that was loaded in `context`; collective."""
        ...

    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        """Yield the steps of an epoch, at least one and equally many on all ranks; collective.

        The loop updates the model by a step's loss before it asks for the next step. Each has
        masks of dropout of its own.
        """
        ...

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary; not collective."""
        ...

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return keys of summary.json, from the details of all ranks; not collective."""
        ...


def numbered(
    trace: TraceRecorder, drawn: Iterator[Drawn], seed: int, epoch: int
) -> Iterator[tuple[Drawn, DropoutKey]]:
    """Yield the items of an epoch, which are waited for in a span, with masks of their own."""
    for number in itertools.count():
        with trace.span("wait.input"):
            item = next(drawn, None)
        if item is None:
            return
        # Epochs have fewer steps than this.
        yield item, DropoutKey(seed, (epoch << 32) + number)
