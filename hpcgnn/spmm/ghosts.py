"""Moving the rows of a list of ghosts: the part of a product that communicates.

A ghost exchange knows which global nodes this rank needs (its *ghosts*) and who owns them. A fetch
delivers their rows; a push, its adjoint, takes one row for each ghost back to the owner, who
combines what arrives, by addition in a linear product. Both go by *stages*, each a subset of the
ghosts with its own numbering, so that an exchange may keep less than everything in memory.

At most one fetch and one push of a grid are under way at a time. Where an exchange is sequential
both have the same stages. A product lets go of its fetch before the first stage of its push, so
that only one of them holds ghosts; a gradient that needs a stage's rows to fill its sums takes both
stage by stage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap, Volume
from hpcgnn.kernels.arguments import Half
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

__all__ = ["Combine", "Fetch", "GhostExchange", "Ghosts", "Push", "Wire"]

Combine: TypeAlias = Callable[[LocalIndices, Array], None]
"""Takes ``(rows, arrived)`` on the owner's side: int32 rows of the owner's array, and what one
other rank pushed to each, (len(rows), width) in the dtype of `like` or of the wire. Rows repeat
between calls, never inside one. Calls come in an order that depends on the plan alone, not on
timing."""


@dataclass(frozen=True)
class Wire:
    """How a number travels: in the dtype of the arrays, or as a 16-bit float.

    Products read 16-bit ghosts directly and accumulate in float32; partial sums are rounded once,
    when they are sent.
    """

    half: Half | None = None

    def dtype(self, like: Array) -> np.dtype[np.generic]:
        """Return the dtype of buffers for rows of `like`; float64 rows are never narrowed."""
        narrow = self.half is not None and like.dtype == np.float32
        return np.dtype(np.uint16) if narrow else like.dtype


@dataclass(frozen=True, eq=False)
class Ghosts:
    """What a ghost exchange is made for.

    Parameters
    ----------
    row_map
        Owners of the nodes.
    nodes
        (num_ghosts,) int64 increasing global nodes of other ranks.
    positions
        (num_local,) int32: the row of each local node in the arrays that are fetched from and
        pushed to, -1 for none; None when they hold all local nodes in order.
    num_rows
        Rows of those arrays on this rank.
    """

    row_map: RowMap
    nodes: GlobalIndices
    positions: LocalIndices | None
    num_rows: int

    def make_plan(self, grid: ProcessGrid) -> CommPlan:
        """Return who sends which rows to whom.

        Collective.
        """
        return CommPlan.from_ghosts(grid, self.row_map, self.nodes, self.positions)


class Fetch(Protocol):
    """A fetch under way; stages are taken in order."""

    def stage(self, index: int) -> Array:
        """Return the ghost rows (columns of the stage, width).

        Collective.

        Rows of a sequential exchange are valid until the next stage. Others are valid until the
        next fetch, and for as long as the caller keeps them if the fetch was started with `keep`.
        """
        ...


class Push(Protocol):
    """A push under way; stages are filled and sent in order."""

    def buffer(self, index: int) -> Array:
        """Return the array (ghosts of the stage, width) that takes the partial sums.

        Collective.
        """
        ...

    def send(self, index: int) -> None:
        """Start to return the partial sums of a stage to their owners.

        Collective.
        """
        ...

    def finish(self) -> None:
        """Combine what is still to arrive.

        Collective.
        """
        ...


class GhostExchange(Protocol):
    """A way to move rows of ghosts; the arrays are where its carrier says."""

    wire: Wire
    carrier: Carrier

    @property
    def sequential(self) -> bool:
        """Whether stages are few ghosts at a time, and a push combines before it is finished."""
        ...

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block with a column for each ghost, by stages, in the stages' numberings.

        Not collective.
        """
        ...

    def split_push(self, block: LocalCSR) -> tuple[LocalCSR, ...] | None:
        """Return the block by stages as a push takes it; None where that is `split`.

        Not collective.
        """
        ...

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each column of a stage of `split` is.

        Not collective.

        Returns
        -------
        array
            (columns of the stage,) int32 positions in the ghosts that the exchange was made for; -1
            for a column that no entry of this rank's block has.
        """
        ...

    def push_ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each column of a stage of `split_push` is, like `ghosts_of`.

        Not collective.
        """
        ...

    def start_fetch(self, x: Array, *, keep: bool = False) -> Fetch:
        """Start to deliver ghost rows of `x` (num_rows, width).

        Collective.

        Raises
        ------
        ValueError
            When a sequential exchange should `keep` them.
        """
        ...

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> Push:
        """Start the adjoint for rows of the width and dtype of `like`.

        Collective.

        Parameters
        ----------
        like
            An array of that width and dtype.
        combine
            Takes in what arrives here. It is called inside `Push.finish`, and with a sequential
            exchange inside `Push.buffer` and `Push.send` too.
        additive
            Whether `combine` adds, so that partial sums may be added up on their way.

        Raises
        ------
        ValueError
            When the exchange can only push sums, and `combine` does something else.
        """
        ...

    def volume(self) -> Volume:
        """Return the rows of one fetch; a push moves the same rows the other way.

        Not collective.
        """
        ...
