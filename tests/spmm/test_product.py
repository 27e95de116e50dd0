"""Every exchange on every grid equals the serial product, and its adjoint the transposed one."""

import json

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.comm import ProcessGrid, RowMap, are_joined
from hpcgnn.errors import InputError
from hpcgnn.operator import Transposed
from hpcgnn.spmm import EXCHANGES, DistributedSpMM, make_exchange, make_wire
from hpcgnn.trace import TraceRecorder, trace_file
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-10}


def divisors(size: int) -> list[int]:
    return [c for c in range(1, size + 1) if size % c == 0]


def product(
    grid: ProcessGrid,
    matrix: sp.csr_matrix,
    exchange: str,
    seed: int,
    dtype: type = np.float64,
    wire: str = "native",
) -> tuple[RowMap, DistributedSpMM]:
    row_map = RowMap(uneven_starts(matrix.shape[0], grid.num_blocks, seed), grid.block)
    part = block_row(matrix, row_map, dtype)
    mover = make_exchange(exchange, grid, part, TraceRecorder.off(), wire)
    return row_map, DistributedSpMM(part, mover)


def check(
    grid: ProcessGrid, matrix: sp.csr_matrix, exchange: str, seed: int, width: int, dtype: type
) -> None:
    row_map, operator = product(grid, matrix, exchange, seed, dtype)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(matrix.shape[0], width)).astype(dtype)
    mine = slice(row_map.start, row_map.stop)
    tolerance = TOLERANCE[dtype]
    scale = max(np.abs(matrix).sum(axis=1).max(), np.abs(matrix).sum(axis=0).max(), 1.0)
    for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
        result = apply(np.ascontiguousarray(x[mine]))
        assert result.dtype == dtype
        expected = (dense @ x.astype(np.float64))[mine]
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.pairs
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("symmetric", [False, True])
def test_equals_serial(comm: MPI.Intracomm, exchange: str, dtype: type, symmetric: bool) -> None:
    matrix = ugly_matrix(101, 17, symmetric=symmetric)
    for replication in divisors(comm.size):
        with ProcessGrid(comm, replication) as grid:
            check(grid, matrix, exchange, 3, 7, dtype)


@pytest.mark.parametrize("exchange", EXCHANGES)
@settings(max_examples=15)
@given(
    num_nodes=st.integers(1, 60),
    seed=st.integers(0, 10**6),
    width=st.sampled_from([1, 2, 9]),
    choice=st.integers(0, 7),
)
def test_any_graph(
    comm: MPI.Intracomm, exchange: str, num_nodes: int, seed: int, width: int, choice: int
) -> None:
    matrix = ugly_matrix(num_nodes, seed)
    replication = divisors(comm.size)[choice % len(divisors(comm.size))]
    with ProcessGrid(comm, replication) as grid:
        check(grid, matrix, exchange, seed, width, np.float64)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_narrow_wires_round_once(comm: MPI.Intracomm, exchange: str, wire: str) -> None:
    matrix = ugly_matrix(101, 17)
    for replication in divisors(comm.size):
        with ProcessGrid(comm, replication) as grid:
            row_map, operator = product(grid, matrix, exchange, 3, np.float32, wire)
            x = np.random.default_rng(5).normal(size=(101, 7)).astype(np.float32)
            mine = slice(row_map.start, row_map.stop)
            for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
                result = apply(np.ascontiguousarray(x[mine]))
                expected = (dense @ x.astype(np.float64))[mine]
                # Every term, or every partial sum, is rounded at most once.
                bound = ROUNDING[wire] * (abs(dense) @ np.abs(x))[mine] + 1e-5
                assert (np.abs(result - expected) <= bound).all()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("wire", ["native", "bfloat16"])
def test_rows_of_16_bits_add_up_in_float32(comm: MPI.Intracomm, exchange: str, wire: str) -> None:
    matrix = ugly_matrix(101, 17)
    for replication in divisors(comm.size):
        with ProcessGrid(comm, replication) as grid:
            row_map, operator = product(grid, matrix, exchange, 3, np.float32, wire)
            mine, rng = slice(row_map.start, row_map.stop), np.random.default_rng(5)
            (x, y), bits = _rounded(rng.normal(size=(2, 101, 7)))
            found = []
            for given, apply, dense in (
                (0, operator.apply, matrix),
                (1, operator.apply_transpose, matrix.T),
            ):
                result = apply(np.ascontiguousarray(bits[given, mine]))
                assert result.dtype == np.uint16
                found.append(_wide(result))
                whole = (x, y)[given]
                # Products are exact; partial sums are rounded for the wire, and the result once.
                bound = 2.0**-7 * (abs(dense) @ np.abs(whole))[mine] + 1e-5
                assert (np.abs(found[-1] - (dense @ whole)[mine]) <= bound).all()
            left = grid.layer.allreduce(float(np.vdot(found[0], y[mine])))
            right = grid.layer.allreduce(float(np.vdot(x[mine], found[1])))
            scale = np.vdot(abs(matrix) @ np.abs(x), np.abs(y))
            assert abs(left - right) <= 2.0**-7 * scale


