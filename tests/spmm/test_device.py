"""Products with everything but the messages on a device equal those on the host."""

import sys

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.spmm.device import DeviceSpMM
from hpcgnn.spmm.device_exchange import DeviceExchange
from hpcgnn.spmm.ghosts import Wire
from hpcgnn.spmm.transports import StagedTransport
from hpcgnn.trace import TraceRecorder
from tests.kernels.cuda.stand_in import StandIn, compiler, host
from tests.ugly import block_row, ugly_matrix, uneven_starts

TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
OFF = TraceRecorder.off()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    if compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be emulated")
    made = StandIn()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "cupyx", made)
    return made


def product(grid: ProcessGrid, part: DistCSR, wire: Wire) -> DeviceSpMM:
    exchange = DeviceExchange(grid, part, wire, StagedTransport(), OFF)
    return DeviceSpMM(grid, part, exchange, OFF)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_nodes", [1, 2, 101])
def test_equals_the_host(comm: MPI.Intracomm, device: StandIn, num_nodes: int, dtype: type) -> None:
    matrix = ugly_matrix(num_nodes, 17)
    with ProcessGrid(comm, 1) as grid:
        row_map = RowMap(uneven_starts(num_nodes, grid.num_blocks, 3), grid.block)
        part = block_row(matrix, row_map, dtype)
        operator = product(grid, part, Wire())
        rng = np.random.default_rng(3)
        mine = slice(row_map.start, row_map.stop)
        # The second width finds the buffers of the first one gone.
        for width in (7, 1):
            x = rng.normal(size=(num_nodes, width)).astype(dtype)
            own = device.asarray(np.ascontiguousarray(x[mine]))
            for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
                result = host(apply(own))
                assert result.dtype == dtype
                expected = (dense @ x.astype(np.float64))[mine]
                scale = max(1.0, float(np.abs(matrix).sum(axis=1).max()), matrix.sum(axis=0).max())
                tolerance = TOLERANCE[dtype]
                np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * scale)


def test_sizes_rows_and_a_16_bit_wire_are_those_of_the_host(
    comm: MPI.Intracomm, device: StandIn
) -> None:
    matrix = ugly_matrix(67, 5)
    with ProcessGrid(comm, 1) as grid:
        row_map = RowMap(uneven_starts(67, grid.num_blocks, 5), grid.block)
        part = block_row(matrix, row_map, np.float32)
        mover = make_exchange("aware", grid, part, OFF, "bfloat16")
        wanted = DistributedSpMM(grid, part, mover, OFF)
        operator = product(grid, part, Wire("bfloat16"))
        assert operator.size == wanted.size
        assert operator.shape == wanted.shape
        np.testing.assert_array_equal(operator.volume().sent, wanted.volume().sent)
        x = np.random.default_rng(grid.block).normal(size=(row_map.num_local, 9))
        x = x.astype(np.float32)
        own = device.asarray(x)
        np.testing.assert_allclose(host(operator.apply(own)), wanted.apply(x), rtol=1e-4, atol=1e-4)
        # Partial sums are rounded after additions in another order: to a unit of bfloat16.
        found, like = host(operator.apply_transpose(own)), wanted.apply_transpose(x)
        np.testing.assert_allclose(found, like, rtol=0.02, atol=0.02 * np.abs(like).max(initial=1))


def test_what_it_cannot_do_is_refused(comm: MPI.Intracomm, device: StandIn) -> None:
    with ProcessGrid(comm, 1) as grid:
        row_map = RowMap(uneven_starts(9, grid.num_blocks, 5), grid.block)
        part = block_row(ugly_matrix(9, 5), row_map)
        with pytest.raises(ValueError, match="no float16"):
            product(grid, part, Wire("float16"))
        assert device.under_way == []
