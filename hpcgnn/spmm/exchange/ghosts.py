"""The interface of ghost exchanges, which do the communication of a product.

A ghost exchange knows which global nodes this rank needs (its *ghosts*) and their owners. A fetch
delivers their rows; a push, its adjoint, returns one row for each ghost to the owner, which
combines what arrives, by addition in a linear product. Both go through *stages*, each a subset of
the ghosts with its own numbering, so that an exchange need not hold everything in memory.

At most one fetch and one push of a grid are under way at a time; in a sequential exchange both have
the same stages. A product frees its fetch before the first stage of its push, so that only one of
them holds ghosts. A gradient that needs a stage's rows to compute its sums goes through both stage
by stage.
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
    """Shared by all exchanges of a run: the grid, the wire format, the schedule and the carrier.

    `node_ids` (num_local,) int64 are the nodes' original ids, which determine the draws of
    stochastic rounding; None: global row numbers do.
    """

    grid: ProcessGrid
    wire: Wire
    schedule: Schedule
    carrier: Carrier
    trace: TraceRecorder
    peers: Peers
    node_ids: GlobalIndices | None = None


class Fetch(Protocol):
    """A fetch under way; its stages must be taken in order."""

    @neighborwise_collective
    def stage(self, index: int) -> Array:
        """Return the ghost rows (columns of the stage, width).

        Rows of a sequential exchange are valid until the next stage. Others are valid until the
        next fetch or, if the fetch was started with `keep`, as long as they are referenced.
        """


class Push(Protocol):
    """A push under way; its stages must be filled and sent in order."""

    @neighborwise_collective
    def buffer(self, index: int) -> Array:
        """Return the array (ghosts of the stage, width) to fill with partial sums."""

    @neighborwise_collective
    def send(self, index: int) -> None:
        """Start to return the partial sums of a stage to their owners."""

    @collective
    def finish(self) -> None:
        """Wait for everything that has not arrived yet and combine it."""


class GhostExchange(Protocol):
    """A way to move rows of ghosts; arrays are in the memory of its carrier."""

    carrier: Carrier
    wire: Wire
    push_wire: Wire
    """The wire format of partial sums."""
    sequential: bool
    """Whether stages come one by one, and a push combines arrivals before `finish`."""
    columns: StageColumns
    """The stage and the column of each ghost in a fetch."""
    push_columns: StageColumns
    """The same in a push; the same object if it has the stages of a fetch."""

    @property
    def plan(self) -> CommPlan | None:
        """The plan of its messages; None if rows travel in another way."""

    @collective
    def start_fetch(self, x: Array, *, keep: bool = False, columns: Packing | None = None) -> Fetch:
        """Start to deliver ghost rows of `x` (num_rows, width).

        If the wire packs rows, `columns` tells how; None: all columns alike, drawn for the current
        product. Raises ValueError for `keep` with a sequential exchange.
        """

    @collective
    def start_push(self, like: Array, combine: Combine, columns: Packing | None = None) -> Push:
        """Start the adjoint for rows of the width and dtype of `like`; `columns` as in a fetch.

        `combine` is called with what arrives here, inside `Push.finish` and, in a sequential
        exchange, inside `Push.buffer` and `Push.send` too. Raises ValueError if it does not add and
        the exchange can only push sums.
        """

    def volume(self) -> Volume:
        """Return the rows of one fetch; a push moves the same rows the other way."""


GhostFactory: TypeAlias = Callable[[Channel, Ghosts], GhostExchange]
"""Makes a ghost exchange. Collective."""
