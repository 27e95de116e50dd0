from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.operator import (
    CachedProduct,
    Transposed,
    choose_order,
)
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts


def test_a_product_is_computed_once(comm: MPI.Intracomm) -> None:
    matrix = ugly_matrix(44, 83)
    full, other = np.random.default_rng(5).normal(size=(2, 44, 6))
    trace = TraceRecorder.unattached()
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(44, comm.size, 2), comm.rank)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map)
        operator = DistributedSpMM(part, make_exchange("joint", grid, part, trace))
        for each, dense in ((operator, matrix), (Transposed(operator), matrix.T)):
            x = full[mine].copy()
            kept = CachedProduct(each, x)
            spans = trace.totals()
            assert kept.apply(x) is kept.apply(x[:]) is kept.product
            assert trace.totals() == spans
            np.testing.assert_allclose(kept.product, (dense @ full)[mine], atol=1e-12)
            if len(x):
                with pytest.raises(ValueError, match="other rows"):
                    kept.apply(other[mine].copy())
            np.testing.assert_allclose(
                kept.apply_transpose(other[mine].copy()), (dense.T @ other)[mine], atol=1e-12
            )
            assert kept.shape == each.shape


def test_a_cached_product_comes_first() -> None:
    with ProcessGrid(MPI.COMM_SELF) as grid:
        part = block_row(ugly_matrix(20, 1), RowMap(np.array([0, 20], np.int64), 0))
        trace = TraceRecorder.off()
        operator = DistributedSpMM(part, make_exchange("aware", grid, part, trace))
        kept = CachedProduct(operator, np.ones((20, 50)))
    orders = [
        choose_order(each.size, 50, 2, needs_input_gradient=False) for each in (operator, kept)
    ]
    assert [each.aggregate_first for each in orders] == [False, True]
