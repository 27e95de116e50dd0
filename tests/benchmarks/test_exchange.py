"""The exchange benchmark counts what really travels; nothing here looks at a clock."""

import json
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

from benchmarks.exchange_case import Case
from benchmarks.exchange_graphs import cut, make_pattern, open_graph
from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.partition import block, measure
from hpcgnn.sparse import scale
from hpcgnn.spmm import EXCHANGES
from tests.conftest import MpiRun

WIDTH = 3
KEYS = (
    "graph ranks exchange replication wire seconds rows_total rows_max_send rows_max_recv "
    "bytes_total messages_total"
)


def sizes(grid: ProcessGrid, exchange: str, wire: str = "native") -> Any:
    """Measure a case, which fails where a rank moves other rows than its plan says."""
    pattern = open_graph(grid.world, "grid3d:5", method="block").block_row(grid)
    case = Case(grid, pattern, scale(pattern, (1.0, 0.0), np.float32), exchange, wire)
    x, y = (np.ones((rows, WIDTH), np.float32) for rows in pattern.shape[::-1])
    return case.measure(x, y)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_bytes_follow_rows(comm: MPI.Intracomm, exchange: str) -> None:
    for replication in (c for c in range(1, comm.size + 1) if comm.size % c == 0):
        with ProcessGrid(comm, replication) as grid:
            wide, narrow = sizes(grid, exchange), sizes(grid, exchange, "bfloat16")
            assert wide.bytes_total == wide.rows_total * WIDTH * 4
            # Sums over replicas are not narrowed.
            assert wide.bytes_summed == narrow.bytes_summed
            between = [each.bytes_total - each.bytes_summed for each in (wide, narrow)]
            assert between[0] == 2 * between[1]
            assert wide.rows_max_send <= wide.rows_total <= wide.rows_max_send * comm.size
            assert wide.bytes_between_hosts == 0
            assert (wide.bytes_summed > 0) == (replication > 1)


def test_aware_is_the_partition_s_own_count(comm: MPI.Intracomm) -> None:
    pattern = make_pattern("grid3d:5")
    with ProcessGrid(comm) as grid:
        moved = sizes(grid, "aware")
    expected = measure(pattern, block()(pattern, comm.size).part, comm.size)
    assert moved.rows_total == expected.total_rows
    assert (moved.rows_max_send, moved.rows_max_recv) == (
        expected.max_send_rows,
        expected.max_recv_rows,
    )


def test_oblivious_moves_every_row_to_every_other_rank(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        moved = sizes(grid, "oblivious")
    assert moved.rows_total == 125 * (comm.size - 1)
    assert moved.messages_total == comm.size * (comm.size - 1)


def test_joint_never_moves_more(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        rows = {name: sizes(grid, name).rows_total for name in ("aware", "push", "joint")}
    assert rows["joint"] <= min(rows["aware"], rows["push"])


def test_cut_keeps_every_entry() -> None:
    pattern = make_pattern("rmat:6:4")
    starts, blocks = cut(pattern, block(), 5)
    assert starts[-1] == pattern.num_nodes
    assert sum(len(columns) for _, columns in blocks) == len(pattern.indices)
    # Blocks in the present order leave the matrix as it is.
    np.testing.assert_array_equal(np.concatenate([each for _, each in blocks]), pattern.indices)


@pytest.mark.parametrize("name", ["rmat", "rmat:x", "grid3d:3:4", "debian:1", "no-such"])
def test_unknown_graphs_are_named(name: str) -> None:
    with pytest.raises(InputError, match="--graph"):
        make_pattern(name)


def test_command_prints_an_object_a_case(mpi_run: MpiRun) -> None:
    options = "--graph grid3d:4 --replication 1,2 --wire native,float16 --repeat 1 --warmup 1"
    module = ("-m", "benchmarks.bench_exchange", *options.split(), "--json")
    done = mpi_run(2, *module, timeout=110)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 2 * 2 * len(EXCHANGES)
    assert all(set(KEYS.split()) <= set(case) for case in cases)
    assert {case["wire"] for case in cases} == {"float32", "float16"}


def test_command_names_a_wrong_exchange(mpi_run: MpiRun) -> None:
    done = mpi_run(2, "-m", "benchmarks.bench_exchange", "--exchange", "aware,nonsense")
    assert done.returncode == 2
    assert done.stderr.count("'nonsense' is none of") == 1


def test_planning_of_every_exchange_is_timed(mpi_run: MpiRun) -> None:
    options = "--graph grid3d:4 --plan --repeat 1 --json"
    done = mpi_run(2, "-m", "benchmarks.bench_exchange", *options.split(), timeout=110)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case["exchange"] for case in cases] == list(EXCHANGES)
    assert all({"plan_s", "epoch_s", "plan_epochs"} <= set(case) for case in cases)
