"""Every schedule gives the results of the resident one, and holds no more ghosts than declared."""

from collections.abc import Iterator

from mpi4py import MPI

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.sparse import DistCSR, restrict
from hpcgnn.spmm import EXCHANGES, DistributedSpMM, Schedule, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

SEQUENTIAL = [Schedule(sequential=True, prefetch=depth) for depth in (0, 1, 3)]
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-10}


def divisors(size: int) -> list[int]:
    return [c for c in range(1, size + 1) if size % c == 0]


def grids(comm: MPI.Intracomm) -> Iterator[ProcessGrid]:
    for replication in divisors(comm.size):
        with ProcessGrid(comm, replication) as grid:
            yield grid


def make_operator(
    grid: ProcessGrid,
    pattern: DistCSR,
    exchange: str,
    schedule: Schedule,
    wire: str = "native",
    trace: TraceRecorder | None = None,
) -> DistributedSpMM:
    trace = trace or TraceRecorder.off()
    mover = make_exchange(exchange, grid, pattern, trace, wire, schedule)
    return DistributedSpMM(pattern, mover)


def rows_of(grid: ProcessGrid, num_nodes: int, seed: int) -> RowMap:
    return RowMap(uneven_starts(num_nodes, grid.num_blocks, seed), grid.block)


@pytest.mark.pairs
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_sequential_equals_serial(comm: MPI.Intracomm, exchange: str, symmetric: bool) -> None:
    matrix = ugly_matrix(101, 17, symmetric=symmetric)
    x = np.random.default_rng(3).normal(size=(101, 7))
    for grid in grids(comm):
        row_map = rows_of(grid, 101, 3)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map)
        for schedule in SEQUENTIAL:
            operator = make_operator(grid, part, exchange, schedule)
            # Twice, with another width: buffers are reused and replaced.
            for width in (7, 2, 7):
                rows = np.ascontiguousarray(x[:, :width])
                for apply, dense in (
                    (operator.apply, matrix),
                    (operator.apply_transpose, matrix.T),
                ):
                    np.testing.assert_allclose(
                        apply(rows[mine].copy()), (dense @ rows)[mine], rtol=1e-12, atol=1e-12
                    )


@pytest.mark.parametrize("exchange", EXCHANGES)
@settings(max_examples=10)
@given(
    num_nodes=st.integers(1, 60),
    seed=st.integers(0, 10**6),
    width=st.sampled_from([1, 9]),
    depth=st.integers(0, 8),
    choice=st.integers(0, 7),
)
def test_any_graph(
    comm: MPI.Intracomm,
    exchange: str,
    num_nodes: int,
    seed: int,
    width: int,
    depth: int,
    choice: int,
) -> None:
    matrix = ugly_matrix(num_nodes, seed)
    replication = divisors(comm.size)[choice % len(divisors(comm.size))]
    x = np.random.default_rng(seed).normal(size=(num_nodes, width))
    with ProcessGrid(comm, replication) as grid:
        row_map = rows_of(grid, num_nodes, seed)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map)
        operator = make_operator(grid, part, exchange, Schedule(sequential=True, prefetch=depth))
        scale = max(np.abs(matrix).sum(axis=1).max(), np.abs(matrix).sum(axis=0).max(), 1.0)
        for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
            result = apply(x[mine].copy())
            np.testing.assert_allclose(result, (dense @ x)[mine], rtol=1e-12, atol=1e-12 * scale)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("wire", ROUNDING)
def test_narrow_wires_round_once(comm: MPI.Intracomm, exchange: str, wire: str) -> None:
    matrix = ugly_matrix(101, 17)
    x = np.random.default_rng(5).normal(size=(101, 7)).astype(np.float32)
    for grid in grids(comm):
        row_map = rows_of(grid, 101, 3)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map, np.float32)
        operator = make_operator(grid, part, exchange, SEQUENTIAL[1], wire)
        for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
            result = apply(x[mine].copy())
            expected = (dense @ x.astype(np.float64))[mine]
            bound = ROUNDING[wire] * (abs(dense) @ np.abs(x))[mine] + 1e-5
            assert (np.abs(result - expected) <= bound).all()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_active_rows_and_columns(comm: MPI.Intracomm, exchange: str) -> None:
    matrix = ugly_matrix(90, 43)
    rng = np.random.default_rng(8)
    rows, columns = rng.random((2, 90)) < 0.5
    x, y = rng.normal(size=(2, 90, 3))
    for grid in grids(comm):
        row_map = rows_of(grid, 90, 6)
        mine = slice(row_map.start, row_map.stop)
        whole = block_row(matrix, row_map)
        plan = CommPlan.from_ghosts(grid, row_map, whole.ghosts)
        part = restrict(whole, plan, rows[mine], columns[mine])
        inputs, outputs = x[mine][columns[mine]], y[mine][rows[mine]]
        resident = make_operator(grid, part, exchange, Schedule())
        for schedule in SEQUENTIAL:
            operator = make_operator(grid, part, exchange, schedule)
            for name, given_rows in (("apply", inputs), ("apply_transpose", outputs)):
                expected = getattr(resident, name)(given_rows)
                result = getattr(operator, name)(given_rows)
                np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_rows_move_as_the_plan_says(comm: MPI.Intracomm, exchange: str) -> None:
    with ProcessGrid(comm) as grid:
        row_map = rows_of(grid, 70, 4)
        part = block_row(ugly_matrix(70, 37), row_map)
        trace = TraceRecorder.open(None, comm.rank, {})
        operator = make_operator(grid, part, exchange, SEQUENTIAL[1], trace=trace)
        resident = make_operator(grid, part, exchange, Schedule())
        x = np.ones((row_map.num_local, 6))
        operator.apply(x)
        operator.apply_transpose(x)
        volume, totals = operator.volume(), trace.totals()
        np.testing.assert_array_equal(volume.sent, resident.volume().sent)
        names = ("exchange.forward", "exchange.reverse")
        rows, size = (sum(totals.get(n, {}).get(k, 0) for n in names) for k in ("rows", "bytes"))
        assert rows == volume.sent.sum() + volume.received.sum()
        assert size == rows * 6 * 8


