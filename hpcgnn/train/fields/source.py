"""Samples of a series, shuffled anew in each epoch and read ahead by a thread."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import agree
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.sampling import Prefetch
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait
from hpcgnn.trace import WAIT_FOR_SAMPLES
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.fields.samples import Sample, SampleStep
from hpcgnn.train.sources.source import Ready, Source

_AHEAD = 2
"""Samples to read ahead, beyond those of one step."""


class SampleSource(Source):
    """Makes steps of ``fields.batch`` samples, each of the whole graph."""

    lacks: ClassVar[Reasons] = MappingProxyType({Trait.PARTS: "its samples are of the whole graph"})

    @collective
    def __init__(
        self, context: Context, objective: FieldObjective, rows: LocalRows | None = None
    ) -> None:
        self._grid, self._trace = context.grid, context.trace
        self._options, self._series = context.config.fields, objective.series

    @override
    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        # The samples of a step are distributed over the groups of ranks.
        options, series, grid = self._options, self._series, self._grid
        anchors, size = series.windows.epoch(seed, epoch).tolist(), options.batch
        batches = [anchors[first : first + size] for first in range(0, len(anchors), size)]
        numbers = [range(grid.group, len(batch), grid.groups) for batch in batches]
        own_anchors = [batch[n] for batch, own in zip(batches, numbers, strict=True) for n in own]
        read = partial(series.sample, ahead=options.ahead)
        depth = -(-size // grid.groups) + _AHEAD
        with Prefetch(read, own_anchors, threads=1, depth=depth) as samples:
            for step, (batch, own) in enumerate(zip(batches, numbers, strict=True)):
                taken: list[Sample] = []
                with agree(grid.world), self._trace.span(WAIT_FOR_SAMPLES):
                    taken.extend(replace(next(samples), number=number) for number in own)
                # Each predicted step of each sample has its own dropout masks.
                masks = step * size * max(options.ahead, 1)
                ready = partial(SampleStep, taken, len(batch))
                yield ready, DropoutKey(seed, (epoch << 32) + masks)
