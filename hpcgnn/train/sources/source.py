"""The interface of a source, which makes the steps of an epoch, and the data of a step."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey, MappedRows, take_rows
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
    """The data of a step, on the model's device.

    `targets` are labels of the rows that count, or other data that the objective compares. `size`
    is the divisor of the summed losses of all ranks; None for the number of their targets. `rows`
    are the output rows that count, as indices or a mask; None for all. `weights` are factors of
    the losses of these rows; None for ones.
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
        if isinstance(outputs, MappedRows):
            return outputs.chosen(self.counted)
        if outputs.is_cpu and outputs.dim() == 2 and self.rows.dtype == torch.int64:
            # torch's indexing would not allocate from the memory that epochs reuse.
            return take_rows(outputs, self.rows.numpy().astype(np.int32))
        return outputs[self.rows]


@dataclass(frozen=True, eq=False)
class WholeTargets:
    """The targets of a step on the whole graph; for `rows`, `values` and `size`, see `StepData`."""

    rows: Tensor | None
    values: Any
    size: float


@dataclass(frozen=True, eq=False)
class BatchShare:
    """A rank's share of a batch of examples.

    `numbers` (B,) int64 are the examples of the whole batch that this rank knows, `positions` (b,)
    int64, ascending, those of its share among them; `seeds` are the run's seed and the epoch.
    """

    numbers: GlobalIndices
    positions: GlobalIndices
    seeds: tuple[int, int]

    @property
    def own_numbers(self) -> GlobalIndices:
        """The examples of the share."""
        return self.numbers[self.positions]


class BatchExamples(Protocol):
    """The examples of a graph to sample, numbered from 0, from which batches are drawn."""

    unit: str
    """The kind of example in the plural: nodes, edges."""

    def __len__(self) -> int:
        """Return the number of examples that this rank knows."""

    def batch(self, share: BatchShare) -> tuple[LocalIndices, Any]:
        """Return the nodes, ascending int32, whose outputs a share of a batch needs.

        Also return an item for `targets`. The model's outputs are in the order of the nodes.
        """

    def targets(self, pieces: Sequence[Any]) -> Any:
        """Return the targets of the items that `batch` returned, concatenated, on the CPU."""


class SubgraphExamples(Protocol):
    """The examples of a graph to sample that lie in some of its subgraphs."""

    def inside(
        self, subgraphs: Sequence[Subgraph], nodes: LocalIndices, seeds: tuple[int, int]
    ) -> tuple[Tensor | None, Any]:
        """Return the mask of rows that count, None for all, and the targets, on the CPU.

        `nodes` (n,) are the concatenated nodes of the subgraphs; `seeds` are the run's seed and the
        epoch.
        """


class WholeExamples(Protocol):
    """The training examples of an objective in this rank's share of the whole graph."""

    num_train: int
    """The number of examples of all ranks."""

    @property
    def trains(self) -> Mask | None:
        """The mask (N,) of nodes, or graphs, with a loss; None if it differs between steps."""

    def on_whole(self, seed: int, epoch: int) -> WholeTargets:
        """Return the targets of a step on the whole graph; collective."""


class Examples(WholeExamples, Protocol):
    """The training examples of an objective on a graph that may also be sampled."""

    @property
    def labels_of_nodes(self) -> Array:
        """Labels (N,) int64 or (N, C), which are sent with this rank's rows for sampling."""

    def in_batches(self, graph: SampledGraph) -> BatchExamples:
        """Return the examples for batches with sampled neighbours; collective."""

    def in_subgraphs(self, graph: SampledGraph) -> SubgraphExamples:
        """Return the examples for subgraphs; collective."""


Ready: TypeAlias = Callable[[], Any]
"""Returns the data of a step on the model's device; collective."""

Drawn = TypeVar("Drawn")


class Source(Protocol):
    """Makes the steps of an epoch.

    All random draws are functions of seed and epoch, so that a run resumed from a checkpoint, which
    lies between two epochs, equals one that was not interrupted.
    """

    needs: ClassVar[frozenset[Trait]] = frozenset()
    lacks: ClassVar[Reasons]
    """The traits it needs from other features of a run, and lacks for them: `hpcgnn.support`."""
    needs_rows: ClassVar[bool] = False
    """Whether it needs the rows of the graph."""

    def __init__(self, context: Context, objective: Any, rows: LocalRows | None) -> None:
        """Prepare the steps of an objective that was loaded with `context`; collective."""

    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        """Yield the steps of an epoch, at least one and equally many on all ranks; collective.

        The loop updates the model by a step's loss before it asks for the next step. Each step has
        its own dropout masks.
        """

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary; not collective."""
        return {}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return entries of summary.json, from the details of all ranks; not collective."""
        return {}


def numbered(
    trace: TraceRecorder, drawn: Iterator[Drawn], seed: int, epoch: int
) -> Iterator[tuple[Drawn, DropoutKey]]:
    """Yield the items of an epoch, each with its own dropout key; waiting for them is traced."""
    for number in itertools.count():
        with trace.span(WAIT_FOR_SAMPLES):
            item = next(drawn, None)
        if item is None:
            return
        # Epochs have fewer than 2^32 steps.
        yield item, DropoutKey(seed, (epoch << 32) + number)
