from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.autograd import Epilogue, graph_linear
from hpcgnn.autograd.linear import graph
from hpcgnn.autograd.linear.products import LateSum, ProductSum, RowProducts
from hpcgnn.autograd.numerics import mixed
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.spmm import DistributedSpMM, Schedule, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts


def _gradients(
    comm: MPI.Intracomm, *, twice: bool, dtype: torch.dtype = torch.bfloat16
) -> tuple[list[torch.Tensor], list[type]]:
    """Return gradients of two layers in a sequential run, and the type of the hidden rows' one."""
    matrix, rng = ugly_matrix(44, 83), np.random.default_rng(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape)).float()

    features, mixing = draw(44, 3), draw(44, 20)
    wide = [draw(20, 3), draw(20, 3), draw(20)]
    narrow = [draw(2, 20), draw(2, 20), draw(2)]
    weights = [each.requires_grad_() for each in (*wide, *narrow)]
    seen: list[type] = []
    trace = TraceRecorder.off()
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(44, comm.size, 2), comm.rank)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map, np.float32)
        schedule = Schedule(sequential=True)
        exchange = make_exchange("aware", grid, part, trace, schedule=schedule)
        operator = DistributedSpMM(part, exchange)
        x, epilogue = features[mine].to(dtype), Epilogue(np.arange(44)[mine])
        hidden = graph_linear(
            [operator], x, weights[:1], own=[(x, weights[1])], bias=weights[2], epilogue=epilogue
        )
        hidden.register_hook(lambda gradient: seen.append(type(gradient)))
        own = [(hidden, weights[4])]
        result = graph_linear([operator], hidden, weights[3:4], own=own, bias=weights[5])
        loss = result.float().sum()
        if twice:
            loss = loss + (hidden.float() * mixing[mine]).sum()
        loss.backward()
    return [each.grad for each in weights if each.grad is not None], seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("twice", [False, True])
def test_gradients_of_hidden_rows_in_pieces_are_those_of_whole_ones(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, twice: bool
) -> None:
    monkeypatch.setattr(mixed, "_CHUNK_ROWS", 7)
    # Otherwise kernels add up all rows of a whole, but those of each piece first.
    monkeypatch.setattr(mixed, "bfloat16_is_fast", lambda: True)
    found, seen = _gradients(comm, twice=twice, dtype=dtype)
    monkeypatch.setattr(graph, "LateSum", ProductSum)
    wanted, seen_whole = _gradients(comm, twice=twice, dtype=dtype)
    # A tensor that two functions read has the sum of two gradients, which exists as a whole.
    assert seen == [torch.Tensor if twice else RowProducts]
    assert seen_whole == [torch.Tensor]
    assert len(found) == 6
    for each, whole in zip(found, wanted, strict=True):
        assert torch.equal(each, whole)


def test_only_rows_that_are_read_are_computed() -> None:
    rows, matrix = torch.arange(12.0).reshape(6, 2), torch.ones(2, 3)
    products = RowProducts.of(rows, matrix)
    products.factors += [(rows, matrix), (-rows, 2 * matrix)]
    assert products.shape == (6, 3)
    assert products[2:4].shape == (2, 3)
    assert torch.equal(products[2:4], -(rows @ matrix)[2:4])
    assert torch.equal(products + 1, 1 - rows @ matrix)


@pytest.mark.parametrize("terms", ["pp", "ap", "pa", "pap"])
def test_late_sums_have_all_their_products_and_arrays(terms: str) -> None:
    rows, matrix, found = torch.arange(12.0).reshape(6, 2), torch.ones(2, 3), LateSum()
    for term in terms:
        if term == "p":
            found.add_product(rows, matrix)
        else:
            found.add(torch.ones(6, 3))
    wanted = terms.count("p") * (rows @ matrix) + terms.count("a")
    assert found.total is not None
    assert torch.equal(found.total[:], wanted)
