"""Messages of edges whose targets other ranks own: send their sums, and fetch their gradients.

If edges read the rows of their targets, these are fetched too.

Shape suffixes: N local nodes, T targets of a stage, M columns of a message, W of a target's row.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.messages.reductions import Sum
from hpcgnn.autograd.numerics.mixed import widened
from hpcgnn.comm import Instant, RunPosition
from hpcgnn.messages import EdgePart, Fetched, PushedEdges
from hpcgnn.spmd import collective
from hpcgnn.spmm import Fetch, Push
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import FloatArray

Rows: TypeAlias = tuple[FloatArray, Instant | None]
"""An entry of the list that `RemoteRows.start_fetch_of` takes."""
Summed: TypeAlias = Callable[[EdgePart, Tensor | None], Sum]
"""Returns the sums of the messages of a part, given the rows (T, W) of its targets."""
Added: TypeAlias = Callable[[EdgePart, Sum, Tensor | None], Tensor | None]
"""Adds the gradients through a part; returns those (T, W) of its targets' rows if needed."""


class Pushed(NamedTuple):
    """Data saved for the backward pass: the `targets`' rows, and the sum of each stage."""

    targets: Fetched
    sums: Sequence[Sum]


class ForwardPush:
    """Sends the sums of pushed edges to the owners of their targets.

    `targets` (N, W) are rows of the local nodes, None if edges do not read them; `like` is a tensor
    in the memory of the rows.
    """

    def __init__(
        self, pushed: PushedEdges, targets: Tensor | None, like: Tensor, trace: TraceRecorder
    ) -> None:
        self._pushed, self._targets, self._trace = pushed, targets, trace
        self._memory = memory_of(like)
        self._push: Push | None = None

    @collective
    def start(
        self, summed: Summed, total: Callable[[], Tensor], run_position: RunPosition, *, keep: bool
    ) -> Pushed:
        """Compute and send the sums; arriving ones are added to the (N, M) that `total` returns."""
        rows, memory, targets = self._pushed.rows, self._memory, self._targets
        fetch, instant, arrived = None, None, None
        kept: list[FloatArray] = []
        sums: list[Sum] = []
        if targets is not None:
            sent = memory.array(targets.contiguous())
            fetch, instant = rows.start_fetch(sent, keep=keep), run_position.now
        for index, part in enumerate(self._pushed.parts):
            if fetch is not None:
                with self._trace.span("wait.forward"):
                    stage = rows.arrived(fetch, index, sent.dtype)
                if keep:
                    kept.append(stage)
                arrived = memory.tensor(rows.in_push_order(index, stage))
            with self._trace.span("boundary.forward"):
                sums.append(summed(part, arrived))
            sent_sums = memory.array(sums[-1].result())
            if self._push is None:
                self._push = rows.start_push(sent_sums, lambda: memory.array(total()))
            rows.send(self._push, index, sent_sums)
        return Pushed(Fetched(kept if keep and targets is not None else None, instant), sums)

    @collective
    def finish(self) -> None:
        """Receive and add the sums that other ranks pushed."""
        if self._push is not None:
            self._push.finish()


class BackwardPush:
    """Fetches gradients for pushed edges from the owners of their targets, and returns theirs.

    `gradient` (N, M) is that of the sums; `targets` are as in the forward pass.
    """

    def __init__(
        self,
        pushed: PushedEdges,
        saved: Pushed,
        gradient: Tensor,
        targets: Tensor | None,
        trace: TraceRecorder,
    ) -> None:
        self._pushed, self._saved, self._gradient = pushed, saved, gradient
        self._trace, self._memory = trace, memory_of(gradient)
        self._rows: list[Rows] = [(self._memory.array(gradient.contiguous()), None)]
        if targets is not None and saved.targets.kept is None:
            rows = self._memory.array(targets.contiguous())
            self._rows.append((rows, saved.targets.instant))
        self._fetch: Fetch | None = None

    @collective
    def start(self) -> None:
        """Start the fetch if all stages arrive at once."""
        if self._pushed.rows.keeps:
            self._fetch = self._pushed.rows.start_fetch_of(self._rows)

    @collective
    def finish(self, added: Added, of_targets: Tensor | None) -> None:
        """Add all gradients, those of targets' rows to the `of_targets` (N, W) of their owners."""
        rows, memory, push = self._pushed.rows, self._memory, None
        fetch = self._fetch or rows.start_fetch_of(self._rows)
        total = None if of_targets is None else memory.array(of_targets)
        for index, part in enumerate(self._pushed.parts):
            with self._trace.span("wait.reverse"):
                gradient, targets = self._stage(fetch, index)
            reduction = self._saved.sums[index]
            reduction.start_backward(widened(gradient))
            with self._trace.span("boundary.reverse"):
                of_stage = added(part, reduction, targets)
            if of_stage is None or total is None:
                continue
            sent = memory.array(of_stage)
            if push is None:
                push = rows.start_push(sent, lambda: total)
            rows.send(push, index, sent)
        if push is not None:
            push.finish()

    def _stage(self, fetch: Fetch, index: int) -> tuple[Tensor, Tensor | None]:
        rows, memory, width = self._pushed.rows, self._memory, self._gradient.shape[1]
        arrived = rows.arrived(fetch, index, self._rows[0][0].dtype)
        joined = memory.tensor(rows.in_push_order(index, arrived))
        targets = joined[:, width:].contiguous() if len(self._rows) > 1 else None
        if self._saved.targets.kept is not None:
            targets = memory.tensor(rows.in_push_order(index, self._saved.targets.kept[index]))
        return joined[:, :width].contiguous(), targets
