"""The interface of a source: what the steps of an epoch are made of, and what they work on."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey, take_rows
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.nn import GraphView, NodeFeatures
from hpcgnn.sampling import Subgraph
from hpcgnn.support import Reasons, Trait
from hpcgnn.trace import WAIT_FOR_SAMPLES, TraceRecorder
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask


@dataclass(frozen=True, eq=False)
class StepData:
    """What a step works on, where the model is.

    `targets` are of the rows that count: labels, or what else the objective compares. `size` is
    what the sum of the losses of all ranks is divided by; None: as many targets as all have. `rows`
    are the rows of the output that count, as numbers or as a mask; None: all. `weights` are factors
    of the losses of these rows; None: ones.
    """

    view: GraphView
    features: NodeFeatures
    targets: Any
    size: float | None = None
    rows: Tensor | None = None
    weights: Tensor | None = None

    def counted(self, outputs: Tensor) -> Tensor:
        """Return the rows of the model's output that count."""
        if self.rows is None:
            return outputs
        if outputs.is_cpu and outputs.dim() == 2 and self.rows.dtype == torch.int64:
            # torch's own would lie beside the memory that epochs reuse.
            return take_rows(outputs, self.rows.numpy().astype(np.int32))
        return outputs[self.rows]


@dataclass(frozen=True, eq=False)
class WholeTargets:
    """What a step on the whole graph has a loss for; `rows`, `values` and `size` as `StepData`."""

    rows: Tensor | None
    values: Any
    size: float


@dataclass(frozen=True, eq=False)
class BatchShare:
    """A rank's share of a batch of examples.

    `numbers` (B,) int64 are those of the whole batch, as far as this rank knows it, and `positions`
    (b,) int64, rising, those of the share among them; `seeds` are the run's seed and the epoch.
    """

    numbers: GlobalIndices
    positions: GlobalIndices
    seeds: tuple[int, int]

    @property
    def own_numbers(self) -> GlobalIndices:
        """Those of the share."""
        return self.numbers[self.positions]


class BatchExamples(Protocol):
    """The examples of a graph to sample, numbered from 0: a batch is some of them."""

    unit: str
    """What there is one of in a batch, in the plural: nodes, edges."""

    def __len__(self) -> int:
        """Return how many this rank knows."""

    def batch(self, share: BatchShare) -> tuple[LocalIndices, Any]:
        """Return the nodes of a rank's share of a batch, rising int32, and what `targets` needs.

        The outputs of these nodes are needed, in this order.
        """

    def targets(self, pieces: Sequence[Any]) -> Any:
        """Return the targets of what `batch` has chosen, piece after piece, on the CPU."""


class SubgraphExamples(Protocol):
    """The examples of a graph to sample that lie in some of its subgraphs."""

    def inside(
        self, subgraphs: Sequence[Subgraph], nodes: LocalIndices, seeds: tuple[int, int]
    ) -> tuple[Tensor | None, Any]:
        """Return which rows of subgraphs count, as a mask, None: any; and targets, on the CPU.

        `nodes` (n,) are those of all subgraphs, one after the other; `seeds` the run's seed and the
        epoch.
        """


class WholeExamples(Protocol):
    """What of a whole graph an objective trains on, by this rank's share of the graph."""

    num_train: int
    """Of all ranks."""

    @property
    def trains(self) -> Mask | None:
        """(N,) which nodes, or graphs, have a loss; None: others in each step."""

    def on_whole(self, seed: int, epoch: int) -> WholeTargets:
        """Return the targets of a step on the whole graph; collective."""


class Examples(WholeExamples, Protocol):
    """The same of a graph that may be sampled, too."""

    @property
    def labels_of_nodes(self) -> Array:
        """(N,) int64 or (N, C): travel with the rows of this rank to where these are sampled."""

    def in_batches(self, graph: SampledGraph) -> BatchExamples:
        """Return what batches of nodes with sampled neighbours are of; collective."""

    def in_subgraphs(self, graph: SampledGraph) -> SubgraphExamples:
        """Return what subgraphs of a graph are trained on; collective."""


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

    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        """Yield the steps of an epoch, at least one and equally many on all ranks; collective.

        The loop updates the model by a step's loss before it asks for the next step. Each has
        masks of dropout of its own.
        """

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary; not collective."""
        return {}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return keys of summary.json, from the details of all ranks; not collective."""
        return {}


def numbered(
    trace: TraceRecorder, drawn: Iterator[Drawn], seed: int, epoch: int
) -> Iterator[tuple[Drawn, DropoutKey]]:
    """Yield the items of an epoch, which are waited for in a span, with masks of their own."""
    for number in itertools.count():
        with trace.span(WAIT_FOR_SAMPLES):
            item = next(drawn, None)
        if item is None:
            return
        # Epochs have fewer steps than this.
        yield item, DropoutKey(seed, (epoch << 32) + number)
