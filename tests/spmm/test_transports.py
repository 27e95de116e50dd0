"""Every transport brings the rows that MPI brings, and says so where it cannot."""

import ctypes
import sys
from types import SimpleNamespace

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid, RowMap, takes_device_memory
from hpcgnn.spmm import transports
from hpcgnn.spmm.device import DeviceSpMM
from hpcgnn.spmm.device_exchange import DeviceExchange
from hpcgnn.spmm.ghosts import Wire
from hpcgnn.spmm.transports import make_transport
from hpcgnn.trace import TraceRecorder
from tests.emulated_gpu import emulated_gpu
from tests.kernels.cuda.stand_in import host
from tests.ugly import block_row, ugly_matrix, uneven_starts

OFF = TraceRecorder.off()


class FakeNccl:
    """NCCL's grouped messages, by MPI."""

    NCCL_UINT8 = 1

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._waiting = comm, []

    def get_unique_id(self) -> tuple[int, ...]:
        return tuple(range(128))

    def NcclCommunicator(  # noqa: N802
        self, size: int, unique_id: tuple[int, ...], rank: int
    ) -> SimpleNamespace:
        assert (size, rank) == (self._comm.size, self._comm.rank)
        assert unique_id == self.get_unique_id()
        return SimpleNamespace(
            send=lambda *message: self._waiting.append((self._comm.Isend, *message)),
            recv=lambda *message: self._waiting.append((self._comm.Irecv, *message)),
        )

    def groupStart(self) -> None:  # noqa: N802
        assert not self._waiting

    def groupEnd(self) -> None:  # noqa: N802
        requests = []
        for start, address, size, kind, peer, stream in self._waiting:
            assert (kind, stream) == (self.NCCL_UINT8, 4711)
            requests.append(start((ctypes.c_char * size).from_address(address), peer))
        self._waiting.clear()
        MPI.Request.Waitall(requests)


@pytest.mark.parametrize("name", ["staged", "mpi", "nccl"])
def test_products_are_those_of_the_whole_matrix(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    matrix = ugly_matrix(47, 17)
    monkeypatch.setattr(transports, "takes_device_memory", lambda _: True)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", FakeNccl(comm))
    with emulated_gpu() as gpu, ProcessGrid(comm, 1) as grid:
        row_map = RowMap(uneven_starts(47, grid.num_blocks, 3), grid.block)
        part = block_row(matrix, row_map)
        exchange = DeviceExchange(grid, part, Wire(), make_transport(name, grid), OFF)
        operator = DeviceSpMM(grid, part, exchange, OFF)
        x = np.random.default_rng(3).normal(size=(47, 3))
        mine = slice(row_map.start, row_map.stop)
        for _ in range(2):
            own = gpu.asarray(x[mine])
            for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
                found = host(apply(own))
                np.testing.assert_allclose(found, (dense @ x)[mine], rtol=1e-12, atol=1e-12)


def test_what_does_not_work_is_one_line(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "takes_device_memory", lambda _: False)
    monkeypatch.setattr(transports, "card_id", lambda: "the same")
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    with emulated_gpu(), ProcessGrid(comm, 1) as grid:
        assert isinstance(make_transport("auto", grid), transports.StagedTransport)
        with pytest.raises(CollectiveInputError, match="does not take device memory"):
            make_transport("mpi", grid)
        words = "two ranks share a GPU" if comm.size > 1 else "has no NCCL"
        with pytest.raises(CollectiveInputError, match=words):
            make_transport("nccl", grid)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [("system,cuda:device,mpi", True), ("system", False), ("mpi,rocm:device", False)],
)
def test_the_standards_key_counts_first(kinds: str, expected: bool) -> None:
    comm = SimpleNamespace(Get_info=lambda: SimpleNamespace(Get=lambda _: kinds))
    assert takes_device_memory(comm) is expected


def test_the_library_at_hand_answers(comm: MPI.Intracomm) -> None:
    """Its answer is the same on all ranks, whatever it is."""
    assert len(set(comm.allgather(takes_device_memory(comm)))) == 1
