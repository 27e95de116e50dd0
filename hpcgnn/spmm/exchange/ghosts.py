"""Moving the rows of a list of ghosts: the part of a product that communicates.

A ghost exchange knows which global nodes this rank needs (its *ghosts*) and who owns them. A fetch
delivers their rows; a push, its adjoint, takes one row for each ghost back to the owner, who
combines what arrives, by addition in a linear product. Both go by *stages*, each a subset of the
ghosts with its own numbering, so that an exchange may keep less than everything in memory.

At most one fetch and one push of a grid are under way at a time. Where an exchange is sequential
both have the same stages. A product frees its fetch before the first stage of its push, so
that only one of them holds ghosts; a gradient that needs a stage's rows to fill its sums takes both
stage by stage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hpcgnn.comm import CommPlan, ProcessGrid, Volume
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.exchange.peers import Ghosts, Peers
from hpcgnn.spmm.exchange.stages import Combine, StageColumns
from hpcgnn.spmm.schedule import Schedule
from hpcgnn.spmm.wire import Packing, Wire
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices


@dataclass(frozen=True, eq=False)
class Channel:
    """How rows travel between the ranks of a grid; what all exchanges of a run share.

    A replica moves only what its block columns need. `node_ids` (num_local,) int64 are original
    ids, which rows that are rounded at random are named by; None: numbers of nodes in the whole
    matrix.
    """

    grid: ProcessGrid
    wire: Wire
    schedule: Schedule
    carrier: Carrier
    trace: TraceRecorder
    peers: Peers
    node_ids: GlobalIndices | None = None


class Fetch(Protocol):
    """A fetch under way; stages are taken in order."""

    @neighborwise_collective
    def stage(self, index: int) -> Array:
        """Return the ghost rows (columns of the stage, width).

        Rows of a sequential exchange are valid until the next stage. Others are valid until the
        next fetch, and for as long as the caller keeps them if the fetch was started with `keep`.
        """


class Push(Protocol):
    """A push under way; stages are filled and sent in order."""

    @neighborwise_collective
    def buffer(self, index: int) -> Array:
        """Return the array (ghosts of the stage, width) that takes the partial sums."""

    @neighborwise_collective
    def send(self, index: int) -> None:
        """Start to return the partial sums of a stage to their owners."""

    @collective
    def finish(self) -> None:
        """Combine what is still to arrive."""


class GhostExchange(Protocol):
    """A way to move rows of ghosts; the arrays are where its carrier says."""

    carrier: Carrier
    wire: Wire
    push_wire: Wire
    """How partial sums travel."""
    sequential: bool
    """Whether stages are few ghosts at a time, and a push combines before it is finished."""
    columns: StageColumns
    """The columns of a fetch: where the row of each ghost stands."""
    push_columns: StageColumns
    """The columns of a push; the same object where it has the stages of a fetch."""

    @property
    def plan(self) -> CommPlan | None:
        """Who sends which rows to whom in messages; None: they travel otherwise."""

    @collective
    def start_fetch(self, x: Array, *, keep: bool = False, columns: Packing | None = None) -> Fetch:
        """Start to deliver ghost rows of `x` (num_rows, width).

        `columns` are packed as they say, where the wire packs rows; None: all alike, drawn now.
        Raises ValueError when a sequential exchange should `keep` them.
        """

    @collective
    def start_push(self, like: Array, combine: Combine, columns: Packing | None = None) -> Push:
        """Start the adjoint for rows of the width and dtype of `like`; `columns` as of a fetch.

        `combine` takes in what arrives here. It is called inside `Push.finish`, and with a
        sequential exchange inside `Push.buffer` and `Push.send` too. Raises ValueError when the
        exchange can only push sums, and it does something else.
        """

    def volume(self) -> Volume:
        """Return the rows of one fetch; a push moves the same rows the other way."""


GhostFactory: TypeAlias = Callable[[Channel, Ghosts], GhostExchange]
"""Makes a ghost exchange; collective."""
