from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.autograd import graph_linear
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.ugly import block_row, ugly_matrix, uneven_starts


@pytest.mark.parametrize(("in_width", "out_width"), [(3, 40), (40, 3), (8, 8)])
@pytest.mark.parametrize("needs_input", [False, True])
def test_every_order_has_the_right_gradients(
    comm: MPI.Intracomm, in_width: int, out_width: int, needs_input: bool
) -> None:
    matrix = ugly_matrix(44, 83)
    dense = torch.from_numpy(matrix.toarray())
    rng = np.random.default_rng(in_width)
    full = torch.from_numpy(rng.normal(size=(44, in_width))).requires_grad_(needs_input)
    weight = torch.from_numpy(rng.normal(size=(out_width, in_width))).requires_grad_()
    mixing = torch.from_numpy(rng.normal(size=(44, out_width)))
    expected = dense @ full @ weight.t()
    (expected * mixing).sum().backward()
    trace = TraceRecorder.off()
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(44, comm.size, 2), comm.rank)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map)
        operator = DistributedSpMM(grid, part, make_exchange("joint", grid, part, trace), trace)
        x = full.detach()[mine].clone().requires_grad_(needs_input)
        own = weight.detach().clone().requires_grad_()
        result = graph_linear(operator, x, own)
        (result * mixing[mine]).sum().backward()
        total = torch.from_numpy(comm.allreduce(own.grad.numpy()))
    torch.testing.assert_close(result.detach(), expected.detach()[mine], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(total, weight.grad, rtol=1e-11, atol=1e-11)
    if needs_input:
        torch.testing.assert_close(x.grad, full.grad[mine], rtol=1e-11, atol=1e-11)


def test_the_trace_names_the_order() -> None:
    trace = TraceRecorder.unattached()
    with ProcessGrid(MPI.COMM_SELF) as grid:
        part = block_row(ugly_matrix(20, 1), RowMap(np.array([0, 20], np.int64), 0))
        operator = DistributedSpMM(grid, part, make_exchange("aware", grid, part, trace), trace)
        graph_linear(operator, torch.ones(20, 50, dtype=torch.float64), torch.ones(2, 50).double())
    assert trace.totals()["dense.project"]["count"] == 1
