"""Sums that do not depend on their order: close to the true ones, equal bits for all shares."""

from collections.abc import Callable

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcgnn.autograd import ExactArithmetic, arithmetic, computing_with
from hpcgnn.autograd.numerics.plain import Arithmetic
from hpcgnn.comm import ProcessGrid
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import uneven_starts

ROWS = 1337


def table(width: int, seed: int) -> Tensor:
    """Return rows whose magnitudes spread over 30 powers of two, with zeros."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn((ROWS, width), generator=random)
    rows *= torch.exp2(torch.randint(-30, 1, (ROWS, 1), generator=random))
    rows[::7] = 0
    return rows


SUMS: dict[str, Callable[[ExactArithmetic, Tensor], Tensor]] = {
    "contract": lambda exact, rows: exact.contract(rows[:, :5].contiguous(), rows[:, 5:]),
    "total": lambda exact, rows: exact.total(rows),
    "wide": lambda exact, rows: exact.wide_total(rows),
}
TRUTH: dict[str, Callable[[Tensor], Tensor]] = {
    "contract": lambda rows: rows[:, :5].t() @ rows[:, 5:],
    "total": lambda rows: rows.sum(0),
    "wide": lambda rows: rows.sum(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("limbs", [1, 2])
def test_sums_are_equal_bits_and_accurate(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: torch.dtype,
    limbs: int,
) -> None:
    rows = table(12, 3).to(dtype)
    if dtype == torch.float64:
        # These numbers have more bits than float32.
        rows = rows.sin() / 3
    with ProcessGrid(MPI.COMM_SELF) as alone:
        whole = SUMS[name](ExactArithmetic(alone), rows)
    if limbs == 2:
        # As if all ranks had more rows.
        monkeypatch.setattr("hpcgnn.autograd.numerics.exact._ONE_INTEGER", 0)
    order = torch.from_numpy(np.random.default_rng(5).permutation(ROWS))
    starts = uneven_starts(ROWS, comm.size, 7)
    mine = order[starts[comm.rank] : starts[comm.rank + 1]]
    with ProcessGrid(comm) as grid:
        found = SUMS[name](ExactArithmetic(grid), rows[mine])
    assert torch.equal(found, whole)
    scale = TRUTH[name](rows.double().abs())
    error = (whole.double() - TRUTH[name](rows.double())).abs() / scale
    assert float(error.max()) < (1e-7 if whole.dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "loss"])
def test_values_and_derivatives_are_those_of_torch(name: str) -> None:
    # Branches meet at 0; at the ends the exponential overflows.
    x = torch.tensor([0.0, -0.0, 1e-9, -3.0, 5.0, 95.0, -95.0, -800.0, 800.0])[:, None]
    truth = torch.full_like(x, 0.25)
    made = {}
    for exact in (True, False):
        with ProcessGrid(MPI.COMM_SELF) as grid:
            one = ExactArithmetic(grid) if exact else Arithmetic()
            rows = x.clone().requires_grad_()
            if name == "loss":
                found = one.cross_entropies(rows, truth, None, 1.0)
            else:
                found = getattr(one, name)(rows).sum()
            found.backward()
        made[exact] = found.detach(), rows.grad
    for mine, right in zip(*made.values(), strict=True):
        torch.testing.assert_close(mine, right)


def test_products_with_short_numbers_are_exact() -> None:
    draw = np.random.default_rng(6)
    short = draw.integers(-7, 8, (900, 2))
    long = draw.integers(-(2**40), 2**40, (900, 3))
    with ProcessGrid(MPI.COMM_SELF) as grid:
        left, right = torch.from_numpy(short).double(), torch.from_numpy(long).double()
        found = ExactArithmetic(grid).contract(left, right * 2.0**-40)
    np.testing.assert_allclose(found, (short.T @ long) * 2.0**-40, rtol=1e-15)


def test_a_sum_without_a_number_is_none_on_every_rank(comm: MPI.Intracomm) -> None:
    rows = torch.ones((3, 2))
    if comm.rank == comm.size - 1:
        rows[1, 0] = torch.inf
    with ProcessGrid(comm) as grid:
        total = ExactArithmetic(grid).total(rows)
    assert total.isnan().tolist() == [True, False]


@pytest.mark.parametrize(("name", "sums"), [("total", 12), ("contract", 5 * 7)])
def test_trace_has_the_bytes_for_other_ranks(comm: MPI.Intracomm, name: str, sums: int) -> None:
    trace, part = TraceRecorder.open(None, comm.rank, {}), comm.Split(comm.rank // 2)
    with ProcessGrid(part) as grid:
        SUMS[name](ExactArithmetic(grid, trace), table(12, 8))
    # The largest number of each column and the number of rows come first.
    sent = 8 * (12 + 1 + sums)
    assert trace.total_of("reduce.exact")["bytes"] == (sent if part.size > 1 else 0)
    part.Free()


def test_a_loss_is_on_the_first_block_row_alone(comm: MPI.Intracomm) -> None:
    rows = table(1, 4)[:, 0]
    starts = uneven_starts(ROWS, comm.size, 7)
    with ProcessGrid(comm) as grid:
        mine = ExactArithmetic(grid).loss(rows[starts[comm.rank] : starts[comm.rank + 1]])
    first, *others = comm.allgather(float(mine))
    assert first == pytest.approx(float(rows.double().sum()), rel=1e-6)
    assert not any(others)


def test_rows_of_a_product_do_not_see_each_other() -> None:
    rows, matrix = table(67, 1), torch.randn(67, 33)
    with ProcessGrid(MPI.COMM_SELF) as grid:
        exact = ExactArithmetic(grid)
        whole = exact.product(rows, matrix)
        for part in (slice(0, 1), slice(5, 700), slice(1330, 1337), slice(3, 3)):
            assert torch.equal(exact.product(rows[part], matrix), whole[part])
    truth = rows.double() @ matrix.double()
    scale = rows.double().abs() @ matrix.double().abs() + 1e-300
    assert float(((whole - truth).abs() / scale).max()) < 1e-6


def test_gradients_are_those_of_all_ranks(comm: MPI.Intracomm) -> None:
    rows, weight, bias = table(6, 2), torch.randn(4, 6), torch.randn(4)
    matrices, shares = torch.randn(3, 6, 5), torch.randn(2, 3)
    for each in (comm,):
        weight, bias, matrices, shares = each.bcast((weight, bias, matrices, shares), 0)

    def loss(mine: Tensor) -> list[Tensor]:
        wanted = [each.clone().requires_grad_() for each in (weight, bias, matrices, shares)]
        first = arithmetic().linear(mine, wanted[0], wanted[1]).square()
        last = arithmetic().matmul(mine, arithmetic().combine(wanted[3], wanted[2])[1])
        both = first * arithmetic().for_rows(wanted[1], len(mine))
        (both.sum() + last.sum()).backward()
        return [each.grad for each in wanted if each.grad is not None]

    expected = loss(rows)
    starts = uneven_starts(ROWS, comm.size, 9)
    with ProcessGrid(comm) as grid, computing_with(ExactArithmetic(grid)):
        found = loss(rows[starts[comm.rank] : starts[comm.rank + 1]])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
