"""Every transport delivers the same rows as MPI, and reports when it cannot."""

import sys
from types import SimpleNamespace

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid, RowMap, takes_device_memory
from hpcgnn.sparse.device import DeviceMemory
from hpcgnn.spmm import (
    RESIDENT,
    Carrier,
    DistributedSpMM,
    Schedule,
    make_exchange,
)
from hpcgnn.spmm.gpu import (
    nccl as nccl_transport,
)
from hpcgnn.spmm.gpu import (
    transports,
)
from hpcgnn.spmm.gpu.mpi import StagedTransport
from hpcgnn.spmm.gpu.transports import make_transport
from hpcgnn.trace import TraceRecorder
from tests.support.emulated_gpu import emulated_gpu
from tests.support.fake_nccl import FakeNccl
from tests.support.matrices import block_row, ugly_matrix, uneven_starts
from tests.support.stand_in import host

OFF = TraceRecorder.off()


@pytest.mark.parametrize("name", ["staged", "mpi", "nccl"])
@pytest.mark.parametrize(
    ("exchange", "schedule"),
    [
        ("joint", RESIDENT),
        ("joint", Schedule(sequential=True, prefetch=1)),
        ("oblivious", RESIDENT),
    ],
    ids=str,
)
def test_products_are_those_of_the_whole_matrix(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    exchange: str,
    schedule: Schedule,
) -> None:
    matrix = ugly_matrix(47, 17)
    monkeypatch.setattr(transports, "takes_device_memory", lambda _: True)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", FakeNccl(comm))
    for replication in {1, 2} if comm.size == 4 else {1}:
        with emulated_gpu() as gpu, ProcessGrid(comm, replication) as grid:
            row_map = RowMap(uneven_starts(47, grid.num_blocks, 3), grid.block)
            part = block_row(matrix, row_map)
            carrier = Carrier(grid, DeviceMemory(), make_transport(name, grid))
            mover = make_exchange(exchange, grid, part, OFF, "native", schedule, carrier)
            operator = DistributedSpMM(part, mover)
            x = np.random.default_rng(3).normal(size=(47, 3))
            mine = slice(row_map.start, row_map.stop)
            own = gpu.asarray(x[mine])
            for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
                found = host(apply(own))
                np.testing.assert_allclose(found, (dense @ x)[mine], rtol=1e-12, atol=1e-12)


def test_what_does_not_work_is_one_line(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "takes_device_memory", lambda _: False)
    monkeypatch.setattr(nccl_transport, "card_id", lambda: "the same")
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", FakeNccl(comm))
    with emulated_gpu(), ProcessGrid(comm, 1) as grid:
        assert type(make_transport("auto", grid)) is StagedTransport
        with pytest.raises(CollectiveInputError, match="does not take device memory"):
            make_transport("mpi", grid)
        if comm.size > 1:
            with pytest.raises(CollectiveInputError, match="two ranks share a GPU"):
                make_transport("nccl", grid)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [("system,cuda:device,mpi", True), ("system", False), ("mpi,rocm:device", False)],
)
def test_the_standards_key_counts_first(kinds: str, expected: bool) -> None:
    comm = SimpleNamespace(Get_info=lambda: SimpleNamespace(Get=lambda _: kinds))
    assert takes_device_memory(comm) is expected


def test_the_library_at_hand_answers(comm: MPI.Intracomm) -> None:
    """Its answer is the same on all ranks, whichever it is."""
    assert len(set(comm.allgather(takes_device_memory(comm)))) == 1


def test_a_rank_without_nccl_is_told_by_all(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = comm.rank == comm.size - 1
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None if lacking else FakeNccl(comm))
    refused = pytest.raises(CollectiveInputError, match="has no NCCL")
    with emulated_gpu(), ProcessGrid(comm, 1) as grid, refused:
        make_transport("nccl", grid)