@pytest.mark.pairs
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("schedule", SEQUENTIAL, ids=str)
def test_ghosts_in_memory_are_bounded(
    comm: MPI.Intracomm, exchange: str, schedule: Schedule
) -> None:
    matrix = ugly_matrix(160, 71, symmetric=True)
    for grid in grids(comm):
        starts = np.linspace(0, 160, grid.num_blocks + 1).astype(np.int64)
        row_map = RowMap(starts, grid.block)
        part = block_row(matrix, row_map)
        operator = make_operator(grid, part, exchange, schedule)
        x = np.ones((row_map.num_local, 5))
        for _ in range(2):
            operator.apply(x)
            operator.apply_transpose(x)
        largest_block = int(np.diff(starts).max()) * 5 * 8
        # A host's push holds its sums as well as the partial sums of a rank.
        blocks = max(1 + schedule.prefetch, 2 if exchange.startswith("hierarchical") else 1)
        assert grid.buffers.ghosts.peak <= blocks * largest_block
        assert grid.buffers.ghosts.now == 0


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_stages_name_their_ghosts(comm: MPI.Intracomm, exchange: str) -> None:
    """A fetch of ids shows which node is in which row of every stage."""
    matrix = ugly_matrix(101, 17)
    for grid in grids(comm):
        row_map = rows_of(grid, 101, 3)
        part = block_row(matrix, row_map)
        ids = np.arange(row_map.start, row_map.stop, dtype=np.float64)[:, None]
        for schedule in (Schedule(), *SEQUENTIAL):
            bound = make_exchange(
                exchange, grid, part, TraceRecorder.off(), "native", schedule
            ).bind(part)
            for remote in bound:
                if remote is not None:
                    # The oblivious exchange leaves out the block columns of other replicas.
                    every = grid.replication == 1 or exchange != "oblivious"
                    assert_rows_are_ghosts(remote, ids, every=every)


def assert_rows_are_ghosts(remote, ids: np.ndarray, *, every: bool) -> None:
    fetch = remote.start_fetch(ids)
    seen = []
    for index, block in enumerate(remote.blocks):
        rows = fetch.stage(index)[:, 0]
        ghosts = remote.ghosts.columns.ghosts_of(index)
        assert len(ghosts) == len(rows) == block.shape[1]
        assert (ghosts[block.indices] >= 0).all()
        seen.append(np.stack([ghosts[ghosts >= 0], rows[ghosts >= 0].astype(np.int64)]))
    position, node = np.concatenate([np.zeros((2, 0), np.int64), *seen], axis=1)
    # The ghosts of an exchange increase, and no stage repeats one of another.
    order = np.argsort(position)
    assert (np.diff(position[order]) > 0).all()
    assert (np.diff(node[order]) > 0).all()
    assert not every or position.max(initial=-1) == len(position) - 1


def test_rows_are_kept_when_resident(comm: MPI.Intracomm) -> None:
    matrix = ugly_matrix(80, 19)
    with ProcessGrid(comm) as grid:
        row_map = rows_of(grid, 80, 3)
        part = block_row(matrix, row_map)
        for exchange in EXCHANGES:
            remote = make_exchange(exchange, grid, part, TraceRecorder.off()).bind(part)[0]
            x = np.random.default_rng(grid.block).normal(size=(row_map.num_local, 3))
            fetch = remote.ghosts.start_fetch(x, keep=True)
            kept = [fetch.stage(index) for index in range(len(remote.blocks))]
            copies = [rows.copy() for rows in kept]
            again = remote.ghosts.start_fetch(-x)
            for index in range(len(remote.blocks)):
                again.stage(index)
            comm.Barrier()
            for rows, copy in zip(kept, copies, strict=True):
                np.testing.assert_array_equal(rows, copy)


def test_a_sequential_exchange_keeps_nothing(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        row_map = rows_of(grid, 30, 3)
        part = block_row(ugly_matrix(30, 5), row_map)
        for exchange in EXCHANGES:
            mover = make_exchange(
                exchange, grid, part, TraceRecorder.off(), "native", SEQUENTIAL[0]
            )
            remote = mover.bind(part)[0]
            with pytest.raises(ValueError, match="keeps no ghosts"):
                remote.ghosts.start_fetch(np.ones((row_map.num_local, 1)), keep=True)


def test_prefetch_needs_a_sequential_schedule() -> None:
    with pytest.raises(ValueError, match="sequential"):
        Schedule(prefetch=1)
    with pytest.raises(ValueError, match="use 0, or more"):
        Schedule(sequential=True, prefetch=-1)
