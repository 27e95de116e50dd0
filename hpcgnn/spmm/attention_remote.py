"""The two remote halves of an attention: values that are fetched, and states that are pushed."""

from collections.abc import Callable

import numpy as np

from hpcgnn import kernels
from hpcgnn.kernels.arguments import Half
from hpcgnn.sparse import BlockDraw, EdgeDraw, Gradients, LocalCSR, Scores, SoftmaxState
from hpcgnn.sparse.softmax import pack, packed_width, to_wire, unpack
from hpcgnn.spmm.ghosts import Combine, Fetch, Push
from hpcgnn.spmm.remote import RemoteHalf
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices

__all__ = ["FetchedValues", "PushedStates", "Pushing", "draw_of", "node_ids"]

Saved = tuple[FloatArray, FloatArray, FloatArray]


def node_ids(half: RemoteHalf, ids: GlobalIndices) -> tuple[GlobalIndices, ...]:
    """Return the ids of the ghosts of a half, for each stage of a fetch.

    Collective.
    """
    # Ids stay below 2^53, which float64 rows carry exactly and no wire narrows.
    fetch = half.start_fetch(ids.astype(np.float64)[:, None])
    return tuple(fetch.stage(index)[:, 0].astype(np.int64) for index in range(len(half.blocks)))


def draw_of(
    draw: EdgeDraw | None, row_ids: GlobalIndices, column_ids: GlobalIndices
) -> BlockDraw | None:
    """Return a draw for a block whose nodes have these ids.

    Not collective.
    """
    if draw is None:
        return None
    return BlockDraw(draw, row_ids, column_ids)


class Pushing:
    """A push under way: computed at once, so that other work hides it, or by stages at the end.

    Collective.

    Parameters
    ----------
    half
        What is pushed through.
    push
        Just started.
    fill
        Computes and sends all stages.
    """

    def __init__(self, half: RemoteHalf, push: Push, fill: Callable[[Push], None]) -> None:
        self._push, self._fill, self._late = push, fill, half.ghosts.sequential
        if not self._late:
            fill(push)

    def finish(self) -> None:
        """Take in what all other ranks pushed here.

        Collective.
        """
        if self._late:
            self._fill(self._push)
        self._push.finish()


