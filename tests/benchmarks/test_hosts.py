"""Emulated hosts: separate names and shared memory, one MPI world, nothing left behind."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "hosts.sh"

pytestmark = pytest.mark.slow


def hosts(*words: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=240,
        cwd=ROOT,
    )


@pytest.fixture
def two_hosts() -> Iterator[Path]:
    checked = hosts("check")
    if checked.returncode:
        pytest.skip(checked.stderr.strip())
    with tempfile.TemporaryDirectory(prefix="hpcgnn-hosts-") as name:
        directory = Path(name)
        try:
            done = hosts("up", directory, "node1", "node2")
            assert done.returncode == 0, done.stderr
            yield directory
        finally:
            hosts("down", directory)


def test_hosts_are_apart_and_end(two_hosts: Path) -> None:
    assert hosts("rate", two_hosts, "100mbit").returncode == 0
    for name in ("node1", "node2"):
        assert hosts("run", two_hosts, name, "hostname").stdout.strip() == name
        limits = hosts("run", two_hosts, name, "tc", "qdisc", "show", "dev", "eth0").stdout
        assert "tbf" in limits
        assert "100Mbit" in limits
    marker = f"/dev/shm/{two_hosts.name}"
    assert hosts("run", two_hosts, "node1", "touch", marker).returncode == 0
    assert hosts("run", two_hosts, "node2", "test", "-e", marker).returncode == 1
    pids = [int(path.read_text()) for path in two_hosts.glob("*.pid")]
    assert len(pids) == 3
    hosts("down", two_hosts)
    assert not list(two_hosts.glob("*.pid"))
    for pid in pids:
        command = Path(f"/proc/{pid}/cmdline")
        assert not command.exists() or str(two_hosts).encode() not in command.read_bytes()


def test_one_mpi_world_over_both(two_hosts: Path) -> None:
    launcher = Path(sys.prefix) / "bin" / "mpiexec"
    if not launcher.exists():
        pytest.skip("no Open MPI wheel in this environment")
    program = (
        "from mpi4py import MPI; "
        "print(MPI.COMM_WORLD.size, MPI.COMM_WORLD.allreduce(1), MPI.Get_processor_name())"
    )
    root = ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
    command = [launcher, "-n", 2, "env", sys.executable, "-c", program]
    words = ["env", *root, "bash", SCRIPT, "mpiexec", two_hosts, 1, *command]
    done = subprocess.run(
        list(map(str, words)), capture_output=True, check=False, text=True, timeout=240, cwd=ROOT
    )
    assert sorted(done.stdout.split("\n"))[-2:] == ["2 2 node1", "2 2 node2"], done.stderr


def test_wrong_use_is_explained_in_a_line(tmp_path: Path) -> None:
    for words in ((), ("up", tmp_path), ("run", tmp_path, "node1"), ("nonsense",)):
        done = hosts(*words)
        assert done.returncode == 1
        assert done.stderr.startswith("hosts: usage: ")
