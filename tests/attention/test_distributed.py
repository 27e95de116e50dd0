"""Attention equals that of one process, for any exchange, grid and schedule."""

from itertools import product

from mpi4py import MPI

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.attention import scores
from hpcgnn.attention.softmax import (
    AttentionState,
    pack,
    packed_width,
    to_wire,
    unpack,
)
from hpcgnn.comm import ProcessGrid
from hpcgnn.kernels import EdgeDraw
from hpcgnn.spmm import Carrier, ReplicaShares, ReplicaSum, Schedule
from hpcgnn.trace import TraceRecorder
from tests.support.attention_problem import (
    DRAW,
    EXCHANGES,
    KINDS,
    NUM_NODES,
    SCHEDULES,
    Kind,
    Problem,
)
from tests.support.matrices import ugly_matrix


@pytest.mark.pairs
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("replication", [1, 2])
@pytest.mark.parametrize("draw", [None, DRAW], ids=["whole", "dropout"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_process(
    comm: MPI.Intracomm,
    exchange: str,
    schedule: Schedule,
    replication: int,
    draw: EdgeDraw | None,
    kind: Kind,
) -> None:
    if comm.size % replication:
        pytest.skip("replication does not divide the ranks")
    problem = Problem(ugly_matrix(NUM_NODES, 5), "float64", kind=kind)
    problem.check(comm, replication, 1e-12, exchange=exchange, schedule=schedule, draw=draw)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(("wire", "tolerance"), [("bfloat16", 5e-2), ("float16", 7e-3)])
@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_wires(
    comm: MPI.Intracomm,
    exchange: str,
    wire: str,
    tolerance: float,
    schedule: Schedule,
    kind: Kind,
) -> None:
    problem = Problem(ugly_matrix(NUM_NODES, 5), "float32", kind=kind)
    problem.check(comm, 1, tolerance, exchange=exchange, wire=wire, schedule=schedule, draw=DRAW)


@pytest.mark.parametrize(
    ("exchange", "wire", "schedule"),
    list(product(("aware", "push", "joint"), ("native", "bfloat16"), SCHEDULES[:2])),
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e4, 1e10])
def test_huge_logits_stay_finite(
    comm: MPI.Intracomm, exchange: str, wire: str, schedule: Schedule, kind: Kind, scale: float
) -> None:
    problem = Problem(ugly_matrix(NUM_NODES, 5), "float32", kind=kind, scale=scale)
    with ProcessGrid(comm) as grid:
        _, found = problem.run(grid, exchange, wire, schedule)
        out, lse, *gradients = found
        assert np.isfinite(out).all()
        assert not np.isnan(lse).any()
        assert all(np.isfinite(each).all() for each in gradients)
        # A mean of values stays within their range.
        assert np.abs(out).max(initial=0) <= np.abs(problem.values).max() * 1.01


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_features_of_edges(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    exchange: str,
    schedule: Schedule,
    kind: Kind,
) -> None:
    # Blocks of few edges, which split rows.
    monkeypatch.setattr(scores, "EDGE_BYTES", 1000)
    problem = Problem(ugly_matrix(NUM_NODES, 5), "float64", kind=kind, num_features=2)
    replication = 2 if comm.size % 2 == 0 else 1
    how = {"exchange": exchange, "schedule": schedule, "draw": DRAW}
    problem.check(comm, replication, 1e-12, **how)


@pytest.mark.parametrize("num_features", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_differences(kind: Kind, num_features: int) -> None:
    problem = Problem(ugly_matrix(12, 3), "float64", kind=kind, num_features=num_features)
    with ProcessGrid(MPI.COMM_SELF) as alone:
        _, found = problem.run(alone, "aware", draw=DRAW)
        for name, gradient in zip(("values", "targets", "weights"), found[2:], strict=True):
            array = getattr(problem, name)
            where = np.random.default_rng(1).integers(0, max(array.size, 1), 6 * bool(array.size))
            for place in where:
                sides = []
                for step in (1e-5, -1e-5):
                    array.flat[place] += step
                    out = problem.run(alone, "aware", draw=DRAW)[1][0]
                    sides.append(float((out * problem.gradient).sum()))
                    array.flat[place] -= step
                slope = (sides[0] - sides[1]) / 2e-5
                assert gradient.flat[place] == pytest.approx(slope, abs=1e-6)


@given(st.sampled_from(["bfloat16", "float16", None]), st.integers(0, 5), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_narrow_columns_travel_almost_whole(half: str | None, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    wide, narrow = rng.normal(size=(rows, 5)), 100 * rng.normal(size=(rows, 2))
    wide, narrow = wide.astype(np.float32), narrow.astype(np.float32)
    if rows:
        narrow[0] = -np.inf
    packed = pack([wide], [narrow], half)
    assert packed.shape == (rows, packed_width(5, 2, half, np.float32))
    arrived = packed if half is None else to_wire(packed, half)
    found = unpack(arrived, [5], [2], half)
    bits = {"bfloat16": 8, "float16": 11, None: 50}[half]
    np.testing.assert_allclose(found[0], wide, rtol=2.0**-bits, atol=1e-6)
    np.testing.assert_allclose(found[1], narrow, rtol=2.0 ** (1 - 2 * bits), atol=1e-6)


def test_replicas_without_edges_merge() -> None:
    state = AttentionState.empty(3, 2, 4, "float64")
    shares = ReplicaShares.of(np.zeros((1, 3), np.bool_))
    with ProcessGrid(MPI.COMM_SELF) as grid:
        state.merge_replicas(ReplicaSum(grid, Carrier(grid), TraceRecorder.off(), shares))
    state.finish()
    assert (state.out == 0).all()
    assert (state.top == -np.inf).all()
