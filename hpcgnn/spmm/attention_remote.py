"""What the two remote halves of an attention share: ids of ghosts, draws, buffers and pushes."""

from collections.abc import Callable

import numpy as np

from hpcgnn.kernels.arguments import Half
from hpcgnn.sparse import BlockDraw, EdgeDraw, Memory
from hpcgnn.spmm.ghosts import Combine, Fetch, Push
from hpcgnn.spmm.remote import RemoteHalf
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices

__all__ = ["Pushing", "Saved", "adding", "draw_of", "node_ids", "stage_of", "store", "zeros_for"]

Saved = tuple[FloatArray, FloatArray, FloatArray]
"""Log-sum-exps, the gradient of the result, and their inner products; see `Scores.backward`."""


def node_ids(half: RemoteHalf, ids: GlobalIndices) -> tuple[GlobalIndices, ...]:
    """Return the ids of the ghosts of a half, for each stage of a fetch.

    Collective.
    """
    # Ids stay below 2^53, which float64 rows carry exactly and no wire narrows.
    fetch = half.start_fetch(half.memory.put(ids.astype(np.float64)[:, None]))
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


def stage_of(fetch: Fetch | None, index: int) -> Array:
    """Return the rows of a stage.

    Collective.
    """
    assert fetch is not None
    return fetch.stage(index)


def adding(out: FloatArray, half: RemoteHalf) -> Combine:
    """Return what adds arriving rows to `out`.

    Not collective.
    """
    wire, kernels = half.ghosts.wire, half.memory.kernels

    def add(rows: LocalIndices, arrived: Array) -> None:
        kernels.scatter_add_rows(arrived, rows, out, half=wire.half)

    return add


def zeros_for(buffer: Array, dtype: np.dtype[np.generic], memory: Memory) -> FloatArray:
    """Return zeros to add up in: the buffer itself where it has the dtype of sums.

    Not collective.
    """
    if buffer.dtype == dtype:
        buffer[:] = 0
        return buffer
    made: FloatArray = memory.arrays.zeros(buffer.shape, dtype)
    return made


def store(rows: FloatArray, buffer: Array, half: Half | None, memory: Memory) -> None:
    """Write sums to the buffer that travels, rounded as the wire rounds.

    Not collective.
    """
    if rows is buffer:
        return
    if buffer.dtype == np.uint16:
        assert half is not None
        memory.kernels.gather_rows(rows, None, buffer, half=half)
    else:
        buffer[:] = rows
