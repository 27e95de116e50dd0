"""The test of an installation: a sound one passes, and each planted defect is found and named."""

import errno
import fcntl
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.doctor import host
from hpcgnn.selftest import checks
from hpcgnn.selftest.fixtures import Fixtures, make_fixtures

COMMAND = find_command("selftest")


@pytest.fixture(autouse=True)
def quick_links(monkeypatch: pytest.MonkeyPatch) -> None:
    # Seconds for measuring the links, in which all ranks send.
    monkeypatch.setattr("hpcgnn.selftest.command._LINKS_S", 0.1)


@pytest.fixture
def fixtures(tmp_path: Path) -> Iterator[Fixtures]:
    with make_fixtures(MPI.COMM_SELF, tmp_path) as opened:
        yield opened


@pytest.mark.timeout(180)
@pytest.mark.max_ranks(3)
def test_sound_installation(
    comm: MPI.Intracomm, comm_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = COMMAND.call(["--dir", str(comm_tmp_path), "--json"], comm)
    assert status == 0
    if comm.rank == 0:
        assert list(comm_tmp_path.iterdir()) == []
        told = json.loads(capsys.readouterr().out)
        topics = {finding["topic"] for finding in told["findings"]}
        assert told["faults"] == []
        assert told["ranks"] == comm.size
        assert {"messages", "exchanges", "gradient gat", "training: links", "resume"} <= topics
        ranks = ", ".join(str(count) for count in checks.rank_counts(comm.size))
        seen = {finding["topic"]: finding["seen"] for finding in told["findings"]}
        assert f"equal on {ranks} rank" in seen["training: classes of nodes"]


def test_rank_counts() -> None:
    assert checks.rank_counts(1) == [1]
    assert checks.rank_counts(6) == [1, 2, 4, 6]
    assert checks.rank_counts(8) == [1, 2, 4, 8]


class Swapped:
    """A communicator that swaps the receivers of messages of ranks 0 and 1."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Alltoall(self, sent: np.ndarray, received: np.ndarray) -> None:  # noqa: N802
        self._comm.Alltoall(sent, received)
        blocks = received.reshape(self._comm.size, -1)
        blocks[[0, 1]] = blocks[[1, 0]]


def test_swapped_ranks(comm: MPI.Intracomm, tmp_path: Path) -> None:
    if comm.size == 1:
        pytest.skip("one rank sends to itself only")
    (finding,) = checks.messages(Fixtures(Swapped(comm), tmp_path))  # type: ignore[arg-type]
    assert finding.verdict == "fault"
    assert "received other data from rank 0" in finding.seen


def wrong_kernel(patch: pytest.MonkeyPatch) -> None:
    right = checks.spmm

    def spmm(matrix: Any, x: np.ndarray, out: np.ndarray, **options: Any) -> None:
        right(matrix, x, out, **options)
        out[-1] *= 1 + 1e-4

    patch.setattr(checks, "spmm", spmm)


def wrong_exchange(patch: pytest.MonkeyPatch) -> None:
    right = checks.library.open_graph

    def open_graph(*arguments: Any, **options: Any) -> Any:
        graph = right(*arguments, **options)
        (operator,) = graph.operators.values()
        apply = operator.apply
        # The first row, as if the rows of another rank had not arrived.

        def wrong(x: np.ndarray, *more: Any) -> np.ndarray:
            return np.vstack([0 * x[:1], apply(x, *more)[1:]])

        patch.setattr(operator, "apply", wrong)
        return graph

    patch.setattr(checks.library, "open_graph", open_graph)


def wrong_gradient(patch: pytest.MonkeyPatch) -> None:
    right = checks.library.sum_gradients

    def sum_gradients(graph: Any, model: Any) -> None:
        right(graph, model)
        for parameter in model.parameters():
            parameter.grad *= 1.01

    patch.setattr(checks.library, "sum_gradients", sum_gradients)


def losses_that(change: Callable[[str, list[float]], list[float]]) -> Any:
    def plant(patch: pytest.MonkeyPatch) -> None:
        right = Fixtures.train

        def train(fixtures: Fixtures, name: str, ranks: int, tables: Any) -> list[float]:
            return change(name, right(fixtures, name, ranks, tables))

        patch.setattr(Fixtures, "train", train)

    return plant


def nan_in_links(name: str, losses: list[float]) -> list[float]:
    return [float("nan")] * len(losses) if "links" in name else losses


def an_epoch_less(name: str, losses: list[float]) -> list[float]:
    return losses[:-1] if name == "resumed" else losses


def broken_clock(patch: pytest.MonkeyPatch) -> None:
    day = time.time
    # Its clock runs a hundred times too slowly.
    patch.setattr(checks.time, "time", lambda: 100 * day())


@pytest.mark.parametrize(
    ("check", "plant", "topic"),
    [
        ("kernels", wrong_kernel, "kernels float64"),
        ("exchanges", wrong_exchange, "exchanges"),
        ("gradients", wrong_gradient, "gradient gcn"),
        ("objectives", losses_that(nan_in_links), "training: links"),
        ("resume", losses_that(an_epoch_less), "resume"),
        ("clocks", broken_clock, "clocks"),
    ],
)  # fmt: skip
def test_planted_defect_is_named(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch, check: str, plant: Any, topic: str
) -> None:
    plant(monkeypatch)
    found = list(getattr(checks, check)(fixtures))
    faults = {finding.topic for finding in found if finding.verdict == "fault"}
    assert topic in faults
    assert all(finding.remedy for finding in found if finding.verdict == "fault")


def test_machine_defects_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setattr("hpcgnn.selftest.command.CHECKS", ())
    COMMAND.call(["--dir", str(tmp_path), "--json"], MPI.COMM_SELF)
    found = {each["topic"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert found["file locks"]["verdict"] == "remark"
    assert "more threads than cores" in found["cores"]["remedy"]


def test_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpcgnn.doctor.folder._try_here", full)
    assert COMMAND.call(["--dir", str(tmp_path)], MPI.COMM_SELF) == 1
    assert "No space left on device" in capsys.readouterr().out


def test_other_library_on_a_host(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(host, "mpi_library", lambda: "MPICH 0.1")
    monkeypatch.setattr("hpcgnn.selftest.command.CHECKS", ())
    status = COMMAND.call(["--dir", str(comm_tmp_path)], comm)
    assert status == (1 if comm.size > 1 else 0)
    if comm.rank == 0 and comm.size > 1:
        told = capsys.readouterr().out
        assert re.search(r"fault  versions: .*; MPICH 0\.1 instead of .* on ", told)
