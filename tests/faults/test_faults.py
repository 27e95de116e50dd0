"""Every fault of one rank ends all ranks, with a status that tells whether to restart."""

import platform
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.errors import MACHINE_FAULT
from tests.support import training
from tests.support.faults import PHASES, STALLS, STATUS, losses, run_with_fault

RANKS = 2
STALL_S = 20.0
"""Longer than a rank waits for another to start, on a busy machine."""
LIMIT_S = 240
SETTINGS = (
    "train.epochs=8",
    "model.hidden=8",
    "model.dropout=0.3",
    "run.threads=1",
    "run.checkpoint_every=2",
    f"run.stall_s={STALL_S}",
)
# ("stop", "start") is slow: all ranks end, but under load Open MPI's launcher often locks itself in
# PMIx_server_finalize behind them (4 of 6 at once, Open MPI 5.0.11; docs/troubleshooting.md).
QUICK = {
    ("poison", "import"),
    ("exit3", "epoch"),
    ("stop", "epoch"),
}
CASES = [
    pytest.param(fault, phase, marks=() if (fault, phase) in QUICK else pytest.mark.slow)
    for fault in STATUS
    for phase in PHASES
]

pytestmark = pytest.mark.timeout(3 * LIMIT_S)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    return training.write_store(MPI.COMM_SELF, folder, training.make_graph(num_nodes=501), parts=4)


@pytest.fixture(scope="module")
def whole(store: Path) -> list[float]:
    """The losses of an uninterrupted run."""
    run = store.parent / "whole"
    assert run_with_fault(RANKS, store, run, SETTINGS, timeout=LIMIT_S).status == 0
    return losses(run)


@pytest.mark.parametrize(("fault", "phase"), CASES)
def test_all_ranks_end(
    tmp_path: Path, store: Path, request: pytest.FixtureRequest, fault: str, phase: str
) -> None:
    run = tmp_path / "run"
    found = run_with_fault(
        RANKS, store, run, SETTINGS, f"{RANKS - 1} {fault} {PHASES[phase]}", timeout=LIMIT_S
    )
    assert found.orphans == 0
    assert STATUS[fault](found.status, phase), found.errors
    if fault in STALLS:
        assert (
            f"hpcgnn train: error: rank 0 {'' if phase == 'start' else 'of 2 '}on " in found.errors
        )
        assert f"has made no progress for {STALL_S:.0f} s: " in found.errors
        assert "most recent call first" in found.errors
    if phase == "start" and fault in ("poison", "raise"):
        assert f"no MPI library is loaded on {platform.node()} (" in found.errors
    elif phase != "start" and fault in ("poison", "raise", "exit3"):
        assert f"[rank {RANKS - 1}] fails on " in found.errors
    if (fault, phase) in QUICK:
        # tests/train/test_command.py resumes after kills.
        return
    # Slow tests run alone on the machine.
    assert found.seconds < 10 + (STALL_S if fault in STALLS else 0) + 20
    whole: list[float] = request.getfixturevalue("whole")
    again = run_with_fault(RANKS, store, run, SETTINGS, timeout=LIMIT_S)
    assert again.status == 0, again.errors
    assert losses(run) == whole
    assert not list(run.rglob(".*.tmp"))
    assert not list(run.rglob(".*partial*"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", STALLS)
def test_a_stall_after_the_end_is_started_again(tmp_path: Path, store: Path, fault: str) -> None:
    """The other ranks wait in the finalisation of MPI, when Python has no threads any more."""
    run = tmp_path / "run"
    found = run_with_fault(RANKS, store, run, SETTINGS, f"0 {fault} end", timeout=LIMIT_S)
    assert (found.status, found.orphans) == (MACHINE_FAULT, 0), found.errors
    assert (run / "summary.json").exists()
