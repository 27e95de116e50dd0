"""An exchange in stages moves what it moves at once."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap, shift_times
from tests.support.matrices import uneven_starts

NUM_NODES, WIDTH = 53, 3


def make_plan(grid: ProcessGrid, seed: int) -> tuple[RowMap, np.ndarray, CommPlan]:
    layer = grid.layer
    row_map = RowMap(uneven_starts(NUM_NODES, layer.size, seed), layer.rank)
    wanted = np.random.default_rng(100 * seed + layer.rank).random(NUM_NODES) < 0.4
    wanted &= layer.rank != 1
    nodes = np.flatnonzero(wanted).astype(np.int64)
    ghosts = nodes[~row_map.is_local(nodes)]
    return row_map, ghosts, CommPlan.from_ghosts(grid, row_map, ghosts)


@pytest.mark.parametrize("seed", [3, 8, 11])
def test_shifts_meet_one_owner_and_one_reader(comm: MPI.Intracomm, seed: int) -> None:
    with ProcessGrid(comm) as grid:
        _, ghosts, plan = make_plan(grid, seed)
        stages = plan.stages(*shift_times(plan.peers, comm.rank, comm.size))
        assert all(len(stage.ghosts) <= 1 and len(stage.owned) <= 1 for stage in stages)
        assert all(stage.ghosts or stage.owned for stage in stages)
        every = [plan.ghosts_of(stage) for stage in stages]
        np.testing.assert_array_equal(
            np.sort(np.concatenate([np.zeros(0, np.int32), *every])), np.arange(len(ghosts))
        )
        assert sum(stage.num_owned for stage in stages) == plan.num_sent


@pytest.mark.parametrize("ahead", [0, 1, 9])
def test_stages_deliver_what_one_exchange_delivers(comm: MPI.Intracomm, ahead: int) -> None:
    with ProcessGrid(comm) as grid:
        row_map, ghosts, plan = make_plan(grid, 5)
        x = np.random.default_rng(2).normal(size=(NUM_NODES, WIDTH))
        mine = np.ascontiguousarray(x[row_map.start : row_map.stop])
        stages = plan.stages(*shift_times(plan.peers, comm.rank, comm.size))
        under_way = []
        for number, stage in enumerate(stages):
            packed, rows = mine[plan.rows_of(stage)], np.empty((stage.num_ghosts, WIDTH))
            under_way.append(
                (stage, rows, packed, plan.start_stage(stage, packed, rows, forward=True))
            )
            if number >= ahead:
                check_arrival(plan, under_way.pop(0), x[ghosts])
        for each in under_way:
            check_arrival(plan, each, x[ghosts])


def check_arrival(plan: CommPlan, started, expected: np.ndarray) -> None:
    stage, rows, _, transfers = started
    for transfer in transfers:
        transfer.wait()
    np.testing.assert_array_equal(rows, expected[plan.ghosts_of(stage)])


def test_reverse_stages_are_the_adjoint(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        row_map, ghosts, plan = make_plan(grid, 7)
        y = np.random.default_rng(comm.rank).normal(size=(len(ghosts), WIDTH))
        back, expected = np.zeros((2, row_map.num_local, WIDTH))
        for stage in plan.stages(*shift_times(plan.peers, comm.rank, comm.size)):
            partial, arrived = y[plan.ghosts_of(stage)], np.empty((stage.num_owned, WIDTH))
            for transfer in plan.start_stage(stage, partial, arrived, forward=False):
                transfer.wait()
            np.add.at(back, plan.rows_of(stage), arrived)
        plan.reverse_add(y, expected)
        np.testing.assert_allclose(back, expected, rtol=1e-12, atol=1e-12)


def test_width_zero_moves_nothing(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        _, _, plan = make_plan(grid, 5)
        for stage in plan.stages(*shift_times(plan.peers, comm.rank, comm.size)):
            empty = np.empty((stage.num_owned, 0)), np.empty((stage.num_ghosts, 0))
            for transfer in plan.start_stage(stage, *empty, forward=True):
                transfer.wait()
