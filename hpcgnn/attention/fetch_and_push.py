"""The two remote parts of attention: fetched values and pushed states.

Fetched: rows of this rank attend to values of other ranks. Pushed: rows of other ranks attend to
values of this rank, which sends them partial softmax states.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np

from hpcgnn.attention.operator import Softmax
from hpcgnn.attention.scores import AttentionInput, BackwardWalk, ScoredRows, Scores
from hpcgnn.attention.softmax import AttentionState, pack, packed_width, unpack
from hpcgnn.comm import Instant, RunPosition
from hpcgnn.kernels import Gradients, SoftmaxGradient
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.sparse import Memory
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.spmm.exchange.ghosts import Fetch, Push
from hpcgnn.spmm.exchange.stages import Combine
from hpcgnn.spmm.remote import Pushing, RemotePart
from hpcgnn.spmm.wire import ColumnRange, Packing, Wire
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices


@collective
def node_ids(part: RemotePart, ids: GlobalIndices) -> tuple[GlobalIndices, ...]:
    """Return the ids of the ghosts of a remote part, for each stage of a fetch."""
    # Ids stay below 2^53, which float64 rows carry exactly and no wire narrows.
    fetch = part.start_fetch(part.memory.put(ids.astype(np.float64)[:, None]))
    return tuple(fetch.stage(index)[:, 0].astype(np.int64) for index in range(len(part.blocks)))


@dataclass(frozen=True, eq=False)
class _ValueRows:
    """The layout of values on the wire: `width` columns, followed by `num_sources` sources.

    Sources travel where the wire packs values, in the dtype of weights. If packed values and
    sources would be no narrower than the values alone, these travel unpacked. `columns` are those
    of a fetch.
    """

    columns: Packing
    width: int
    num_sources: int = 0

    @classmethod
    def of(cls, wire: Wire, scores: Scores, values: Array, instant: Instant | None) -> "_ValueRows":
        """Return the layout of values that are rounded as at `instant`."""
        width, count = values.shape[1], scores.num_sources
        assert instant is not None
        ((values_alone, size, bits),) = wire.packing(values, instant)
        if bits is None or count == 0:
            return cls([values_alone], width)
        num_bytes = count * scores.weights.itemsize
        if size + num_bytes >= width * values.itemsize:
            return cls([ColumnRange(width, None)], width)
        return cls([values_alone, ColumnRange(num_bytes // values.itemsize, None)], width, count)

    def join(self, values: Array, sources: Callable[[], FloatArray]) -> Array:
        """Return the rows, given values and a function that returns the sources."""
        if not self.num_sources:
            return values
        return np.concatenate([values, sources().view(values.dtype)], axis=1)

    def split(self, rows: Array, dtype: np.dtype[np.generic]) -> tuple[Array, FloatArray | None]:
        """Return values, and sources of a dtype; None: they did not travel."""
        if not self.num_sources:
            return rows, None
        values, sources = map(np.ascontiguousarray, np.split(rows, [self.width], axis=1))
        return values, sources.view(dtype)


def _packing(width: int, *wide: tuple[int, Instant | None]) -> Packing:
    """Return `width` columns: the `wide` ones, packed as drawn at an instant, then plain ones."""
    columns = [ColumnRange(*part) for part in wide]
    return [*columns, ColumnRange(width - sum(part.width for part in columns), None)]


class FetchedValues:
    """``C F``: rows of this rank, of original ids (rows,), attend to values of other ranks."""

    def __init__(
        self,
        part: RemotePart,
        row_ids: GlobalIndices,
        ghost_ids: tuple[GlobalIndices, ...],
        trace: TraceRecorder,
        run_position: RunPosition,
    ) -> None:
        self._part, self._trace, self._run_position = part, trace, run_position
        self._row_ids, self._ghost_ids = row_ids, ghost_ids
        put = part.memory.put
        self._reorder = [order if order is None else put(order) for order in push_order(part)]

    def over(self, part: RemotePart) -> "FetchedValues":
        """Return a copy for blocks that have the same entries with other features."""
        copied = copy(self)
        copied._part = part
        return copied

    @collective
    def start(self, attention: AttentionInput, instant: Instant | None, *, keep: bool) -> Fetch:
        """Start to fetch values, rounded as at `instant`.

        If they are to be kept, a resident schedule keeps them.
        """
        ghosts, values, scores = self._part.ghosts, attention.values, attention.scores
        form, half = self._form(attention, instant), ghosts.wire.half
        rows = form.join(values, lambda: scores.sources(self._part.memory, values, half))
        keep = keep and not ghosts.sequential
        return ghosts.start_fetch(rows, keep=keep, columns=form.columns)

    def _form(self, attention: AttentionInput, instant: Instant | None) -> _ValueRows:
        wire, scores = self._part.ghosts.wire, attention.scores
        return _ValueRows.of(wire, scores, attention.values, instant)

    @collective
    def attend(
        self,
        fetch: Fetch,
        attention: AttentionInput,
        state: AttentionState,
        instant: Instant,
        *,
        keep: bool,
    ) -> tuple[Array, ...] | None:
        """Add the edges to the state, stage by stage; return the values that are kept."""
        keep, form = keep and not self._part.ghosts.sequential, self._form(attention, instant)
        memory, scores, fetched = self._part.memory, attention.scores, []
        for index, block in enumerate(self._part.blocks):
            with self._trace.span("wait.forward"):
                rows = fetch.stage(index)
            with self._trace.span("boundary.forward"):
                of_edges = attention.block_draw(self._row_ids, self._ghost_ids[index])
                values, sources = form.split(rows, scores.weights.dtype)
                half = self._part.ghosts.wire.half
                score = scores.operands(
                    memory, ScoredRows(values, attention.targets, half, sources)
                )
                scores.forward(block, score, state, of_edges)
            if keep:
                fetched.append(rows)
        return tuple(fetched) if keep else None

    @collective
    def start_transpose(
        self,
        attention: AttentionInput,
        saved: SoftmaxGradient,
        softmax: Softmax,
        gradients: Gradients,
    ) -> Pushing:
        """Start to return the gradients of fetched values to their owners."""
        ghosts, memory, fetched = self._part.ghosts, self._part.memory, softmax.fetched
        scores, targets = attention.scores, attention.targets
        form = self._form(attention, softmax.instant)
        width, num_sources = form.width, form.num_sources

        def fill(push: Push) -> None:
            # Values that were not kept are fetched again: the rematerialisation of the SAR paper.
            # Started here, a sequential schedule has one window of ghosts in memory and not two.
            fetch = None
            if fetched is None:
                fetch = self.start(attention, softmax.instant, keep=False)
            for index, block in enumerate(self._part.push_blocks):
                with self._trace.span("wait.reverse"):
                    rows = fetched[index] if fetch is None and fetched else _stage_of(fetch, index)
                    buffer = push.buffer(index)
                # A push may number the ghosts of a stage differently from their fetch.
                take = self._reorder[index]
                rows = rows if take is None else rows[take]
                ids = self._ghost_ids[index] if take is None else self._ghost_ids[index][take]
                with self._trace.span("boundary.reverse"):
                    values, sources = form.split(rows, scores.weights.dtype)
                    for_sources = None if sources is None else np.zeros_like(sources)
                    if sources is None:
                        into = _zeros_for(buffer, targets.dtype, memory)
                    else:
                        into = np.zeros(values.shape, targets.dtype)
                    shares = Gradients(into, gradients.targets, gradients.weights, for_sources)
                    draw = attention.block_draw(self._row_ids, ids)
                    score = scores.operands(
                        memory, ScoredRows(values, targets, ghosts.wire.half, sources)
                    )
                    blocks = block, block.transposed
                    scores.backward(BackwardWalk(*blocks, score, saved, shares, draw))
                    if for_sources is None:
                        store_rows(into, buffer, ghosts.wire.format, memory)
                    else:
                        np.concatenate([into, for_sources], axis=1, out=buffer)
                push.send(index)

        assert gradients.values is not None
        # Own edges may have written gradients of the same rows: what arrives is added, in the order
        # of the plan.
        like, add = gradients.values, self._part.adding(gradients.values)
        if not num_sources:
            return Pushing(self._part, ghosts.start_push(like, add), fill)
        like = np.empty((0, width + num_sources), targets.dtype)
        for_own = np.zeros((len(attention.values), num_sources), targets.dtype)
        adds = add, self._part.adding(for_own)
        columns = _packing(width + num_sources, (width, self._run_position.now))
        push = ghosts.start_push(like, _both(adds, width), columns)
        # The owner turns gradients of sources into those of the values and weights behind them.
        return Pushing(
            self._part,
            push,
            fill,
            lambda: scores.add_sources(attention.values, for_own, gradients),
        )


class PushedStates:
    """``Gᵀ R``: rows of other ranks attend to values of this rank, of original ids (columns,).

    The part is the pattern with own columns as rows and other ranks' rows as ghosts.
    """

    def __init__(
        self,
        part: RemotePart,
        target_ids: tuple[GlobalIndices, ...],
        column_ids: GlobalIndices,
        trace: TraceRecorder,
        run_position: RunPosition,
    ) -> None:
        assert part.push_blocks is part.blocks, "states are pushed in the numbering of a fetch"
        self._part, self._trace, self._run_position = part, trace, run_position
        self._target_ids, self._column_ids = target_ids, column_ids

    @collective
    def start(self, attention: AttentionInput, state: AttentionState, instant: Instant) -> Pushing:
        """Start to push the partial states of other ranks' rows; those that arrive join `state`."""
        scores, values, targets = attention.scores, attention.values, attention.targets
        ghosts, heads = self._part.ghosts, scores.heads
        width = scores.result_width(values)
        form, memory = ghosts.wire.format, self._part.memory

        # A finished state has two arrays instead of three, and merges just as exactly.
        def merge(rows: LocalIndices, arrived: Array) -> None:
            out, lse = unpack(arrived, [width], [heads], form)
            state.merge_finished(rows, out, lse)

        def fill(push: Push) -> None:
            rows = self._pack_targets(scores, targets)
            wide = [] if scores.narrow_targets else [(rows.shape[1], instant)]
            fetch = ghosts.start_fetch(rows, columns=_packing(rows.shape[1], *wide))
            for index, block in enumerate(self._part.blocks):
                # States are pushed to rows of other ranks, so the targets of these are fetched
                # first: with additive scores one logit a head, little beside a state.
                their_targets = self._unpack_targets(scores, targets, _stage_of(fetch, index))
                buffer = push.buffer(index)
                with self._trace.span("boundary.reverse"):
                    partial = AttentionState.empty(
                        len(their_targets), heads, width, targets.dtype, memory
                    )
                    draw = attention.block_draw(self._target_ids[index], self._column_ids)
                    score = scores.operands(
                        memory, ScoredRows(values, their_targets, ghosts.wire.half)
                    )
                    scores.forward(block.transposed, score, partial, draw)
                    # Finished before it is sent: the division by the total needs only this state.
                    partial.finish()
                    packed = pack([partial.out], [partial.top], form, memory)
                    store_rows(packed, buffer, form, memory)
                push.send(index)

        columns = packed_width(width, heads, form, targets.dtype)
        like = memory.arrays.empty((0, columns), targets.dtype)
        push = ghosts.start_push(
            like, Combine(merge, adds=False), _packing(columns, (width, instant))
        )
        return Pushing(self._part, push, fill)

    @collective
    def transpose(
        self,
        attention: AttentionInput,
        saved: SoftmaxGradient,
        softmax: Softmax,
        gradients: Gradients,
    ) -> None:
        """Add the gradients of this rank's values, and push those of other ranks' targets."""
        scores, values, targets = attention.scores, attention.values, attention.targets
        ghosts, memory = self._part.ghosts, self._part.memory
        form = ghosts.wire.format
        wide, narrow = [saved.grad], [saved.lse, saved.delta]
        # Targets travel last in their group, where they are unpacked below, and are rounded as in
        # the forward pass.
        (narrow if scores.narrow_targets else wide).append(targets)
        instant, exact = self._run_position.now, targets.shape[1] if scores.narrow_targets else 0
        packed_when = zip(map(_width, wide), (instant, softmax.instant), strict=False)
        # One exchange brings all that a row's gradient needs, so its edges are differentiated here
        # without further messages.
        packed = pack(wide, narrow, form, memory)
        fetch = ghosts.start_fetch(packed, columns=_packing(packed.shape[1], *packed_when))
        push = ghosts.start_push(
            targets,
            self._part.adding(gradients.targets),
            _packing(targets.shape[1], (targets.shape[1] - exact, instant)),
        )
        for index, block in enumerate(self._part.blocks):
            rows = _stage_of(fetch, index)
            arrays = unpack(rows, [a.shape[1] for a in wide], [a.shape[1] for a in narrow], form)
            their_targets = arrays.pop() if scores.narrow_targets else arrays.pop(1)
            buffer = push.buffer(index)
            with self._trace.span("boundary.reverse"):
                into = _zeros_for(buffer, targets.dtype, memory)
                shares = Gradients(gradients.values, into, gradients.weights)
                draw = attention.block_draw(self._target_ids[index], self._column_ids)
                their_saved = SoftmaxGradient(arrays[1], arrays[0], arrays[2])
                score = scores.operands(memory, ScoredRows(values, their_targets, ghosts.wire.half))
                blocks = block.transposed, block.with_all_rows
                scores.backward(BackwardWalk(*blocks, score, their_saved, shares, draw))
                store_rows(into, buffer, form, memory)
            push.send(index)
        push.finish()

    def _pack_targets(self, scores: Scores, targets: FloatArray) -> FloatArray:
        if not scores.narrow_targets:
            return targets
        return pack([], [targets], self._part.ghosts.wire.format, self._part.memory)

    def _unpack_targets(self, scores: Scores, targets: FloatArray, rows: Array) -> FloatArray:
        narrow = [targets.shape[1]] if scores.narrow_targets else []
        wide = [] if scores.narrow_targets else [targets.shape[1]]
        return unpack(rows, wide, narrow, self._part.ghosts.wire.format)[0]


