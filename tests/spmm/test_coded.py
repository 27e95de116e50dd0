"""Products of coded columns have the bits of plain ones, for every exchange and schedule."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.sparse import LocalCSR
from hpcgnn.sparse.local import CodedCSR
from hpcgnn.spmm import EXCHANGES, RESIDENT, DistributedSpMM, Schedule, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

OFF = TraceRecorder.off()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("schedule", [RESIDENT, Schedule(sequential=True, prefetch=1)])
def test_equal_bits(comm: MPI.Intracomm, exchange: str, schedule: Schedule) -> None:
    matrix = ugly_matrix(301, 17)
    row_map = RowMap(uneven_starts(301, comm.size, 3), comm.rank)
    part = block_row(matrix, row_map, np.float32)
    x = np.random.default_rng(3).normal(size=(301, 19)).astype(np.float32)
    mine = np.ascontiguousarray(x[row_map.start : row_map.stop])
    with ProcessGrid(comm) as grid:
        for pattern in (part, part.with_values(None, None)):
            mover = make_exchange(exchange, grid, pattern, OFF, schedule=schedule)
            plain, coded = (DistributedSpMM(pattern, mover, coded=coded) for coded in (False, True))
            for rows in (mine, (mine.view(np.uint32) >> 16).astype(np.uint16)):
                assert np.array_equal(coded.apply(rows), plain.apply(rows))
                assert np.array_equal(coded.apply_transpose(rows), plain.apply_transpose(rows))


def test_what_reads_columns_otherwise_decodes_them() -> None:
    matrix = ugly_matrix(97, 5)[:, :60].tocsr()
    rows = np.flatnonzero(np.diff(matrix.indptr)).astype(np.int32)
    indptr = np.append(matrix.indptr[rows], matrix.nnz).astype(np.int64)
    plain = LocalCSR(indptr, matrix.indices.astype(np.int32), matrix.data, matrix.shape, rows)
    coded = CodedCSR.of(plain)
    assert coded.nnz == plain.nnz
    for found, wanted in (
        (coded.plain, plain),
        (coded.with_all_rows.plain, plain.with_all_rows),
        (coded.transposed.plain, plain.transposed),
        (coded.edges, plain.edges),
    ):
        assert np.array_equal(found.indptr, wanted.indptr)
        assert np.array_equal(found.indices, wanted.indices)
        if isinstance(wanted, LocalCSR):
            assert np.array_equal(found.values, wanted.values)
