"""Rows in 8, 4 and 2 bits on the wire: how each row is rounded, for any number of ranks."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import Message, ProcessGrid, RowMap
from hpcgnn.errors import InputError
from hpcgnn.kernels import dequantise_rows, key_of, quantise_rows, quantised_bytes
from hpcgnn.spmm import (
    RESIDENT,
    SCHEDULES,
    Carrier,
    Channel,
    DistributedSpMM,
    Peers,
    Schedule,
    exchange_by,
    make_wire,
)
from hpcgnn.spmm.exchange.sums import PackedSums, SumRows
from hpcgnn.spmm.remote import _row_ids
from hpcgnn.spmm.wire import SUM_BYTES
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

SIZE, WIDTH = 90, 12
SEED, EPOCH = 7, 3
METHODS = ("oblivious", "aware", "push", "joint", "hierarchical")


def names() -> Array:
    return np.random.default_rng(8).permutation(10**6)[:SIZE].astype(np.int64)


def operator(
    grid: ProcessGrid, matrix, method: str, wire: str, schedule: str = "resident"
) -> tuple[slice, DistributedSpMM]:
    row_map = RowMap(uneven_starts(SIZE, grid.num_blocks, 5), grid.block)
    part, trace = block_row(matrix, row_map, np.float32), TraceRecorder.off()
    mine = slice(row_map.start, row_map.stop)
    how = Schedule(sequential=True, prefetch=1) if schedule == "sequential" else RESIDENT
    ids = names()[mine]
    channel = Channel(grid, make_wire(wire), how, Carrier(grid), trace, Peers(grid), ids)
    return mine, DistributedSpMM(part, exchange_by(method, channel, part))


def rounded(x: Array, bits: int, product: int) -> Array:
    """Return every row in a product of an epoch, as each reader gets it."""
    packed = np.empty((len(x), quantised_bytes(x.shape[1], bits)), np.uint8)
    key = key_of(SEED, EPOCH, product, 0)
    quantise_rows(x, names(), key, bits, packed)
    out = np.empty_like(x)
    dequantise_rows(packed, names(), key, bits, out)
    return out


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("wire", ["int8", "int4/int8", "int2"])
@pytest.mark.parametrize("method", ["oblivious", "aware"])
def test_a_row_is_rounded_alike_for_all_readers(
    comm: MPI.Intracomm, method: str, wire: str, schedule: str
) -> None:
    matrix = ugly_matrix(SIZE, 61)
    x = np.random.default_rng(2).normal(size=(SIZE, WIDTH)).astype(np.float32)
    bits = {"int8": 8, "int4/int8": 4, "int2": 2}[wire]
    for replication in (c for c in (1, 2, 4) if comm.size % c == 0):
        with ProcessGrid(comm, replication) as grid:
            mine, product = operator(grid, matrix, method, wire, schedule)
            grid.run_position.begin(SEED, EPOCH)
            for number in (1, 2):
                found = product.apply(np.ascontiguousarray(x[mine]))
                rows = matrix[mine].toarray()
                own = np.zeros(SIZE, np.bool_)
                own[mine] = True
                expected = rows[:, own] @ x[own] + rows[:, ~own] @ rounded(x, bits, number)[~own]
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", METHODS)
def test_products_have_no_bias_and_the_adjoint_none(
    comm: MPI.Intracomm, method: str, schedule: str
) -> None:
    matrix, draws = ugly_matrix(SIZE, 61), 30
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, SIZE, WIDTH)).astype(np.float32)
    host = f"host{comm.rank // 2}"
    with ProcessGrid(comm, host=host) as grid:
        mine, product = operator(grid, matrix, method, "int4", schedule)
        sums = np.zeros((2, *x[mine].shape))
        for epoch in range(draws):
            grid.run_position.begin(SEED, epoch)
            sums[0] += product.apply(np.ascontiguousarray(x[mine]))
            sums[1] += product.apply_transpose(np.ascontiguousarray(y[mine]))
    for total, dense, rows in ((sums[0], matrix, x), (sums[1], matrix.T, y)):
        error = total / draws - (dense @ rows.astype(np.float64))[mine]
        # Steps are a fifteenth of the span, of rows or of partial sums of at most that many terms.
        size = abs(dense) @ np.ptp(rows, axis=1, keepdims=True).astype(np.float64)
        bound = 6 * 0.5 / 15 * 1.1 * size[mine] / np.sqrt(draws)
        assert (np.abs(error) <= bound + 1e-4).all()
        if comm.size > 1 and method != "hierarchical":
            assert comm.allreduce(float(np.abs(error).max(initial=0)), MPI.MAX) > 0


def test_gradients_may_travel_otherwise(comm: MPI.Intracomm) -> None:
    matrix = ugly_matrix(SIZE, 61)
    x = np.random.default_rng(2).normal(size=(SIZE, WIDTH)).astype(np.float32)
    with ProcessGrid(comm) as grid:
        mine, product = operator(grid, matrix, "joint", "int8/native")
        exact = (matrix @ x.astype(np.float64))[mine]
        with grid.run_position.backward():
            found = product.apply(np.ascontiguousarray(x[mine]))
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)
        if comm.size > 1:
            error = np.abs(product.apply(np.ascontiguousarray(x[mine])) - exact)
            assert comm.allreduce(float(error.max(initial=0)), MPI.MAX) > 1e-3


def test_rows_of_a_lone_node_have_a_name_for_each_relation() -> None:
    with ProcessGrid(MPI.COMM_SELF) as grid:
        part = block_row(ugly_matrix(1, 1), RowMap(np.array([0, 1], np.int64), 0))
        trace, ids = TraceRecorder.off(), np.array([7], np.int64)
        wire = make_wire("int8")
        channel = Channel(grid, wire, RESIDENT, Carrier(grid), trace, Peers(grid), ids)
        found = _row_ids(channel, part, None, 3)
    assert found is not None
    assert found.tolist() == [7, 7 + (1 << 40), 7 + (2 << 40)]


@pytest.mark.parametrize("wire", ["int8/bfloat16", "int8/", "/int8", "int3"])
def test_unknown_pairs_are_refused(wire: str) -> None:
    with pytest.raises(InputError, match="int8/native"):
        make_wire(wire)


@pytest.mark.parametrize("size", SUM_BYTES)
def test_sums_of_integers_arrive_as_they_were(size: int) -> None:
    rng, top = np.random.default_rng(3), 2.0 ** (8 * size - 1) - 1
    sent = np.rint(rng.uniform(-top, top, (40, 3)))
    sent[:3] = [[0, -1, 1], [-(2.0**16), 2.0**16 - 1, -7], [top, -top, 5]]
    sizes = np.full(40, size)
    # Shorter ones are beside them.
    sizes[::3], sent[::3] = 4, sent[::3] // 2.0 ** (8 * size - 32)
    messages = Message(2, slice(0, 7)), Message(5, slice(7, 40))
    form = PackedSums.of(messages, sizes)
    packed = np.empty((form.num_units, sent.shape[1]), np.uint8)
    assert packed.nbytes == sizes.sum() * 3 == sum(each.num_rows for each in form.messages) * 3
    form.pack(sent, packed)
    found = np.empty_like(sent)
    form.unpack(packed, found)
    np.testing.assert_array_equal(found, sent)


def test_sums_take_the_bytes_of_their_terms() -> None:
    rows = SumRows([Message(1, slice(0, 4))])
    assert rows.packed(0).num_units == 4 * 6
    rows.count(np.array([[0.0], [31], [32], [8192]]))
    assert [rows.packed(bits).num_units for bits in (26, 30)] == [4 + 4 + 5 + 6, 4 + 5 + 5 + 6]
    # Another matrix with this pattern has more in one row, and less in others.
    rows.count(np.array([[0.0], [40], [1], [1]]))
    assert rows.packed(26).num_units == 4 + 5 + 5 + 6
