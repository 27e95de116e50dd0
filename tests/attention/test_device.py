"""Attention on a device equals that of one process, for every exchange, schedule and grid."""

from collections.abc import Iterator
from itertools import product

from mpi4py import MPI

import pytest

from hpcgnn.attention import (
    AdditiveScores,
    DynamicScores,
)
from hpcgnn.comm import ProcessGrid
from hpcgnn.sparse.device import DeviceMemory
from hpcgnn.spmm import Carrier, Schedule
from hpcgnn.spmm.gpu.mpi import StagedTransport
from tests.support.attention_problem import DRAW, SCHEDULES, Problem
from tests.support.emulated_gpu import some_gpu
from tests.support.matrices import ugly_matrix
from tests.support.stand_in import Card, StandIn

NUM_NODES = 29
KINDS = (AdditiveScores, DynamicScores)


@pytest.fixture
def gpu() -> Iterator[StandIn | Card]:
    with some_gpu() as made:
        yield made


def on_gpu(grid: ProcessGrid) -> Carrier:
    return Carrier(grid, DeviceMemory(), StagedTransport())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("exchange", "schedule"),
    [
        ("aware", SCHEDULES[0]),
        ("oblivious", SCHEDULES[2]),
        *product(("joint", "hierarchical"), SCHEDULES[::2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_process(
    comm: MPI.Intracomm,
    exchange: str,
    schedule: Schedule,
    kind: type[AdditiveScores] | type[DynamicScores],
) -> None:
    problem = Problem(ugly_matrix(NUM_NODES, 5), "float64", kind=kind)
    for replication in {1, comm.size if comm.size < 4 else 2}:
        how = {"exchange": exchange, "schedule": schedule, "draw": DRAW, "carrier": on_gpu}
        problem.check(comm, replication, 1e-12, **how)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("wire", "tolerance"), [("bfloat16", 5e-2), ("float16", 7e-3)])
@pytest.mark.parametrize("exchange", ["aware", "push"])
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_wires(
    comm: MPI.Intracomm,
    wire: str,
    tolerance: float,
    exchange: str,
    kind: type[AdditiveScores] | type[DynamicScores],
) -> None:
    problem = Problem(ugly_matrix(NUM_NODES, 5), "float32", kind=kind)
    how = {"exchange": exchange, "wire": wire, "draw": DRAW, "carrier": on_gpu}
    problem.check(comm, 1, tolerance, **how)