class FetchedValues:
    """``C F``: rows of this rank attend to values of other ranks.

    Not collective.

    Parameters
    ----------
    half
        C and F.
    row_ids
        (rows,) original ids.
    ghost_ids
        Of `node_ids`.
    trace
        Where times are recorded.
    """

    def __init__(
        self,
        half: RemoteHalf,
        row_ids: GlobalIndices,
        ghost_ids: tuple[GlobalIndices, ...],
        trace: TraceRecorder,
    ) -> None:
        self._half, self._trace = half, trace
        self._row_ids, self._ghost_ids = row_ids, ghost_ids
        self._reorder = _push_order(half)

    def start(self, values: FloatArray, *, keep: bool) -> Fetch:
        """Start to fetch values, to keep them where the schedule is resident.

        Collective.
        """
        ghosts = self._half.ghosts
        return ghosts.start_fetch(values, keep=keep and not ghosts.sequential)

    def attend(
        self,
        fetch: Fetch,
        scores: Scores,
        targets: FloatArray,
        state: SoftmaxState,
        draw: EdgeDraw | None,
        *,
        keep: bool,
    ) -> tuple[Array, ...] | None:
        """Add the edges to the state, stage by stage; return the values that are kept.

        Collective.
        """
        keep = keep and not self._half.ghosts.sequential
        kept = []
        for index, block in enumerate(self._half.blocks):
            with self._trace.span("wait.forward"):
                rows = fetch.stage(index)
            with self._trace.span("boundary.forward"):
                own = draw_of(draw, self._row_ids, self._ghost_ids[index])
                scores.forward(block, rows, targets, state, own, self._half_of(rows))
            if keep:
                kept.append(rows)
        return tuple(kept) if keep else None

    def start_transpose(
        self,
        scores: Scores,
        values: FloatArray,
        targets: FloatArray,
        saved: Saved,
        kept: tuple[Array, ...] | None,
        found: Gradients,
        draw: EdgeDraw | None,
    ) -> Pushing:
        """Start to return the gradients of fetched values to their owners.

        Collective.
        """
        ghosts = self._half.ghosts

        def fill(push: Push) -> None:
            fetch = None if kept is not None else ghosts.start_fetch(values)
            for index, block in enumerate(self._half.push_blocks):
                with self._trace.span("wait.reverse"):
                    rows = kept[index] if fetch is None and kept else _stage(fetch, index)
                    buffer = push.buffer(index)
                take = self._reorder[index]
                rows = rows if take is None else rows[take]
                ids = self._ghost_ids[index] if take is None else self._ghost_ids[index][take]
                with self._trace.span("boundary.reverse"):
                    into = _zeros_for(buffer, values.dtype)
                    shares = Gradients(into, found.targets, found.weights)
                    own, half = draw_of(draw, self._row_ids, ids), self._half_of(rows)
                    scores.backward(block.transposed, rows, targets, saved, shares, own, half)
                    _store(into, buffer, ghosts.wire.half)
                push.send(index)

        add = _adding(found.values, ghosts.wire.half)
        return Pushing(self._half, ghosts.start_push(values, add, additive=True), fill)

    def _half_of(self, rows: Array) -> Half | None:
        return self._half.ghosts.wire.half if rows.dtype == np.uint16 else None


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
        half = ghosts.wire.half

        def merge(rows: LocalIndices, arrived: Array) -> None:
            out, lse = unpack(arrived, [width], [heads], half)
            state.merge_finished(rows, out, lse)

        def fill(push: Push) -> None:
            fetch = ghosts.start_fetch(self._pack_targets(scores, targets))
            for index, block in enumerate(self._half.blocks):
                theirs = self._unpack_targets(scores, targets, _stage(fetch, index))
                buffer = push.buffer(index)
                with self._trace.span("boundary.reverse"):
                    partial = SoftmaxState.empty(len(theirs), heads, width, values.dtype)
                    own = draw_of(draw, self._target_ids[index], self._column_ids)
                    scores.forward(block.transposed, values, theirs, partial, own, None)
                    partial.finish()
                    _store(pack([partial.out], [partial.top], half), buffer, half)
                push.send(index)

        columns = packed_width(width, heads, half, values.dtype)
        like = np.empty((0, columns), values.dtype)
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
        ghosts, half = self._half.ghosts, self._half.ghosts.wire.half
        lse, gradient, delta = saved
        wide, narrow = [gradient], [lse, delta]
        (narrow if scores.narrow_targets else wide).append(targets)
        fetch = ghosts.start_fetch(pack(wide, narrow, half))
        push = ghosts.start_push(targets, _adding(found.targets, half), additive=True)
        for index, block in enumerate(self._half.blocks):
            rows = _stage(fetch, index)
            arrays = unpack(rows, [a.shape[1] for a in wide], [a.shape[1] for a in narrow], half)
            theirs = arrays.pop() if scores.narrow_targets else arrays.pop(1)
            buffer = push.buffer(index)
            with self._trace.span("boundary.reverse"):
                into = _zeros_for(buffer, values.dtype)
                shares = Gradients(found.values, into, found.weights)
                own = draw_of(draw, self._target_ids[index], self._column_ids)
                their_saved = arrays[1], arrays[0], arrays[2]
                scores.backward(_every_row(block), values, theirs, their_saved, shares, own, None)
                _store(into, buffer, half)
            push.send(index)
        push.finish()

    def _pack_targets(self, scores: Scores, targets: FloatArray) -> FloatArray:
        half = self._half.ghosts.wire.half
        return pack([], [targets], half) if scores.narrow_targets else targets

    def _unpack_targets(self, scores: Scores, targets: FloatArray, rows: Array) -> FloatArray:
        narrow = [targets.shape[1]] if scores.narrow_targets else []
        wide = [] if scores.narrow_targets else [targets.shape[1]]
        return unpack(rows, wide, narrow, self._half.ghosts.wire.half)[0]


def _stage(fetch: Fetch | None, index: int) -> Array:
    assert fetch is not None
    return fetch.stage(index)


def _adding(out: FloatArray, half: Half | None) -> Combine:
    def add(rows: LocalIndices, arrived: Array) -> None:
        kernels.scatter_add_rows(arrived, rows, out, half=half)

    return add


def _zeros_for(buffer: Array, dtype: np.dtype[np.generic]) -> FloatArray:
    """Return zeros to add up in: the buffer itself where it has the dtype of sums."""
    if buffer.dtype == dtype:
        buffer[:] = 0
        return buffer
    return np.zeros(buffer.shape, dtype)


def _store(rows: FloatArray, buffer: Array, half: Half | None) -> None:
    if rows is buffer:
        return
    if buffer.dtype == np.uint16:
        assert half is not None
        buffer[:] = to_wire(rows, half)
    else:
        buffer[:] = rows


def _every_row(block: LocalCSR) -> LocalCSR:
    """Return the same matrix with all of its rows stored."""
    if block.rows is None:
        return block
    counts = np.zeros(block.shape[0], np.int64)
    counts[block.rows] = np.diff(block.indptr)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return LocalCSR(indptr, block.indices, block.values, block.shape)


def _push_order(half: RemoteHalf) -> list[LocalIndices | None]:
    """Return, for each stage, where a push's columns are among those of a fetch; None: in order."""
    if half.push_blocks is half.blocks:
        return [None] * len(half.blocks)
    assert len(half.push_blocks) == len(half.blocks)
    order: list[LocalIndices | None] = []
    for index in range(len(half.blocks)):
        fetched, pushed = half.ghosts.ghosts_of(index), half.ghosts.push_ghosts_of(index)
        found = np.full(max(fetched.max(initial=-1), pushed.max(initial=-1)) + 1, -1, np.int32)
        known = np.flatnonzero(fetched >= 0).astype(np.int32)
        found[fetched[known]] = known
        take = found[pushed]
        assert take.min(initial=0) >= 0, "a pushed ghost was not fetched"
        order.append(take)
    return order
