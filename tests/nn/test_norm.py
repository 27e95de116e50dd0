"""Normalisation over ranks equals one process that holds all rows, and its gradient is exact."""

import contextlib

from mpi4py import MPI

import numpy as np
import pytest
import torch
import torch_geometric.nn as geometric
from torch import Tensor, nn

from hpcgnn.autograd import (
    CopiesOfGraph,
    ExactArithmetic,
    GraphRows,
    GraphSums,
    computing_with,
    moments,
)
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.file import config_from_tables
from hpcgnn.graph.context import Context
from hpcgnn.graph.labels import find_members
from hpcgnn.nn import make_norm
from hpcgnn.train.gradients import sum_gradients
from tests.support.dense_models import norm_rows
from tests.support.matrices import gather_rows, uneven_starts

NUM_ROWS, WIDTH = 41, 6


def rows_of(grid: ProcessGrid) -> slice:
    starts = uneven_starts(NUM_ROWS, grid.num_blocks, 14)
    return slice(starts[grid.block], starts[grid.block + 1])


def ugly_rows(seed: int = 3) -> Tensor:
    """Return columns, of which one is constant and one has a mean far above its deviation."""
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(NUM_ROWS, WIDTH)))
    x[:, 1] = 3.0
    x[:, 2] += 1e4
    return x


@pytest.mark.parametrize("replication", [1, 2])
@pytest.mark.parametrize("name", ["batch", "graph", "layer"])
def test_equals_one_process(comm: MPI.Intracomm, name: str, replication: int) -> None:
    if comm.size % replication:
        pytest.skip("replication does not divide the ranks")
    x, weights = ugly_rows(), torch.from_numpy(np.random.default_rng(5).normal(size=(NUM_ROWS, 6)))
    ours, theirs = (randomised(name) for _ in range(2))
    whole = x.clone().requires_grad_()
    expected = norm_rows(theirs, whole, torch.ones(NUM_ROWS, dtype=torch.bool))
    (expected * weights).sum().backward()
    with ProcessGrid(comm, replication) as grid:
        mine = rows_of(grid)
        local = x[mine].clone().requires_grad_()
        out = ours(local, grid.sum_over_blocks, training=True)
        (out * weights[mine]).sum().backward()
        sum_gradients(grid, ours.parameters())
        torch.testing.assert_close(out, expected[mine], rtol=1e-12, atol=1e-12)
        close_gradient(local.grad, whole.grad[mine], whole.grad)
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("many", ["graphs", "copies"])
def test_graph_norm_equals_pyg_graph_by_graph(comm: MPI.Intracomm, many: str, exact: bool) -> None:
    rng = np.random.default_rng(6)
    ours, theirs = randomised("graph"), geometric.GraphNorm(WIDTH).double()
    for own, name in zip(ours.parameters(), ("weight", "bias", "mean_scale"), strict=True):
        theirs.get_parameter(name).data = own.data.clone()
    # Nodes of a graph are on all ranks; one graph has a single node, and one is constant.
    batch: np.ndarray = np.append(rng.integers(0, 5, NUM_ROWS - 1), 7)
    x = ugly_rows()
    x[batch == 2] = 1.5
    if many == "copies":
        # For each node of a rank, a row in each of two copies.
        x, batch = torch.cat([x, ugly_rows(4)]), np.repeat([0, 1], NUM_ROWS)
    weights, whole = torch.from_numpy(rng.normal(size=x.shape)), x.clone().requires_grad_()
    expected = theirs(whole, torch.from_numpy(batch))
    (expected * weights).sum().backward()
    with ProcessGrid(comm) as grid:
        local = np.arange(NUM_ROWS)[rows_of(grid)]
        mine = np.concatenate([local, local + NUM_ROWS]) if many == "copies" else local
        config = config_from_tables({"graph": {"store": "none"}, "run": {"dir": "none"}})
        rows: GraphRows = CopiesOfGraph(2, len(local), grid.sum_over_blocks)
        if many == "graphs":
            rows, _ = find_members(Context(grid, config), batch[mine])
        own = x[mine].clone().requires_grad_()
        exactly = computing_with(ExactArithmetic(grid)) if exact else contextlib.nullcontext()
        with exactly:
            out = ours(own, GraphSums(grid.sum_over_blocks, rows), training=True)
            (out * weights[mine]).sum().backward()
        if not exact:
            sum_gradients(grid, ours.parameters())
        torch.testing.assert_close(out, expected[mine], rtol=1e-11, atol=1e-11)
        close_gradient(own.grad, whole.grad[mine], whole.grad)
        for parameter, name in zip(
            ours.parameters(), ("weight", "bias", "mean_scale"), strict=True
        ):
            expected_gradient = theirs.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad, expected_gradient, rtol=1e-10, atol=1e-10)


def close_gradient(ours: Tensor | None, theirs: Tensor, everything: Tensor) -> None:
    # A constant column scales gradients by 1/sqrt(epsilon): tolerances differ by column.
    assert ours is not None
    error = (ours - theirs).abs() / everything.abs().amax(0).clamp(min=1e-300)
    # The column far from zero has lost four digits in its input.
    assert (error.amax(0) if len(error) else error.new_zeros(WIDTH)).max() < 1e-11


def randomised(name: str) -> nn.Module:
    norm = make_norm(name, WIDTH)
    assert norm is not None
    generator = torch.Generator().manual_seed(8)
    for parameter in norm.parameters():
        parameter.data = torch.rand(WIDTH, generator=generator, dtype=torch.float64) + 0.5
    return norm.double()


def test_running_statistics_equal_those_of_torch(comm: MPI.Intracomm) -> None:
    ours, theirs = make_norm("batch", WIDTH), nn.BatchNorm1d(WIDTH).double()
    assert ours is not None
    ours = ours.double()
    with ProcessGrid(comm) as grid:
        mine = rows_of(grid)
        for seed in range(3):
            x = ugly_rows(seed)
            ours(x[mine], grid.sum_over_blocks, training=True)
            theirs(x)
        out = ours(x[mine], grid.sum_over_blocks, training=False)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.running_variance, theirs.running_var, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(out, theirs.eval()(x)[mine], rtol=1e-9, atol=1e-9)


def test_float32_keeps_the_variance_beside_a_large_mean(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(7)
    x = torch.from_numpy((rng.normal(size=(NUM_ROWS, 3)) + 3e4).astype(np.float32))
    with ProcessGrid(comm) as grid:
        mine = rows_of(grid)
        mean, variance, count = moments(x[mine], grid.sum_over_blocks)
    exact = x.double()
    np.testing.assert_allclose(mean.numpy(), exact.mean(0), rtol=1e-7)
    np.testing.assert_allclose(variance.numpy(), exact.var(0, unbiased=False), rtol=1e-5)
    assert count == NUM_ROWS


def test_statistics_do_not_depend_on_the_ranks(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        mine = rows_of(grid)
        found = moments(ugly_rows()[mine], grid.sum_over_blocks)[:2]
        for each in found:
            everywhere = gather_rows(comm, each.numpy()[None])
            np.testing.assert_array_equal(everywhere, np.broadcast_to(each, everywhere.shape))


def test_no_rows_at_all(comm: MPI.Intracomm) -> None:
    norm = make_norm("batch", WIDTH)
    assert norm is not None
    with ProcessGrid(comm) as grid:
        x = torch.zeros(0, WIDTH, requires_grad=True)
        out = norm(x, grid.sum_over_blocks, training=True)
        out.sum().backward()
    assert out.shape == (0, WIDTH)
    assert torch.equal(norm.running_variance, torch.ones(WIDTH))