def _rounded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers that are exact in bfloat16, and their bits."""
    bits = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return _wide(bits), bits


def _wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_adjoint(comm: MPI.Intracomm, exchange: str) -> None:
    for replication in divisors(comm.size):
        with ProcessGrid(comm, replication) as grid:
            row_map, operator = product(grid, ugly_matrix(67, 29), exchange, 13)
            rng = np.random.default_rng(grid.block)
            x, y = rng.normal(size=(2, row_map.num_local, 5))
            left = grid.layer.allreduce(float(np.vdot(operator.apply(x), y)))
            right = grid.layer.allreduce(float(np.vdot(x, operator.apply_transpose(y))))
            assert left == pytest.approx(right, rel=1e-12)
            twice = Transposed(Transposed(operator))
            np.testing.assert_array_equal(twice.apply(x), operator.apply(x))


def test_aware_moves_distinct_remote_neighbours(comm: MPI.Intracomm) -> None:
    matrix = ugly_matrix(80, 19)
    with ProcessGrid(comm) as grid:
        row_map, operator = product(grid, matrix, "aware", 21)
        columns = np.unique(matrix[row_map.start : row_map.stop].indices).astype(np.int64)
        remote = columns[~row_map.is_local(columns)]
        expected = np.bincount(row_map.owner(remote), minlength=comm.size)
        np.testing.assert_array_equal(operator.volume().received, expected)


def test_oblivious_moves_whole_blocks(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        row_map, operator = product(grid, ugly_matrix(80, 19), "oblivious", 21)
        volume = operator.volume()
        assert volume.sent.sum() == row_map.num_local * (comm.size - 1)
        assert volume.received.sum() == row_map.num_rows - row_map.num_local


@pytest.mark.parametrize("wire", ["native", "int8"])
@pytest.mark.parametrize("exchange", ["joint", "hierarchical_joint"])
def test_short_messages_of_both_halves_are_one(
    comm: MPI.Intracomm, exchange: str, wire: str, monkeypatch, tmp_path
) -> None:
    matrix, width, found = ugly_matrix(90, 29), 6, []
    row_bytes = make_wire(wire).row_bytes(np.empty((0, width), np.float32))
    # None, some, and all of the messages that both halves have.
    for limit in (0, 12 * row_bytes, 1 << 20):
        monkeypatch.setattr("hpcgnn.comm.joined_messages._SHORT_BYTES", limit)
        path = trace_file(tmp_path / str(limit), comm.rank)
        with (
            ProcessGrid(comm, host=f"n{comm.rank // 2}") as grid,
            TraceRecorder.open(path, comm.rank, {}) as trace,
        ):
            row_map = RowMap(uneven_starts(90, comm.size, 4), comm.rank)
            part = block_row(matrix, row_map, np.float32)
            mover = make_exchange(exchange, grid, part, trace, wire)
            operator = DistributedSpMM(part, mover)
            x = np.random.default_rng(3).random((90, width), np.float32)
            mine = np.ascontiguousarray(x[row_map.start : row_map.stop])
            found.append((operator.apply(mine), operator.apply_transpose(mine)))
            volumes = mover.volumes
        records = [json.loads(line) for line in path.read_text().splitlines()]
        told = [each["joined_messages"] for each in records if "joined_messages" in each]
        expected = []
        for side in ("sent", "received"):
            rows = [getattr(each, side) for each in volumes]
            expected.append(np.count_nonzero(are_joined(*rows, row_bytes)) if rows[1:] else 0)
        assert told == [each for each in expected if each > 0]
    for one, other in zip(found[1:], found, strict=False):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_trace_counts_what_the_plan_says(comm: MPI.Intracomm, exchange: str) -> None:
    matrix = ugly_matrix(70, 37)
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(70, comm.size, 4), comm.rank)
        part = block_row(matrix, row_map)
        trace = TraceRecorder.open(None, comm.rank, {})
        mover = make_exchange(exchange, grid, part, trace)
        operator = DistributedSpMM(part, mover)
        x = np.ones((row_map.num_local, 6))
        operator.apply(x)
        operator.apply_transpose(x)
        volume, totals = operator.volume(), trace.totals()
        names = ("exchange.forward", "exchange.reverse")
        rows, size = (sum(totals.get(n, {}).get(k, 0) for n in names) for k in ("rows", "bytes"))
        # The adjoint moves every row back.
        assert rows == volume.sent.sum() + volume.received.sum()
        assert size == rows * 6 * 8


def test_wrong_rows_are_refused() -> None:
    with ProcessGrid(MPI.COMM_SELF) as grid:
        _, operator = product(grid, ugly_matrix(9, 1), "aware", 1)
        with pytest.raises(ValueError, match="expected"):
            operator.apply(np.ones((8, 2)))


def test_unknown_exchange() -> None:
    with ProcessGrid(MPI.COMM_SELF) as grid:
        part = block_row(ugly_matrix(3, 1), RowMap(np.array([0, 3], np.int64), 0))
        with pytest.raises(InputError, match="oblivious, aware"):
            make_exchange("awre", grid, part, TraceRecorder.off())
        with pytest.raises(InputError, match="bfloat16"):
            make_exchange("aware", grid, part, TraceRecorder.off(), "float8")


def test_one_block_moves_nothing() -> None:
    """There is no pass over rows of other ranks if there are none."""
    trace, matrix = TraceRecorder.unattached(), ugly_matrix(60, 5)
    with ProcessGrid(MPI.COMM_SELF) as grid:
        part = block_row(matrix, RowMap(np.array([0, 60]), 0), np.float64)
        operator = DistributedSpMM(part, make_exchange("joint", grid, part, trace))
        operator.apply(np.ones((60, 3)))
        operator.apply_transpose(np.ones((60, 3)))
    assert set(trace.totals()) == {"interior.forward", "interior.reverse"}
