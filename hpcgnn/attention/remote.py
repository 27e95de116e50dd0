"""The two remote parts of an attention: what is fetched, and what is pushed.

Fetched: rows of this rank attend to values of other ranks. Pushed: rows of other ranks attend to
values of this rank, which sends them partial softmax states.
"""

import numpy as np

from hpcgnn.attention.scores import AttentionInput, BackwardWalk, Scores
from hpcgnn.attention.softmax import AttentionState, pack, packed_width, unpack
from hpcgnn.kernels import Gradients, SoftmaxGradient
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.sparse import Memory
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.spmm.exchange.ghosts import Fetch, Push
from hpcgnn.spmm.remote import Pushing, RemotePart
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices


@collective
def node_ids(part: RemotePart, ids: GlobalIndices) -> tuple[GlobalIndices, ...]:
    """Return the ids of the ghosts of a remote part, for each stage of a fetch."""
    # Ids stay below 2^53, which float64 rows carry exactly and no wire narrows.
    fetch = part.start_fetch(part.memory.put(ids.astype(np.float64)[:, None]))
    return tuple(fetch.stage(index)[:, 0].astype(np.int64) for index in range(len(part.blocks)))


class FetchedValues:
    """``C F``: rows of this rank, of original ids (rows,), attend to values of other ranks."""

    def __init__(
        self,
        part: RemotePart,
        row_ids: GlobalIndices,
        ghost_ids: tuple[GlobalIndices, ...],
        trace: TraceRecorder,
    ) -> None:
        self._part, self._trace = part, trace
        self._row_ids, self._ghost_ids = row_ids, ghost_ids
        put = part.memory.put
        self._reorder = [order if order is None else put(order) for order in push_order(part)]

    @collective
    def start(self, values: Array, *, keep: bool) -> Fetch:
        """Start to fetch values, to keep them where the schedule is resident."""
        ghosts = self._part.ghosts
        return ghosts.start_fetch(values, keep=keep and not ghosts.sequential)

    @collective
    def attend(
        self,
        fetch: Fetch,
        attention: AttentionInput,
        state: AttentionState,
        *,
        keep: bool,
    ) -> tuple[Array, ...] | None:
        """Add the edges to the state, stage by stage; return the values that are kept."""
        keep = keep and not self._part.ghosts.sequential
        memory, scores, fetched = self._part.memory, attention.scores, []
        for index, block in enumerate(self._part.blocks):
            with self._trace.span("wait.forward"):
                rows = fetch.stage(index)
            with self._trace.span("boundary.forward"):
                drawn = attention.drawn(self._row_ids, self._ghost_ids[index])
                score = scores.operands(
                    memory, rows, attention.targets, self._part.ghosts.wire.half
                )
                scores.forward(block, score, state, drawn)
            if keep:
                fetched.append(rows)
        return tuple(fetched) if keep else None

    @collective
    def start_transpose(
        self,
        attention: AttentionInput,
        saved: SoftmaxGradient,
        fetched: tuple[Array, ...] | None,
        gradients: Gradients,
    ) -> Pushing:
        """Start to return the gradients of fetched values to their owners."""
        ghosts, memory = self._part.ghosts, self._part.memory
        scores, targets = attention.scores, attention.targets

        def fill(push: Push) -> None:
            # What was not kept is fetched again: the rematerialisation of the SAR paper. Started
            # here by a sequential schedule, it leaves one window of ghosts in memory and not two.
            fetch = None if fetched is not None else ghosts.start_fetch(attention.values)
            for index, block in enumerate(self._part.push_blocks):
                with self._trace.span("wait.reverse"):
                    rows = fetched[index] if fetch is None and fetched else _stage_of(fetch, index)
                    buffer = push.buffer(index)
                # A push may number the ghosts of a stage otherwise than the fetch of them.
                take = self._reorder[index]
                rows = rows if take is None else rows[take]
                ids = self._ghost_ids[index] if take is None else self._ghost_ids[index][take]
                with self._trace.span("boundary.reverse"):
                    into = _zeros_for(buffer, targets.dtype, memory)
                    shares = Gradients(into, gradients.targets, gradients.weights)
                    drawn = attention.drawn(self._row_ids, ids)
                    score = scores.operands(memory, rows, targets, ghosts.wire.half)
                    blocks = block, block.transposed
                    scores.backward(BackwardWalk(*blocks, score, saved, shares, drawn))
                    store_rows(into, buffer, ghosts.wire.format, memory)
                push.send(index)

        assert gradients.values is not None
        # Own edges may have written gradients of the same rows: what arrives is added, in the order
        # of the plan.
        add = self._part.adding(gradients.values)
        return Pushing(self._part, ghosts.start_push(gradients.values, add, additive=True), fill)


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
    ) -> None:
        assert part.push_blocks is part.blocks, "states are pushed in the numbering of a fetch"
        self._part, self._trace = part, trace
        self._target_ids, self._column_ids = target_ids, column_ids

    @collective
    def start(self, attention: AttentionInput, state: AttentionState) -> Pushing:
        """Start to push the partial states of other ranks' rows; those that arrive join `state`."""
        scores, values, targets = attention.scores, attention.values, attention.targets
        ghosts, heads = self._part.ghosts, scores.heads
        width = scores.result_width(values)
        form, memory = ghosts.wire.format, self._part.memory

        # A finished state is two arrays instead of three, and merges as exactly.
        def merge(rows: LocalIndices, arrived: Array) -> None:
            out, lse = unpack(arrived, [width], [heads], form)
            state.merge_finished(rows, out, lse)

        def fill(push: Push) -> None:
            fetch = ghosts.start_fetch(self._pack_targets(scores, targets))
            for index, block in enumerate(self._part.blocks):
                # Rows that are pushed to belong to others, so their targets come first; additive
                # scores need one logit a head, which is little beside a state.
                their_targets = self._unpack_targets(scores, targets, _stage_of(fetch, index))
                buffer = push.buffer(index)
                with self._trace.span("boundary.reverse"):
                    partial = AttentionState.empty(
                        len(their_targets), heads, width, targets.dtype, memory
                    )
                    drawn = attention.drawn(self._target_ids[index], self._column_ids)
                    score = scores.operands(memory, values, their_targets, ghosts.wire.half)
                    scores.forward(block.transposed, score, partial, drawn)
                    # Finished here and not at the owner: the division by the total needs this state
                    # alone.
                    partial.finish()
                    packed = pack([partial.out], [partial.top], form, memory)
                    store_rows(packed, buffer, form, memory)
                push.send(index)

        columns = packed_width(width, heads, form, targets.dtype)
        like = memory.arrays.empty((0, columns), targets.dtype)
        return Pushing(self._part, ghosts.start_push(like, merge), fill)

    @collective
    def transpose(
        self, attention: AttentionInput, saved: SoftmaxGradient, gradients: Gradients
    ) -> None:
        """Add the gradients of own values, and push those of other ranks' targets to them."""
        scores, values, targets = attention.scores, attention.values, attention.targets
        ghosts, memory = self._part.ghosts, self._part.memory
        form = ghosts.wire.format
        wide, narrow = [saved.grad], [saved.lse, saved.delta]
        # Targets travel last in their group, and are taken off by that place below.
        (narrow if scores.narrow_targets else wide).append(targets)
        # One exchange for all that a row's gradient needs: its edges here are differentiated
        # without another word from its owner.
        fetch = ghosts.start_fetch(pack(wide, narrow, form, memory))
        push = ghosts.start_push(targets, self._part.adding(gradients.targets), additive=True)
        for index, block in enumerate(self._part.blocks):
            rows = _stage_of(fetch, index)
            arrays = unpack(rows, [a.shape[1] for a in wide], [a.shape[1] for a in narrow], form)
            their_targets = arrays.pop() if scores.narrow_targets else arrays.pop(1)
            buffer = push.buffer(index)
            with self._trace.span("boundary.reverse"):
                into = _zeros_for(buffer, targets.dtype, memory)
                shares = Gradients(gradients.values, into, gradients.weights)
                drawn = attention.drawn(self._target_ids[index], self._column_ids)
                their_saved = SoftmaxGradient(arrays[1], arrays[0], arrays[2])
                score = scores.operands(memory, values, their_targets, ghosts.wire.half)
                blocks = block.transposed, block.with_all_rows
                scores.backward(BackwardWalk(*blocks, score, their_saved, shares, drawn))
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


def push_order(part: RemotePart) -> list[LocalIndices | None]:
    """Return, for each stage, where a push's columns are among those of a fetch; None: in order."""
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
    """Return the rows of a stage."""
    assert fetch is not None
    return fetch.stage(index)


def _zeros_for(buffer: Array, dtype: np.dtype[np.generic], memory: Memory) -> FloatArray:
    """Return zeros to add up in: the buffer itself where it has the dtype of sums."""
    if buffer.dtype == dtype:
        buffer[:] = 0
        return buffer
    return memory.arrays.zeros(buffer.shape, dtype)


def store_rows(rows: FloatArray, buffer: Array, half: WireFormat | None, memory: Memory) -> None:
    """Write sums to the buffer that travels, rounded as the wire rounds."""
    if rows is buffer:
        return
    if buffer.dtype == np.uint16:
        assert half is not None
        memory.kernels.gather_rows(rows, None, buffer, half=half)
    else:
        buffer[:] = rows
