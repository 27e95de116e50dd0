"""An exchange in stages moves the same rows as one at once."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap, shift_times
from hpcgnn.comm import grid as grid_module
from hpcgnn.comm.grid import _ring_bandwidth
from hpcgnn.comm.stages import start_parts
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


@pytest.mark.parametrize("rows_a_piece", [0, 1, 2, 5, 1000])
def test_long_messages_go_in_pieces(comm: MPI.Intracomm, rows_a_piece: int) -> None:
    with ProcessGrid(comm) as grid:
        row_map, ghosts, whole = make_plan(grid, 5)
        # A row longer than a piece is a piece; some pairs of ranks send whole messages.
        together = (np.arange(comm.size) + comm.rank) % 3 == 0
        limits = np.where(together, np.iinfo(np.int64).max, rows_a_piece * WIDTH * 8 + 7)
        plan = replace(whole, piece_bytes=limits)
        x = np.random.default_rng(2).normal(size=(NUM_NODES, WIDTH))
        mine = np.ascontiguousarray(x[row_map.start : row_map.stop])
        packed, rows = mine[plan.send_rows], np.empty((len(ghosts), WIDTH))
        started = plan.start_stage(plan.everything, packed, rows, forward=True)
        longest = np.maximum(np.where(together[plan.peers], NUM_NODES, rows_a_piece), 1)
        for transfer, counts in zip(started, (plan.send_counts, plan.recv_counts), strict=True):
            assert len(transfer._requests) == (-(-counts // longest)).sum()
            transfer.wait()
        np.testing.assert_array_equal(rows, x[ghosts])
        y = np.random.default_rng(comm.rank).normal(size=rows.shape)
        back, expected = np.zeros((2, *mine.shape))
        plan.reverse_add(y, back)
        whole.reverse_add(y, expected)
        np.testing.assert_array_equal(back, expected)


def test_hosts_get_pieces_over_slow_links_alone(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A piece takes a link 0.3 ms, and has 8 to 32 KiB.
    for bandwidth, longest in ((1e6, 8192), (5e7, 15000), (125e6, 32768), (1e10, None)):
        is_slow = longest is not None
        monkeypatch.setattr(grid_module, "_ring_bandwidth", lambda _, found=bandwidth: found)
        with ProcessGrid(comm, host=f"host{comm.rank % 2}") as grid:
            _, _, plan = make_plan(grid, 5)
            apart = (np.arange(comm.size) - comm.rank) % 2 == 1
            np.testing.assert_array_equal(plan.piece_bytes < 1 << 40, apart & is_slow)
            assert set(plan.piece_bytes[apart & is_slow]) <= {longest}
            # A stage with several others waits for its reader.
            for stage in plan.stages(*shift_times(plan.peers, comm.rank, comm.size)):
                rows = np.zeros((stage.num_owned, 9999)), np.empty((stage.num_ghosts, 9999))
                for transfer, messages in zip(
                    plan.start_stage(stage, *rows, forward=True),
                    (stage.owned, stage.ghosts),
                    strict=True,
                ):
                    assert len(transfer._requests) == len(messages)
                    transfer.wait()


def test_ranks_send_to_the_next_one_first() -> None:
    started: list[tuple[str, int]] = []

    def start(kind: str, _: object, peer: int, tag: int) -> None:
        assert tag == 7
        started.append((kind, peer))

    own = SimpleNamespace(rank=2, size=5, Irecv=partial(start, "in"), Isend=partial(start, "out"))
    parts = [(peer, np.zeros((2, WIDTH))) for peer in (0, 1, 3, 4)]
    _, coming = start_parts(own, parts, parts, 7, np.full(5, WIDTH * 8))
    # Pieces of a message stay together, and arrivals are reported in the order of ranks.
    assert [peer for kind, peer in started if kind == "out"] == [3, 3, 4, 4, 0, 0, 1, 1]
    assert [peer for kind, peer in started if kind == "in"] == [0, 0, 1, 1, 3, 3, 4, 4]
    assert len(coming._requests) == len(coming._sizes) == 8


def test_links_of_ranks_are_measured(comm: MPI.Intracomm) -> None:
    found = _ring_bandwidth(comm)
    assert 1e6 < found < 1e12
    assert comm.allgather(found) == [found] * comm.size


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
