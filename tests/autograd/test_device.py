"""Aggregation on a device differentiates as on the host, and leaves its operands where they are."""

import sys
from types import SimpleNamespace

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.autograd import aggregate
from hpcgnn.autograd.device import aggregate_on_device
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.spmm.device import DeviceSpMM
from hpcgnn.spmm.ghosts import Wire
from hpcgnn.trace import TraceRecorder
from tests.kernels.cuda.stand_in import StandIn, compiler
from tests.ugly import block_row, ugly_matrix, uneven_starts

OFF = TraceRecorder.off()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    if compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be emulated")
    made = StandIn()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "cupyx", made)
    stream = SimpleNamespace(cuda_stream=0, device_index=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return made


@pytest.mark.usefixtures("device")
def test_values_and_gradients_are_those_of_the_host(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm, 1) as grid:
        row_map = RowMap(uneven_starts(53, grid.num_blocks, 2), grid.block)
        part = block_row(ugly_matrix(53, 9), row_map)
        mover = make_exchange("aware", grid, part, OFF)
        operators = DistributedSpMM(grid, part, mover, OFF), DeviceSpMM(grid, part, Wire(), OFF)
        rng = np.random.default_rng(grid.block)
        start, weight = (rng.normal(size=(row_map.num_local, 5)) for _ in range(2))
        found = []
        for function, operator in zip((aggregate, aggregate_on_device), operators, strict=True):
            x = torch.tensor(start, requires_grad=True)
            # Two products, and a gradient that is not contiguous on its way back.
            result = function(operator, torch.tanh(function(operator, x)))
            (result.T * torch.tensor(weight).T).sum().backward()
            assert x.grad is not None
            found.append((result.detach(), x.grad))
        for mine, other in zip(*found, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
