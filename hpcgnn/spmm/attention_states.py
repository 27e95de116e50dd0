"""The pushed half of an attention: rows of other ranks attend to values of this rank."""

from hpcgnn.sparse import EdgeDraw, Gradients, Scores, SoftmaxState
from hpcgnn.sparse.softmax import pack, packed_width, unpack
from hpcgnn.spmm.attention_remote import (
    Pushing,
    Saved,
    adding,
    draw_of,
    stage_of,
    store,
    zeros_for,
)
from hpcgnn.spmm.ghosts import Push
from hpcgnn.spmm.remote import RemoteHalf
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices

__all__ = ["PushedStates"]


class PushedStates:
    """``Gᵀ R``: rows of other ranks attend to values of this rank.

    Not collective.

    Parameters
    ----------
    half
        The pattern with own columns as rows and other ranks' rows as ghosts.
    target_ids
        Of `node_ids`.
    column_ids
        (columns,) original ids.
    trace
        Where times are recorded.
    """

    def __init__(
        self,
        half: RemoteHalf,
        target_ids: tuple[GlobalIndices, ...],
        column_ids: GlobalIndices,
        trace: TraceRecorder,
    ) -> None:
        assert half.push_blocks is half.blocks, "states are pushed in the numbering of a fetch"
        self._half, self._trace = half, trace
        self._target_ids, self._column_ids = target_ids, column_ids

    def start(
        self,
        scores: Scores,
        values: FloatArray,
        targets: FloatArray,
        state: SoftmaxState,
        draw: EdgeDraw | None,
    ) -> Pushing:
        """Start to push the partial states of other ranks' rows; those that arrive join `state`.

        Collective.
        """
        ghosts, heads, width = self._half.ghosts, scores.heads, values.shape[1]
        half, memory = ghosts.wire.half, self._half.memory

        def merge(rows: LocalIndices, arrived: Array) -> None:
            out, lse = unpack(arrived, [width], [heads], half)
            state.merge_finished(rows, out, lse)

        def fill(push: Push) -> None:
            fetch = ghosts.start_fetch(self._pack_targets(scores, targets))
            for index, block in enumerate(self._half.blocks):
                theirs = self._unpack_targets(scores, targets, stage_of(fetch, index))
                buffer = push.buffer(index)
                with self._trace.span("boundary.reverse"):
                    partial = SoftmaxState.empty(len(theirs), heads, width, values.dtype, memory)
                    own = draw_of(draw, self._target_ids[index], self._column_ids)
                    scores.forward(block.transposed, values, theirs, partial, own, None)
                    partial.finish()
                    packed = pack([partial.out], [partial.top], half, memory)
                    store(packed, buffer, half, memory)
                push.send(index)

        columns = packed_width(width, heads, half, values.dtype)
        like = memory.arrays.empty((0, columns), values.dtype)
        return Pushing(self._half, ghosts.start_push(like, merge), fill)

    def transpose(
        self,
        scores: Scores,
        values: FloatArray,
        targets: FloatArray,
        saved: Saved,
        found: Gradients,
        draw: EdgeDraw | None,
    ) -> None:
        """Add the gradients of own values, and push those of other ranks' targets to them.

        Collective.
        """
        ghosts, memory = self._half.ghosts, self._half.memory
        half = ghosts.wire.half
        lse, gradient, delta = saved
        wide, narrow = [gradient], [lse, delta]
        (narrow if scores.narrow_targets else wide).append(targets)
        fetch = ghosts.start_fetch(pack(wide, narrow, half, memory))
        push = ghosts.start_push(targets, adding(found.targets, self._half), additive=True)
        for index, block in enumerate(self._half.blocks):
            rows = stage_of(fetch, index)
            arrays = unpack(rows, [a.shape[1] for a in wide], [a.shape[1] for a in narrow], half)
            theirs = arrays.pop() if scores.narrow_targets else arrays.pop(1)
            buffer = push.buffer(index)
            with self._trace.span("boundary.reverse"):
                into = zeros_for(buffer, values.dtype, memory)
                shares = Gradients(found.values, into, found.weights)
                own = draw_of(draw, self._target_ids[index], self._column_ids)
                their_saved = arrays[1], arrays[0], arrays[2]
                blocks = block.transposed, block.with_all_rows
                scores.backward(*blocks, values, theirs, their_saved, shares, own, None)
                store(into, buffer, half, memory)
            push.send(index)
        push.finish()

    def _pack_targets(self, scores: Scores, targets: FloatArray) -> FloatArray:
        if not scores.narrow_targets:
            return targets
        return pack([], [targets], self._half.ghosts.wire.half, self._half.memory)

    def _unpack_targets(self, scores: Scores, targets: FloatArray, rows: Array) -> FloatArray:
        narrow = [targets.shape[1]] if scores.narrow_targets else []
        wide = [] if scores.narrow_targets else [targets.shape[1]]
        return unpack(rows, wide, narrow, self._half.ghosts.wire.half)[0]
