"""What exchanges in stages share: blocks cut by columns, buffers used in turn, arrivals."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import Stage
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Pool
from hpcgnn.spmm.ghosts import Combine
from hpcgnn.typing import Array, LocalIndices

__all__ = ["Slots", "combine_stage", "split_columns"]


class Slots:
    """Buffers for stages, of which `window` are in memory at one time.

    Not collective.

    Parameters
    ----------
    pool
        Lends the memory.
    sizes
        Rows of each stage.
    window
        Stage i and stage ``i + window`` have the same memory.
    width, dtype
        Of the rows.
    ghosts
        As for `Pool.take`.
    """

    def __init__(
        self,
        pool: Pool,
        sizes: Sequence[int],
        window: int,
        width: int,
        dtype: DTypeLike,
        *,
        ghosts: bool = False,
    ) -> None:
        self._sizes, self._window = sizes, window
        self._buffers = [
            pool.take((max(sizes[slot::window]), width), dtype, ghosts=ghosts)
            for slot in range(min(window, len(sizes)))
        ]

    def rows(self, index: int) -> Array:
        """Return the rows (rows of the stage, width) of stage `index`.

        Not collective.
        """
        return self._buffers[index % self._window][: self._sizes[index]]


def split_columns(
    block: LocalCSR, stages: LocalIndices, columns: LocalIndices, widths: Sequence[int]
) -> tuple[LocalCSR, ...]:
    """Return the block cut into stages of its columns.

    Not collective.

    Parameters
    ----------
    block
        The entries.
    stages
        (columns,) int32: the stage of each column, -1 to leave its entries out.
    columns
        (columns,) int32: its number in that stage.
    widths
        Columns of each stage.
    """
    entry_stages = stages[block.indices]
    order = np.argsort(entry_stages, kind="stable")
    ends = np.cumsum(np.bincount(entry_stages + 1, minlength=len(widths) + 1))
    rows = block.entry_rows()
    parts, start = [], int(ends[0])
    for width, stop in zip(widths, ends[1:].tolist(), strict=True):
        chosen = order[start:stop]
        stage_rows = rows[chosen]
        first = np.flatnonzero(np.diff(stage_rows, prepend=-1))
        parts.append(
            LocalCSR(
                np.append(first, len(chosen)),
                columns[block.indices[chosen]],
                None if block.values is None else block.values[chosen],
                (block.shape[0], width),
                stage_rows[first],
            )
        )
        start = stop
    return tuple(parts)


def combine_stage(send_rows: LocalIndices, stage: Stage, arrived: Array, combine: Combine) -> None:
    """Hand what a stage brought to the owner's side to `combine`, peer by peer.

    Not collective.

    Parameters
    ----------
    send_rows
        Of the plan, where the rows are.
    stage
        Of the plan.
    arrived
        (own rows of the stage, width).
    combine
        Takes it in.
    """
    first = 0
    for message in stage.owned:
        rows = send_rows[message.rows]
        combine(rows, arrived[first : first + len(rows)])
        first += len(rows)
