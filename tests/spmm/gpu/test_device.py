"""Products on a device equal those of the whole matrix, for every exchange, schedule and grid."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.sparse import DistCSR, restrict
from hpcgnn.sparse.device import DeviceMemory
from hpcgnn.spmm import RESIDENT, Carrier, DistributedSpMM, Schedule, make_exchange
from hpcgnn.spmm.gpu.mpi import StagedTransport
from hpcgnn.trace import TraceRecorder
from tests.support.emulated_gpu import some_gpu
from tests.support.matrices import block_row, ugly_matrix, uneven_starts
from tests.support.stand_in import Card, StandIn, host

EXCHANGES = ("aware", "push", "joint", "oblivious", "hierarchical")
PREFETCH = Schedule(sequential=True, prefetch=1)
CASES = [*product(EXCHANGES, (RESIDENT, PREFETCH)), ("joint", Schedule(sequential=True))]
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-10}
OFF = TraceRecorder.off()


@pytest.fixture
def gpu() -> Iterator[StandIn | Card]:
    with some_gpu() as made:
        yield made


def make_operator(
    grid: ProcessGrid,
    part: DistCSR,
    exchange: str,
    schedule: Schedule = RESIDENT,
    wire: str = "native",
    trace: TraceRecorder = OFF,
) -> DistributedSpMM:
    carrier = Carrier(grid, DeviceMemory(), StagedTransport())
    mover = make_exchange(exchange, grid, part, trace, wire, schedule, carrier)
    return DistributedSpMM(part, mover)


def grids(comm: MPI.Intracomm) -> Iterator[ProcessGrid]:
    for replication in (1, comm.size) if comm.size < 4 else (1, 2):
        # Two hosts, if ranks can share them.
        with ProcessGrid(comm, replication, host=f"host{comm.rank // 2}") as grid:
            yield grid


@pytest.mark.parametrize(("exchange", "schedule"), CASES, ids=str)
def test_equals_serial(
    comm: MPI.Intracomm, gpu: StandIn | Card, exchange: str, schedule: Schedule
) -> None:
    matrix = ugly_matrix(53, 17)
    x = np.random.default_rng(3).normal(size=(53, 5))
    for grid in grids(comm):
        row_map = RowMap(uneven_starts(53, grid.num_blocks, 3), grid.block)
        mine = slice(row_map.start, row_map.stop)
        operator = make_operator(grid, block_row(matrix, row_map), exchange, schedule)
        # With the second width, the buffers of the first are gone.
        for width in (5, 1):
            rows = np.ascontiguousarray(x[:, :width])
            own = gpu.asarray(rows[mine])
            for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
                found = host(apply(own))
                np.testing.assert_allclose(found, (dense @ rows)[mine], rtol=1e-12, atol=1e-12)
        largest = int(np.diff(row_map.starts).max()) * 5 * 8
        # Rows of a hierarchical exchange are both on the host and on the device.
        if schedule.sequential and exchange != "hierarchical":
            assert grid.buffers.ghosts.peak <= (1 + schedule.prefetch) * largest
        assert grid.buffers.ghosts.now == 0


@pytest.mark.parametrize("num_nodes", [1, 2, 101])
def test_any_size_in_float32(comm: MPI.Intracomm, gpu: StandIn | Card, num_nodes: int) -> None:
    matrix = ugly_matrix(num_nodes, 17)
    x = np.random.default_rng(3).normal(size=(num_nodes, 7)).astype(np.float32)
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(num_nodes, grid.num_blocks, 3), grid.block)
        mine = slice(row_map.start, row_map.stop)
        operator = make_operator(grid, block_row(matrix, row_map, np.float32), "joint")
        scale = max(1.0, float(np.abs(matrix).sum(axis=1).max()), matrix.sum(axis=0).max())
        for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
            found = host(apply(gpu.asarray(x[mine])))
            assert found.dtype == np.float32
            expected = (dense @ x.astype(np.float64))[mine]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_sizes_and_rows_are_those_of_the_host(
    comm: MPI.Intracomm, gpu: StandIn | Card, exchange: str
) -> None:
    matrix = ugly_matrix(67, 5)
    for grid in grids(comm):
        row_map = RowMap(uneven_starts(67, grid.num_blocks, 5), grid.block)
        part = block_row(matrix, row_map)
        traces = [TraceRecorder(None), TraceRecorder(None)]
        moved = make_exchange(exchange, grid, part, traces[0], "native", PREFETCH)
        wanted = DistributedSpMM(part, moved)
        found = make_operator(grid, part, exchange, PREFETCH, trace=traces[1])
        # Only products on the CPU choose the columns of a relation.
        size = replace(wanted.size, chooses_columns=False)
        assert (found.size, found.shape) == (size, wanted.shape)
        np.testing.assert_array_equal(found.volume().sent, wanted.volume().sent)
        x = np.ones((row_map.num_local, 2))
        for operator, rows in ((wanted, x), (found, gpu.asarray(x))):
            operator.apply_transpose(operator.apply(rows))
        counted = [movements(trace) for trace in traces]
        assert counted[0] == counted[1]


def movements(trace: TraceRecorder) -> dict[str, tuple[float, ...]]:
    return {
        name: (total["count"], total["rows"], total["bytes"])
        for name, total in trace.totals().items()
        if name.startswith(("exchange", "reduce"))
    }


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("wire", ROUNDING)
def test_narrow_wires_round_once(
    comm: MPI.Intracomm, gpu: StandIn | Card, exchange: str, wire: str
) -> None:
    matrix = ugly_matrix(53, 17)
    x = np.random.default_rng(5).normal(size=(53, 7)).astype(np.float32)
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(53, grid.num_blocks, 3), grid.block)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map, np.float32)
        operator = make_operator(grid, part, exchange, PREFETCH, wire)
        for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
            found = host(apply(gpu.asarray(x[mine])))
            expected = (dense @ x.astype(np.float64))[mine]
            bound = ROUNDING[wire] * (abs(dense) @ np.abs(x))[mine] + 1e-5
            assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_active_rows_and_columns(comm: MPI.Intracomm, gpu: StandIn | Card, exchange: str) -> None:
    matrix = ugly_matrix(61, 23)
    rng = np.random.default_rng(5)
    rows, columns = rng.random(61) < 0.4, rng.random(61) < 0.6
    x = rng.normal(size=(61, 3)) * columns[:, None]
    for grid in grids(comm):
        row_map = RowMap(uneven_starts(61, grid.num_blocks, 5), grid.block)
        mine = slice(row_map.start, row_map.stop)
        whole = block_row(matrix, row_map)
        plan = CommPlan.from_ghosts(grid, row_map, whole.ghosts)
        part = restrict(whole, plan, rows[mine], columns[mine])
        operator = make_operator(grid, part, exchange, PREFETCH)
        found = host(operator.apply(gpu.asarray(x[mine][columns[mine]])))
        np.testing.assert_allclose(found, (matrix @ x)[mine][rows[mine]], rtol=1e-12, atol=1e-12)
