"""Features are cast and scaled in place over all ranks."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid, RowMap
from hpcgnn.graph.inputs import Scales, Scaling, cast_features
from tests.support.matrices import uneven_starts

NUM_NODES = 43


def every() -> None:
    """Declare all rows as measured."""


def test_casting_keeps_what_fits(comm: MPI.Intracomm) -> None:
    rows = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    with ProcessGrid(comm) as grid:
        cast = cast_features(grid, rows, "float32")
        assert cast.dtype == np.float32
        assert cast.flags.c_contiguous
        np.testing.assert_array_equal(cast, rows)
        assert cast_features(grid, cast, "float32") is cast
        half = cast_features(grid, rows.astype(np.float16), "float64")
        np.testing.assert_array_equal(half, rows)


def test_values_beyond_float32_are_refused_everywhere(comm: MPI.Intracomm) -> None:
    rows = np.full((2, 2), 1e300 if comm.rank == comm.size - 1 else 1.0)
    with ProcessGrid(comm) as grid:
        with pytest.raises(CollectiveInputError, match=r"too large for train.dtype = 'float32'"):
            cast_features(grid, rows, "float32")
        assert cast_features(grid, rows, "float64") is rows


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_standard_scale_is_that_of_all_nodes(
    comm: MPI.Intracomm, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcgnn.graph.inputs._BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(5)
    rows = rng.normal(1e6, 3, (NUM_NODES, 4))
    rows[:, 2] = 7.0
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 14), comm.rank)
    mine = rows[row_map.start : row_map.stop].copy()
    with ProcessGrid(comm) as grid:
        scales = Scales()
        Scaling(grid, "standard", scales, "float64")("", mine, every)
        scale = scales.get("")
        assert scale is not None
        np.testing.assert_allclose(scale.mean, rows.mean(axis=0), rtol=1e-14)
        np.testing.assert_allclose(scale.deviation, rows.std(axis=0), rtol=1e-9)
        deviation = np.where(rows.std(axis=0) > 0, rows.std(axis=0), 1)
        expected = (rows - rows.mean(axis=0)) / deviation
        np.testing.assert_allclose(mine, expected[row_map.start : row_map.stop], atol=1e-8)

        again = Scaling(grid, "standard", Scales.from_tensors(scales.tensors()), "float64")
        other = np.ones((2, 4))
        again("", other, every)
        np.testing.assert_allclose(other, ((1 - scale.mean) / deviation)[None].repeat(2, 0))
        for name, columns in (("", 3), ("other", 4)):
            with pytest.raises(CollectiveInputError, match=f"not trained on {columns} scaled"):
                again(name, np.ones((2, columns)), every)


def test_constant_columns_become_zeros(comm: MPI.Intracomm) -> None:
    # Their mean over all nodes is rounded.
    rows = np.tile([0.1, 1 / 3, 1e7 / 3, 0.0], (NUM_NODES, 1))
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 14), comm.rank)
    mine = rows[row_map.start : row_map.stop].copy()
    scales = Scales()
    with ProcessGrid(comm) as grid:
        Scaling(grid, "standard", scales, "float64")("", mine, every)
    scale = scales.get("")
    assert scale is not None
    assert not scale.deviation.any()
    np.testing.assert_allclose(mine, 0, atol=1e-8)


def test_rows_are_scaled_one_by_one(comm: MPI.Intracomm) -> None:
    rows = np.array([[1.0, -3.0], [0.0, 0.0], [2.0, 2.0]], np.float32)
    with ProcessGrid(comm) as grid:
        scales = Scales()
        for how in ("none", "row"):
            Scaling(grid, how, scales, "float32")("", rows, every)
    assert scales.tensors() == {}
    np.testing.assert_array_equal(rows, [[0.25, -0.75], [0, 0], [0.5, 0.5]])
