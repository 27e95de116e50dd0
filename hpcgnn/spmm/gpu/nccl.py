"""Rows between GPUs by NCCL, on a separate stream; every rank needs its own GPU.

NCCL matches messages by order alone, so both ranks of a pair must issue their messages in the same
order. This holds if all ranks have the same stages (`in_step`).
"""

from collections.abc import Callable
from typing import Any

from hpcgnn.comm import (
    CommPlan,
    Communicator,
    ProcessGrid,
    Stage,
    Transfer,
    agree,
    bcast,
    rows_of_messages,
)
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.device import DeviceArray, card_id, load_cupy
from hpcgnn.kernels.cuda.nccl import NcclRanks, load_nccl
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.trace import TraceRecorder


class NcclTransport:
    """Messages by NCCL; `CollectiveInputError` if CuPy lacks NCCL or two ranks share a GPU."""

    in_step = True

    @collective
    def __init__(self, grid: ProcessGrid) -> None:
        with agree(grid.world):
            load_nccl()
            card = card_id()
        cards = grid.world.allgather(card)
        with agree(grid.world):
            if len(set(cards)) < len(cards):
                raise InputError(
                    "exchange.transport = 'nccl': two ranks share a GPU; start a rank for each "
                    "GPU, or use exchange.transport=staged"
                )
        self._layer = _connect(grid, grid.layer)
        self._replicas = _connect(grid, grid.replicas) if grid.replication > 1 else None
        self._stream: Any = load_cupy().cuda.Stream(non_blocking=True)

    @neighborwise_collective
    def start(
        self,
        plan: CommPlan,
        stage: Stage,
        sent: DeviceArray,
        received: DeviceArray,
        *,
        forward: bool,
    ) -> tuple[Transfer, Transfer]:
        ranks = self._replicas if plan.between_replicas else self._layer
        assert ranks is not None, "there are no replicas"
        outgoing, incoming = stage.ends(forward=forward)
        out, into = (
            [(message.peer, part) for message, part in rows_of_messages(messages, rows)]
            for messages, rows in ((outgoing, sent), (incoming, received))
        )
        issued = self._issue(lambda: ranks.start(out, into, self._stream), sent)
        return issued, issued

    @collective
    def start_broadcast(self, comm: Communicator, rows: DeviceArray, root: int) -> Transfer:
        return self._issue(lambda: self._layer.broadcast(rows, root, self._stream), rows)

    @collective
    def start_reduce(
        self, comm: Communicator, partial: DeviceArray, total: DeviceArray, root: int
    ) -> Transfer:
        return self._issue(
            lambda: self._layer.reduce(partial, total, root, self._stream), (partial, total)
        )

    @collective
    def combine(self, comm: Communicator, values: DeviceArray) -> None:
        replicas, stream = self._replicas, self._stream
        assert replicas is not None, "there are no replicas"
        self._issue(lambda: replicas.all_reduce(values, stream), values).wait()

    def _issue(self, messages: Callable[[], None], held: Any) -> "_Issued":
        """Issue messages after the work issued to the current stream so far."""
        cuda = load_cupy().cuda
        packed, moved = cuda.Event(), cuda.Event()
        packed.record()
        self._stream.wait_event(packed)
        messages()
        moved.record(self._stream)
        return _Issued(moved, held)


class _Issued(Transfer):
    def __init__(self, moved: Any, held: Any) -> None:
        super().__init__()
        # Keep the memory from being reused until the stream of products waits for the messages.
        self._moved, self._held = moved, held

    def wait(self, trace: TraceRecorder | None = None) -> None:
        # Arrivals on a device are not traced.
        del trace
        load_cupy().cuda.get_current_stream().wait_event(self._moved)


def _connect(grid: ProcessGrid, comm: Communicator) -> NcclRanks:
    """Connect the ranks of a communicator by NCCL. Collective over the grid."""
    unique_id = None
    with agree(grid.world):
        if comm.rank == 0:
            unique_id = tuple(load_nccl().get_unique_id())
    return NcclRanks(comm.size, comm.rank, bcast(comm, unique_id))