def _width(rows: Array) -> int:
    width: int = rows.shape[1]
    return width


def _both(adds: tuple[Combine, Combine], width: int) -> Combine:
    """Return a function that adds arriving rows to two sums, split at column `width`."""

    def add(rows: LocalIndices, arrived: Array) -> None:
        for add_columns, columns in zip(adds, np.split(arrived, [width], axis=1), strict=True):
            add_columns(rows, np.ascontiguousarray(columns))

    return Combine(add)


def push_order(part: RemotePart) -> list[LocalIndices | None]:
    """Return, for each stage, the positions of a push's columns in its fetch; None: in order."""
    if part.push_blocks is part.blocks:
        return [None] * len(part.blocks)
    assert len(part.push_blocks) == len(part.blocks)
    order: list[LocalIndices | None] = []
    for index in range(len(part.blocks)):
        fetched = part.ghosts.columns.ghosts_of(index)
        pushed = part.ghosts.push_columns.ghosts_of(index)
        position_of = np.full(
            max(fetched.max(initial=-1), pushed.max(initial=-1)) + 1, -1, np.int32
        )
        present = np.flatnonzero(fetched >= 0).astype(np.int32)
        position_of[fetched[present]] = present
        take = position_of[pushed]
        assert take.min(initial=0) >= 0, "a pushed ghost was not fetched"
        order.append(take)
    return order


@neighborwise_collective
def _stage_of(fetch: Fetch | None, index: int) -> Array:
    assert fetch is not None
    return fetch.stage(index)


def _zeros_for(buffer: Array, dtype: np.dtype[np.generic], memory: Memory) -> FloatArray:
    """Return zeros to add to: the buffer itself if it has the dtype of sums."""
    if buffer.dtype == dtype:
        buffer[:] = 0
        return buffer
    return memory.arrays.zeros(buffer.shape, dtype)


def store_rows(rows: FloatArray, buffer: Array, half: WireFormat | None, memory: Memory) -> None:
    """Write sums to the buffer of a message, rounded as on the wire."""
    if rows is buffer:
        return
    if buffer.dtype == np.uint16:
        assert half is not None
        memory.kernels.gather_rows(rows, None, buffer, half=half)
    else:
        buffer[:] = rows
