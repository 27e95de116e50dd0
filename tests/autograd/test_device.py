"""Torch functions on a GPU give the same values and gradients as on the host."""

from collections.abc import Callable
from functools import partial

from mpi4py import MPI

import numpy as np
import torch

from hpcgnn.attention import AdditiveScores, AttentionOperator
from hpcgnn.autograd import DropoutKey, Heads, aggregate, attend, dropout, edge_draw
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.operators import Operators
from hpcgnn.operator import Aggregation
from hpcgnn.sparse.device import DeviceMemory
from hpcgnn.spmm import Carrier
from hpcgnn.spmm.gpu.mpi import StagedTransport
from hpcgnn.trace import TraceRecorder
from tests.support.emulated_gpu import emulated_gpu
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

OFF = TraceRecorder.off()
Found = list[torch.Tensor]


def assert_equal_on_both(run: Callable[[bool], Found], tolerance: float = 1e-12) -> None:
    """Require the tensors of ``run(False)`` and, on a GPU, ``run(True)`` to be equal."""
    host = run(False)
    with emulated_gpu():
        device = run(True)
    for mine, other in zip(device, host, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def operators(on_gpu: bool, grid: ProcessGrid, config: ExchangeConfig) -> Operators:
    carrier = Carrier(grid, DeviceMemory(), StagedTransport()) if on_gpu else Carrier(grid)
    return Operators(grid, config, OFF, carrier)


def test_aggregation(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm, 1) as grid:
        row_map = RowMap(uneven_starts(53, grid.num_blocks, 2), grid.block)
        part = block_row(ugly_matrix(53, 9), row_map)
        rng = np.random.default_rng(grid.block)
        start, weight = (rng.normal(size=(row_map.num_local, 5)) for _ in range(2))

        def run(on_gpu: bool) -> Found:
            make = operators(on_gpu, grid, ExchangeConfig())
            ids = np.arange(row_map.start, row_map.stop)
            operator = make.operator(Aggregation.SUM_IN, part, make.exchange(part, ids), ids, ids)
            x = torch.tensor(start, requires_grad=True)
            # Two products, and a gradient that is not contiguous in the backward pass.
            result = aggregate(operator, torch.tanh(aggregate(operator, x)))
            (result.T * torch.tensor(weight).T).sum().backward()
            assert x.grad is not None
            return [result.detach(), x.grad]

        assert_equal_on_both(run)


def test_attention_with_dropout(comm: MPI.Intracomm) -> None:
    """Concatenated and averaged heads, in one pass and in several, with every kind of dropout."""
    with ProcessGrid(comm, 1) as grid:
        row_map = RowMap(uneven_starts(31, grid.num_blocks, 2), grid.block)
        part = block_row(ugly_matrix(31, 9), row_map).with_values(None, None)
        ids = np.arange(row_map.start, row_map.stop) * 3
        for width, average, wire in (
            (3, False, "native"),
            (33, True, "native"),
            (3, False, "bfloat16"),
        ):
            dtype = torch.float64 if wire == "native" else torch.float32
            config = ExchangeConfig(wire=wire)
            run = partial(attention, grid, part, ids, width, average, dtype, config)
            assert_equal_on_both(run, 1e-12 if wire == "native" else 2e-2)


def attention(
    grid: ProcessGrid,
    part: object,
    ids: np.ndarray,
    width: int,
    average: bool,
    dtype: torch.dtype,
    config: ExchangeConfig,
    on_gpu: bool,
) -> Found:
    make = operators(on_gpu, grid, config)
    operator = make.operator(Aggregation.ATTENTION, part, make.exchange(part, ids), ids, ids)
    assert isinstance(operator, AttentionOperator)
    heads = Heads(
        operator,
        partial(AdditiveScores, slope=0.2),
        average,
        edge_draw(DropoutKey(3, 1, 0), 0.3, 0.2),
    )
    rng, local = np.random.default_rng(width), len(ids)
    bias = (width if average else 2 * width,)
    shapes = (local, 4), (2 * width, 4), (local, 4), (2, 4), (2, width), bias
    inputs = [torch.tensor(rng.normal(size=each), dtype=dtype) for each in shapes]
    for each in inputs:
        each.requires_grad_()
    result = attend(*inputs, heads)
    torch.tanh(result).sum().backward()
    return [result.detach(), *(each.grad for each in inputs)]


def test_dropout_draws_the_same_masks() -> None:
    ids, x = np.arange(40, dtype=np.int64) ** 3, torch.ones(40, 7)
    key = DropoutKey(3, 17, 1)
    host = dropout(x, ids, key, 0.4)
    with emulated_gpu() as gpu:
        assert torch.equal(dropout(x, gpu.asarray(ids), key, 0.4), host)
