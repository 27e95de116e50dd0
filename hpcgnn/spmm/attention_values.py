"""The fetched half of an attention: rows of this rank attend to values of other ranks."""

import numpy as np

from hpcgnn.kernels.arguments import Half
from hpcgnn.sparse import EdgeDraw, Gradients, Scores, SoftmaxState
from hpcgnn.spmm.attention_remote import (
    Pushing,
    Saved,
    adding,
    draw_of,
    stage_of,
    store,
    zeros_for,
)
from hpcgnn.spmm.ghosts import Fetch, Push
from hpcgnn.spmm.remote import RemoteHalf
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices

__all__ = ["FetchedValues"]


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
        put = half.memory.put
        self._reorder = [each if each is None else put(each) for each in _push_order(half)]

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
        ghosts, memory = self._half.ghosts, self._half.memory

        def fill(push: Push) -> None:
            fetch = None if kept is not None else ghosts.start_fetch(values)
            for index, block in enumerate(self._half.push_blocks):
                with self._trace.span("wait.reverse"):
                    rows = kept[index] if fetch is None and kept else stage_of(fetch, index)
                    buffer = push.buffer(index)
                take = self._reorder[index]
                rows = rows if take is None else rows[take]
                ids = self._ghost_ids[index] if take is None else self._ghost_ids[index][take]
                with self._trace.span("boundary.reverse"):
                    into = zeros_for(buffer, values.dtype, memory)
                    shares = Gradients(into, found.targets, found.weights)
                    own, half = draw_of(draw, self._row_ids, ids), self._half_of(rows)
                    blocks = block, block.transposed
                    scores.backward(*blocks, rows, targets, saved, shares, own, half)
                    store(into, buffer, ghosts.wire.half, memory)
                push.send(index)

        add = adding(found.values, self._half)
        return Pushing(self._half, ghosts.start_push(values, add, additive=True), fill)

    def _half_of(self, rows: Array) -> Half | None:
        return self._half.ghosts.wire.half if rows.dtype == np.uint16 else None


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
