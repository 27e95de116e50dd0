"""The process grid of 1.5D products: block rows times replicas.

With p ranks and replication c the matrix is cut into p/c block rows, and each block row, with its
dense rows, lives on c ranks. A replica multiplies only its share of the off-diagonal blocks, then
the replicas of a block row add up their results::

    replication 2, 6 ranks            rank = block · c + replica

                 replica 0  replica 1
      block 0        0          1        <- `replicas`: same rows, sum of partial products
      block 1        2          3
      block 2        4          5
                     ^
                     `layer`: one rank a block; rows travel only inside a layer

Replication 1 is the 1D algorithm. Consecutive ranks are replicas, because launchers place them on
one host and the sum over replicas is the densest traffic.

Without replication, ranks can be split into groups, each a layer with the whole matrix: with b
block rows, group g has the ranks ``g b`` to ``g b + b - 1``. Groups compute separate products; only
their gradients are added up.
"""

import platform
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from time import perf_counter

import numpy as np

from hpcgnn.comm.buffers import BufferPool
from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.comm.neighbourhoods import Neighbourhoods
from hpcgnn.comm.progress import MessageProgress
from hpcgnn.comm.run_position import RunPosition
from hpcgnn.comm.shared_window import SharedWindow
from hpcgnn.comm.transfer import allreduce_max, allreduce_sum, start_broadcast
from hpcgnn.errors import CollectiveInputError
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, LocalIndices


@dataclass(frozen=True, eq=False)
class GridPosition:
    """The position of a rank in a grid.

    `hosts` (num_blocks,) int32 is the host of each rank of its layer, in the first of `groups`.
    """

    num_blocks: int
    replication: int
    block: int
    replica: int
    hosts: LocalIndices
    groups: int = 1


_PIECE_S = 3e-4
"""Link time of a piece. Computing while rows of few columns travel takes about a millisecond, and
only rows of complete pieces can be used."""
_PIECE_BYTES = 1 << 13, 1 << 15
"""Smallest piece, since each costs a call, and largest: TCP delivers this much before the receiver
says that it is ready, so it arrives while the receiver computes."""
_FAST = 1e9
"""Bytes a second from which messages are not cut: a piece takes 33 us, and starting one about 5."""


