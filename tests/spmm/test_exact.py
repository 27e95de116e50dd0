"""Products of integers have equal bits for every exchange, schedule and grid."""

from dataclasses import replace

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.sparse import Factors, IntegerCSR, round_weights
from hpcgnn.spmm import (
    EXCHANGES,
    Carrier,
    Channel,
    ExactProduct,
    Peers,
    Schedule,
    Wire,
    exchange_by,
)
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

NODES = 101
SIGNS = np.where(np.arange(NODES) % 2, 1, -1)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("weighted", [False, True, "negative too"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_equal_bits_and_serial_product(
    comm: MPI.Intracomm, exchange: str, weighted: bool | str, symmetric: bool
) -> None:
    matrix = ugly_matrix(NODES, 11, weighted=bool(weighted))
    if weighted == "negative too":
        # Long rows on every rank, whose sums are small except for numbers of equal signs.
        matrix = matrix.tolil()
        matrix[::9, :] = 99 * SIGNS
        matrix = matrix.tocsr()
    else:
        matrix = abs(matrix)
    if symmetric:
        matrix = matrix + matrix.T
    rng = np.random.default_rng(2)
    by_row, by_column = rng.random((2, NODES))
    x = (rng.normal(size=(NODES, 7)) * np.exp2(rng.integers(-20, 1, (NODES, 1)))).astype(np.float32)
    x[:, 3], x[:, 4] = 0, 0.9 * SIGNS
    if weighted == "negative too":
        # These integers leave less room in their sums.
        x, by_column = x.astype(np.float64), np.ones(NODES)

    def run(comm: MPI.Intracomm, replication: int, schedule: Schedule) -> list[np.ndarray]:
        trace = TraceRecorder.off()
        with ProcessGrid(comm, replication) as grid:
            row_map = RowMap(uneven_starts(NODES, grid.num_blocks, 3), grid.block)
            mine = slice(row_map.start, row_map.stop)
            part = block_row(matrix, row_map, np.float32)
            part = part if weighted else part.with_values(None, None)
            part = replace(part, symmetric=symmetric)
            integers, unit = round_weights(grid, part)
            factors = Factors(by_row[mine], by_column[mine], unit)
            # Sums travel packed, as in a run.
            wire, carrier = Wire(integers=True), Carrier(grid)
            channel = Channel(grid, wire, schedule, carrier, trace, Peers(grid))
            mover = exchange_by(exchange, channel, integers)
            operator = ExactProduct(IntegerCSR.of(integers, factors), mover)
            own = np.ascontiguousarray(x[mine])
            found = operator.apply(own), operator.apply_transpose(own)
            return [np.concatenate(grid.layer.allgather(each)) for each in found]

    whole = run(MPI.COMM_SELF, 1, Schedule())
    for replication in {1, comm.size}:
        for sequential in (False, True):
            found = run(comm, replication, Schedule(sequential))
            for mine, theirs in zip(found, whole, strict=True):
                np.testing.assert_array_equal(mine, theirs)
    values = matrix if weighted else (matrix != 0).astype(np.float64)
    dense = by_row[:, None] * values.toarray() * by_column
    for product, each in zip(whole, (dense, dense.T), strict=True):
        scale = np.abs(each) @ np.abs(x) + 1e-300
        # Rows of 2^-20 of the largest keep 10 of 30 bits.
        assert (np.abs(product - each @ x) / scale).max() < 1e-3
        assert np.abs(product - each @ x).max() < 1e-6 * np.abs(each @ x).max()
