"""Supergraphs of programs: what a step of a rank reads and packs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any, ClassVar

from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.sampling import Prefetch
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING, Reasons
from hpcgnn.train.programs.input import ProgramStep
from hpcgnn.train.programs.objective import ProgramObjective
from hpcgnn.train.sources.source import Ready, Source, numbered


class ProgramSource(Source):
    """Supergraphs that a thread reads and packs ahead."""

    lacks: ClassVar[Reasons] = NOTHING
    needs_rows: ClassVar[bool] = False

    def __init__(
        self, context: Context, objective: ProgramObjective, rows: LocalRows | None
    ) -> None:
        self._context, self._input = context, objective.input

    @collective
    @override
    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        items, context = self._input.steps(seed, epoch), self._context
        depth = context.config.programs.prefetch
        with Prefetch(next, repeat(items), threads=1, depth=depth) as packed:
            ready = context.device.prepare_ahead(packed, self._on_device)
            yield from numbered(context.trace, ready, seed, epoch)

    def _on_device(self, step: ProgramStep) -> ProgramStep:
        return replace(step, mine=tuple(self._input.on_device(prepared) for prepared in step.mine))

    @override
    def details(self) -> dict[str, Any]:
        return {}

    @override
    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        return {}