class ProcessGrid:
    """Ranks arranged as `num_blocks` block rows times `replication` replicas.

    It owns its communicators. Use as a context manager, or call `close` on all ranks: freeing them
    is collective, and a garbage collector runs at different times on different ranks. It also owns
    `buffers`, the memory of all exchanges, `run_position`, and `progress`, which keeps messages
    moving while its rank computes. `host_names` are the hosts of all its ranks; they are compared
    by name, since the shared-memory split of some MPI builds reports every rank as alone.

    `comm` is duplicated. `host` names this rank's host; None asks the system. `position` lets this
    process rehearse a rank of a grid whose other ranks do not exist; None: it is its own rank in
    `comm`. `groups` excludes replication. Raises `CollectiveInputError` if `replication` or
    `groups` does not divide the number of ranks.
    """

    @collective
    def __init__(
        self,
        comm: Communicator,
        replication: int = 1,
        host: str | None = None,
        position: GridPosition | None = None,
        groups: int = 1,
    ) -> None:
        divisors = [c for c in range(1, comm.size + 1) if comm.size % c == 0]
        for text, divisor in (
            (f"{groups} groups do not divide", groups),
            (f"replication {replication} does not divide", replication),
        ):
            if divisor not in divisors:
                fault = f"{text} the {comm.size} ranks; choose one of {divisors}"
                raise CollectiveInputError(fault)
        self.world = comm.Dup()
        self.replication, self._position = replication, position
        self.groups, self.num_blocks = groups, comm.size // (replication * groups)
        self.group, inside = divmod(comm.rank, self.num_blocks * replication)
        self.block, self.replica = divmod(inside, replication)
        if position is not None:
            self.replication, self.num_blocks = position.replication, position.num_blocks
            self.groups = position.groups
            self.block, self.replica = position.block, position.replica
        self.host = host if host is not None else platform.node()
        self.host_names: list[str] = self.world.allgather(self.host)
        self.buffers, self.run_position = BufferPool(), RunPosition()
        self.progress = MessageProgress()
        self._shared_window: SharedWindow | None = None
        self._alone: ProcessGrid | None = None
        self._unreplicated: ProcessGrid | None = None
        self._other_replicas: MPI.Distgraphcomm | None = None
        self.layer = MPI.Intracomm(
            self.world.Split(color=self.group * replication + self.replica, key=self.block)
        )
        self.replicas: Communicator = MPI.COMM_SELF
        if replication > 1:
            self.replicas = MPI.Intracomm(self.world.Split(color=self.block, key=self.replica))
        self._neighbourhoods = Neighbourhoods(self.layer)

    @classmethod
    def of_this_process(cls) -> "ProcessGrid":
        """Return a grid of one rank."""
        return cls(MPI.COMM_SELF)

    @property
    def rank(self) -> int:
        """Rank in the whole grid."""
        return self.world.rank

    @property
    def size(self) -> int:
        """Number of ranks in the whole grid."""
        return self.world.size

    @property
    def learners(self) -> Communicator:
        """The ranks whose gradients are added: those of all groups, one replica of each."""
        return self.layer if self.groups == 1 else self.world

    def handles(self, peer: int) -> bool:
        """Whether this replica multiplies the blocks in block column `peer`.

        Block columns are dealt cyclically, so any replication that divides p works, and all ranks
        of a layer agree on which dense rows travel in it.
        """
        return peer % self.replication == self.replica

    @collective
    def sum_over_blocks(self, share: Array) -> None:
        """Replace `share` (any shape) by the sum over the block rows; replicas count once."""
        allreduce_sum(self.layer, share)

    @cached_property
    def hosts(self) -> LocalIndices:
        """(num_blocks,) int32 host of each rank of this layer, numbered by their first ranks."""
        if self._position is not None:
            return self._position.hosts
        first = self.rank - self.block * self.replication
        names = self.host_names[first :: self.replication][: self.num_blocks]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return np.array([numbers[name] for name in names], np.int32)

    @cached_property
    @collective
    def piece_bytes(self) -> Array:
        """(num_blocks,) int64 the most bytes one request moves to or from each rank of this layer.

        The first use is collective and measures the links between hosts.
        """
        limits = np.full(self.num_blocks, np.iinfo(np.int64).max)
        away = self.hosts != self.hosts[self.block]
        if self._position is None and self.hosts.any():
            bandwidth, (least, most) = _ring_bandwidth(self.layer), _PIECE_BYTES
            if bandwidth < _FAST:
                limits[away] = min(max(round(bandwidth * _PIECE_S), least), most)
        return limits

    @property
    def local_rank(self) -> int:
        """Number of lower ranks of the whole grid on the same host."""
        return self.host_names[: self.rank].count(self.host)

    @collective
    def shared_window(self) -> SharedWindow:
        """Return the memory shared by the ranks of this layer on this host.

        The first use is collective; `close` frees it.
        """
        if self._shared_window is None:
            host = int(self.hosts[self.block])
            comm = MPI.Intracomm(self.layer.Split(color=host, key=self.layer.rank))
            self._shared_window = SharedWindow(comm, zeroed=self._position is not None)
        return self._shared_window

    def alone(self) -> "ProcessGrid":
        """Return a grid of this rank only, for matrices that only this rank has.

        Not collective; `close` frees it.
        """
        if self._alone is None:
            self._alone = ProcessGrid(MPI.COMM_SELF, host=self.host)
        return self._alone

    @collective
    def unreplicated(self) -> "ProcessGrid":
        """Return a grid of this layer, for work that each replica or group does on its own.

        It is this grid itself if there is one replica and one group; otherwise the first use is
        collective, `close` frees it, and it shares `buffers` and `run_position`.
        """
        if self.replication == self.groups == 1:
            return self
        if self._unreplicated is None:
            position = self._position and replace(
                self._position, replication=1, replica=0, groups=1
            )
            grid = ProcessGrid(self.layer, host=self.host, position=position)
            grid.buffers, grid.run_position = self.buffers, self.run_position
            self._unreplicated = grid
        return self._unreplicated

    @collective
    def neighbourhood(self, peers: LocalIndices) -> "MPI.Distgraphcomm":
        """Return a communicator of the layer whose neighbours are `peers`, in both directions.

        Collective. It has no other user while the returned object lives; later it is reused, or
        freed, at the latest by `close`. `peers` (neighbours,) are int32 ascending ranks of the
        layer; if rank a names b, b must name a.
        """
        return self._neighbourhoods.of(peers)

    @collective
    def other_replicas(self) -> "MPI.Distgraphcomm":
        """Return a communicator of the replicas in which all others are neighbours.

        The first use is collective; `close` frees it.
        """
        if self._other_replicas is None:
            others = [
                replica for replica in range(self.replicas.size) if replica != self.replicas.rank
            ]
            self._other_replicas = self.replicas.Create_dist_graph_adjacent(others, others)
        return self._other_replicas

    @collective
    def close(self) -> None:
        """Free the communicators; plans made on this grid cannot be used afterwards."""
        for other in (self._alone, self._unreplicated):
            if other is not None:
                other.close()
        if self._shared_window is not None:
            self._shared_window.close()
            self._shared_window.comm.Free()
        self._neighbourhoods.close()
        for comm in (self._other_replicas, self.replicas, self.layer, self.world):
            if comm is not None and comm not in (MPI.COMM_NULL, MPI.COMM_SELF):
                comm.Free()

    def __enter__(self) -> "ProcessGrid":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A rank that fails alone must not wait for the others in a collective.
        if kind is None:
            self.close()


