from mpi4py import MPI

import numpy as np
import torch

from hpcgnn.autograd import aggregate
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts


def test_value_and_gradient_equal_dense(comm: MPI.Intracomm) -> None:
    matrix = ugly_matrix(59, 47)
    dense = torch.from_numpy(matrix.toarray())
    full = torch.from_numpy(np.random.default_rng(2).normal(size=(59, 6)))
    weights = torch.from_numpy(np.random.default_rng(5).normal(size=(59, 6)))
    full.requires_grad_()
    ((dense @ full).relu() * weights).sum().backward()
    assert full.grad is not None
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(59, comm.size, 6), comm.rank)
        part = block_row(matrix, row_map)
        trace = TraceRecorder.off()
        mover = make_exchange("aware", grid, part, trace)
        operator = DistributedSpMM(part, mover)
        mine = slice(row_map.start, row_map.stop)
        local = full.detach()[mine].clone().requires_grad_()
        result = aggregate(operator, local)
        torch.testing.assert_close(
            result.detach(), (dense @ full.detach())[mine], rtol=1e-12, atol=1e-12
        )
        (result.relu() * weights[mine]).sum().backward()
    torch.testing.assert_close(local.grad, full.grad[mine], rtol=1e-12, atol=1e-12)


def test_strided_input_is_accepted() -> None:
    matrix = ugly_matrix(9, 3)
    with ProcessGrid(MPI.COMM_SELF) as grid:
        row_map = RowMap(np.array([0, 9], np.int64), 0)
        part = block_row(matrix, row_map)
        trace = TraceRecorder.off()
        mover = make_exchange("aware", grid, part, trace)
        operator = DistributedSpMM(part, mover)
        x = torch.arange(36.0, dtype=torch.float64).reshape(4, 9).t().requires_grad_()
        aggregate(operator, x).sum().backward()
        expected = torch.from_numpy(matrix.toarray()).sum(dim=0)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected[:, None].expand(9, 4))
