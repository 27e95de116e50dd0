"""How packed rows get from the memory of one GPU to that of another.

A transport serves all exchanges of a run, one exchange at a time.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from hpcgnn.comm import CommPlan, Message, ProcessGrid, Transfer, agree, bcast, takes_device_memory
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.device import DeviceArray, card_id, load_cupy
from hpcgnn.kernels.cuda.nccl import NcclRanks, new_nccl_id
from hpcgnn.kernels.cuda.staging import Download, Upload, empty_pinned
from hpcgnn.typing import Array

__all__ = [
    "TRANSPORTS",
    "Crossing",
    "DirectTransport",
    "NcclTransport",
    "StagedTransport",
    "Transport",
    "make_transport",
]

TRANSPORTS = ("auto", "staged", "mpi", "nccl")
"""Names of the transports; auto is mpi where the library takes device memory, else staged."""


class Crossing(Protocol):
    """Rows under way."""

    def wait(self) -> None:
        """Return when work that is issued on the current stream from now on finds the rows.

        Neighborwise collective.
        """
        ...


class Transport(Protocol):
    """A way between devices."""

    def start(
        self, plan: CommPlan, sent: DeviceArray, received: DeviceArray, *, forward: bool
    ) -> Crossing:
        """Start to move rows; they are sent when the work issued so far is done.

        Neighborwise collective.

        Parameters
        ----------
        plan
            Who sends how many rows to whom.
        sent, received
            (rows, width) of one dtype, C-contiguous: of owners and ghosts, or of ghosts and owners.
        forward
            Owner to ghost, or ghost to owner.
        """
        ...


def make_transport(name: str, grid: ProcessGrid) -> Transport:
    """Return the transport called `name` for the ranks of a grid, whose devices are chosen.

    Collective.

    Raises
    ------
    CollectiveInputError
        For mpi, when the library does not take device memory; for nccl, when CuPy has none, or two
        ranks share a GPU.
    """
    direct = takes_device_memory(grid.layer)
    with agree(grid.world):
        if name == "mpi" and not direct:
            raise InputError(
                "exchange.transport = 'mpi': this MPI library does not take device memory; use "
                "one built with CUDA, or exchange.transport=staged"
            )
    if name == "nccl":
        return NcclTransport(grid)
    return DirectTransport() if direct and name in ("auto", "mpi") else StagedTransport()


class StagedTransport:
    """Through page-locked host memory, with any MPI.

    Not collective.
    """

    def __init__(self) -> None:
        self._upload: Upload | None = None

    def start(
        self, plan: CommPlan, sent: DeviceArray, received: DeviceArray, *, forward: bool
    ) -> Crossing:
        """Copy the rows to the host; see `Transport`.

        Neighborwise collective.
        """
        host_sent, host_received = (empty_pinned(a.shape, a.dtype) for a in (sent, received))
        return _Staged(self, plan, Download(sent, host_sent), host_received, received, forward)

    def deliver(self, host: Array, received: DeviceArray) -> None:
        """Copy what arrived to the device.

        Not collective.
        """
        # Replaced when the next exchange has waited for the stream: this copy is done by then.
        self._upload = Upload(host, received)


class _Staged:
    def __init__(
        self,
        transport: StagedTransport,
        plan: CommPlan,
        download: Download,
        host_received: Array,
        received: DeviceArray,
        forward: bool,
    ) -> None:
        self._transport, self._download = transport, download
        self._host, self._received = host_received, received
        self._start: Any = plan.start_forward if forward else plan.start_reverse

    def wait(self) -> None:
        self._download.wait()
        transfer: Transfer = self._start(self._download.host, self._host)
        transfer.wait()
        self._transport.deliver(self._host, self._received)


class DirectTransport:
    """Straight from and to device memory, by an MPI library that takes it.

    Not collective.
    """

    def start(
        self, plan: CommPlan, sent: DeviceArray, received: DeviceArray, *, forward: bool
    ) -> Crossing:
        """Mark the place in the stream; see `Transport`.

        Neighborwise collective.
        """
        return _Direct(plan, sent, received, forward)


class _Direct:
    def __init__(
        self, plan: CommPlan, sent: DeviceArray, received: DeviceArray, forward: bool
    ) -> None:
        self._rows = sent, received
        self._stage = plan.everything
        self._start = plan.start_stage_forward if forward else plan.start_stage_reverse
        self._packed: Any = load_cupy().cuda.Event()
        self._packed.record()

    def wait(self) -> None:
        # MPI knows no streams: what packs the rows, and what used this memory before, must be done.
        self._packed.synchronize()
        for transfer in self._start(self._stage, *self._rows):
            transfer.wait()


class NcclTransport:
    """By NCCL, on a stream of its own; every rank must have a GPU of its own.

    Collective.

    Parameters
    ----------
    grid
        The ranks, without replication.

    Raises
    ------
    CollectiveInputError
        When CuPy has no NCCL, or two ranks share a GPU.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        layer = grid.layer
        cards = layer.allgather((int(grid.hosts[layer.rank]), card_id()))
        unique_id = None
        with agree(grid.world):
            if len(set(cards)) < len(cards):
                raise InputError(
                    "exchange.transport = 'nccl': two ranks share a GPU; start a rank for each "
                    "GPU, or use exchange.transport=staged"
                )
            if layer.rank == 0:
                unique_id = new_nccl_id()
        self._ranks = NcclRanks(layer.size, layer.rank, bcast(layer, unique_id))
        self._stream: Any = load_cupy().cuda.Stream(non_blocking=True)

    def start(
        self, plan: CommPlan, sent: DeviceArray, received: DeviceArray, *, forward: bool
    ) -> Crossing:
        """Issue the messages as one group; see `Transport`.

        Neighborwise collective.
        """
        cuda, stage = load_cupy().cuda, plan.everything
        outgoing, incoming = stage.owned, stage.ghosts
        if not forward:
            outgoing, incoming = incoming, outgoing
        packed, moved = cuda.Event(), cuda.Event()
        packed.record()
        self._stream.wait_event(packed)
        self._ranks.start(
            list(_parts(outgoing, sent)), list(_parts(incoming, received)), self._stream
        )
        moved.record(self._stream)
        return _Issued(moved, sent)


class _Issued:
    def __init__(self, moved: Any, sent: DeviceArray) -> None:
        # Until the stream of products waits for the messages, nobody else may get this memory.
        self._moved, self._sent = moved, sent

    def wait(self) -> None:
        load_cupy().cuda.get_current_stream().wait_event(self._moved)


def _parts(messages: tuple[Message, ...], rows: DeviceArray) -> Iterator[tuple[int, DeviceArray]]:
    """Yield the peer and the rows of each message, which follow one another."""
    start = 0
    for message in messages:
        yield message.peer, rows[start : start + message.num_rows]
        start += message.num_rows
