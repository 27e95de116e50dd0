"""Communicators of neighbours: only as many as are in use, for any number of plans."""

import gc

from mpi4py import MPI

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap

STEPS = 150


def row_map(comm: MPI.Intracomm) -> RowMap:
    return RowMap(5 * np.arange(comm.size + 1, dtype=np.int64), comm.rank)


def ring(comm: MPI.Intracomm, step: int) -> np.ndarray:
    """The first row of another rank, `step` ranks away; none where that is this rank."""
    other = (comm.rank + step) % comm.size
    return np.array([5 * other] if other != comm.rank else [], np.int64)


def fetched(plan: CommPlan, rows: RowMap) -> list[float]:
    ghosts = np.empty((plan.num_ghosts, 1))
    sent = (rows.start + plan.send_rows).astype(float).reshape(-1, 1)
    plan.start_forward(sent, ghosts).wait()
    return ghosts.ravel().tolist()


def test_plans_that_end_leave_no_communicators(comm: MPI.Intracomm) -> None:
    rows = row_map(comm)
    generator = np.random.default_rng(comm.rank)
    # This rank releases some plans later than others do.
    late = []
    with ProcessGrid(comm) as grid:
        for step in range(STEPS):
            ghosts = ring(comm, step)
            plan = CommPlan.from_ghosts(grid, rows, ghosts)
            assert fetched(plan, rows) == ghosts.tolist()
            late = [each for each in late if generator.random() < 0.7]
            late.append(plan)
            assert len(grid._neighbourhoods) < 80
        for plan in late:
            assert plan.num_ghosts <= 1


def test_plans_in_use_have_communicators_of_their_own(comm: MPI.Intracomm) -> None:
    """Exchanges may complete in another order than they were started in."""
    rows = row_map(comm)
    with ProcessGrid(comm) as grid:
        plans = [CommPlan.from_ghosts(grid, rows, ring(comm, 1)) for _ in range(70)]
        assert len(grid._neighbourhoods) == 70
        del plans[10:]
        gc.collect()
        again = [CommPlan.from_ghosts(grid, rows, ring(comm, 1)) for _ in range(10)]
        assert len(grid._neighbourhoods) <= 70
        ghosts = [np.empty((plan.num_ghosts, 1)) for plan in (*plans, *again)]
        transfers = []
        for plan, block in zip((*plans, *again), ghosts, strict=True):
            sent = (rows.start + plan.send_rows).astype(float).reshape(-1, 1)
            transfers.append(plan.start_forward(sent, block))
        for transfer in reversed(transfers):
            transfer.wait()
        assert all(block.ravel().tolist() == ring(comm, 1).tolist() for block in ghosts)


def test_a_cycle_with_a_plan_is_found(comm: MPI.Intracomm) -> None:
    rows = row_map(comm)
    with ProcessGrid(comm) as grid:
        gc.disable()
        try:
            for step in range(80):
                holder = {"plan": CommPlan.from_ghosts(grid, rows, ring(comm, step))}
                holder["itself"] = holder
            assert len(grid._neighbourhoods) <= 65
        finally:
            gc.enable()
