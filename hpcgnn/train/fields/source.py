"""Samples of a series, in an order of each epoch's own, read ahead by a thread."""

from collections.abc import Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import agree
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.sampling import Prefetch
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.fields.samples import Sample
from hpcgnn.train.sources.source import Ready, Source

_AHEAD = 2
"""Samples that wait, beside those of the step."""


class SampleSource(Source):
    """Each step is of ``fields.batch`` samples, of the whole graph each."""

    lacks: ClassVar[Reasons] = MappingProxyType({Trait.PARTS: "its samples are of the whole graph"})
    needs_rows: ClassVar[bool] = False

    @collective
    def __init__(
        self, context: Context, objective: FieldObjective, rows: LocalRows | None = None
    ) -> None:
        self._grid, self._trace = context.grid, context.trace
        self._options, self._series = context.config.fields, objective.series

    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        """Yield the steps of an epoch."""
        options, series = self._options, self._series
        anchors, size = series.windows.epoch(seed, epoch).tolist(), options.batch
        read = partial(series.sample, ahead=options.ahead)
        with Prefetch(read, anchors, threads=1, depth=size + _AHEAD) as samples:
            for number, first in enumerate(range(0, len(anchors), size)):
                count = min(size, len(anchors) - first)
                # Each predicted step of each sample has masks of its own.
                masks = number * size * max(options.ahead, 1)
                ready = partial(self._step, samples, count)
                yield ready, DropoutKey(seed, (epoch << 32) + masks)

    @collective
    def _step(self, samples: Iterator[Sample], count: int) -> Sequence[Sample]:
        found: list[Sample] = []
        with self._trace.span("wait.input"), agree(self._grid.world):
            found.extend(next(samples) for _ in range(count))
        return found

    def details(self) -> dict[str, Any]:
        """Return how many samples there are."""
        return {}
