"""The exchange benchmark counts the rows that travel; no test here measures time."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from mpi4py import MPI

import numpy as np
import pytest

from benchmarks.bench_exchange import main
from benchmarks.exchange_case import Case
from benchmarks.exchange_graphs import cut, make_pattern, open_graph
from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.partition import block, measure
from hpcgnn.sparse import scale
from hpcgnn.spmm import EXCHANGES

Run: TypeAlias = Callable[[MPI.Intracomm, str], list[Any]]

WIDTH = 3
KEYS = (
    "graph ranks exchange replication wire seconds rows_total rows_max_send rows_max_recv "
    "bytes_total messages_total"
)


def sizes(grid: ProcessGrid, exchange: str, wire: str = "native") -> Any:
    """Measure a case, which fails if a rank moves other rows than its plan predicts."""
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
            # Sums over replicas are not rounded to fewer bits.
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
    # Blocks in the present order leave the matrix unchanged.
    np.testing.assert_array_equal(np.concatenate([each for _, each in blocks]), pattern.indices)


@pytest.mark.parametrize("name", ["rmat", "rmat:x", "grid3d:3:4", "debian:1", "no-such"])
def test_unknown_graphs_are_named(name: str) -> None:
    with pytest.raises(InputError, match="--graph"):
        make_pattern(name)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return `run(comm, options)`, which runs the command and returns its output on rank 0."""

    def call(comm: MPI.Intracomm, options: str) -> list[Any]:
        monkeypatch.setattr("sys.argv", ["bench_exchange", *options.split(), "--json"])
        assert main(comm) == 0
        cases = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert bool(cases) == (comm.rank == 0)
        return cases

    return call


@pytest.mark.max_ranks(2)
def test_command_prints_an_object_a_case(comm: MPI.Intracomm, run: Run) -> None:
    replication = "1,2" if comm.size == 2 else "1"
    options = f"--graph grid3d:4 --replication {replication} --repeat 1 --warmup 1"
    cases = run(comm, f"{options} --wire native,float16")
    if comm.rank == 0:
        assert len(cases) == comm.size * 2 * len(EXCHANGES)
        assert all(set(KEYS.split()) <= set(case) for case in cases)
        assert {case["wire"] for case in cases} == {"float32", "float16"}


@pytest.mark.max_ranks(2)
def test_command_names_a_wrong_exchange(
    comm: MPI.Intracomm, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(comm, "--exchange aware,nonsense")
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("'nonsense' is none of") == (MPI.COMM_WORLD.rank == 0)


@pytest.mark.max_ranks(2)
def test_planning_of_every_exchange_is_timed(comm: MPI.Intracomm, run: Run) -> None:
    cases = run(comm, "--graph grid3d:4 --plan --repeat 1")
    if comm.rank == 0:
        assert [case["exchange"] for case in cases] == list(EXCHANGES)
        assert all({"plan_s", "epoch_s", "plan_epochs"} <= set(case) for case in cases)