@collective
def _ring_bandwidth(comm: Communicator) -> float:
    """Return the bytes a second from each rank to the next, of the slowest pair."""
    sent, received = np.zeros((2, 4 * _PIECE_BYTES[1]), np.uint8)
    after, before = ((comm.rank + shift) % comm.size for shift in (1, -1))
    seconds = []
    # The first message sets up connections and buffers; the median ignores it.
    for _ in range(4):
        comm.Barrier()
        began = perf_counter()
        comm.Sendrecv(sent, after, recvbuf=received, source=before)
        seconds.append(perf_counter() - began)
    # Links with a burst allowance take the first messages at once.
    slowest = np.array([median(seconds)])
    allreduce_max(comm, slowest)
    return float(sent.nbytes / slowest[0])


@collective
def share_on_hosts(grid: ProcessGrid, name: str, share: Array) -> Array:
    """Concatenate the arrays of all block rows in memory shared by each host.

    `share` (rows, width) or (rows,) belongs to this block row; dtype and width are equal on all
    ranks. `name` must not be used for another array while this one is.
    """
    rows = share[:, None] if share.ndim == 1 else share
    counts = grid.layer.allgather(len(rows))
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if grid.layer.size == 1:
        return share
    memory = grid.shared_window()
    whole = memory.get(name, (int(starts[-1]), rows.shape[1]), rows.dtype)
    whole[starts[grid.block] : starts[grid.block + 1]] = rows
    if grid.hosts.max() > 0:
        memory.synchronise(name)
        _share_between_hosts(grid, whole, starts)
    memory.synchronise(name)
    return whole.reshape(-1) if share.ndim == 1 else whole


def _share_between_hosts(grid: ProcessGrid, whole: Array, starts: Array) -> None:
    """Send every block row from the first rank of its host to those of all other hosts."""
    is_first = grid.hosts[grid.block] not in grid.hosts[: grid.block]
    # Ranks of this communicator are host numbers, since hosts are numbered by their first ranks.
    leaders = grid.layer.Split(0 if is_first else MPI.UNDEFINED, key=grid.layer.rank)
    if leaders == MPI.COMM_NULL:
        return
    comm = MPI.Intracomm(leaders)
    for block, host in enumerate(grid.hosts.tolist()):
        rows = whole[starts[block] : starts[block + 1]].reshape(-1)
        start_broadcast(comm, rows, root=host).wait()
    comm.Free()
