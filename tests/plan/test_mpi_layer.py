"""Planned and traced bytes are those that MPI gets, counted below the program."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults import ROOT

SOURCE = ROOT / "tests" / "support" / "mpi_bytes.cc"
LIMIT_S = 600


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the counting library."""
    built = tmp_path_factory.mktemp("mpi") / "libmpi_bytes.so"
    prefix = Path(sys.prefix)
    words = ["-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(built)]
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler and (prefix / "include" / "mpi.h").exists():
        where = [f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-lmpi"]
        words = [compiler, *words, *where]
    elif wrapper := shutil.which("mpicxx"):
        words = [wrapper, *words]
    else:
        pytest.skip("no C++ compiler, or no mpi.h")
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return built


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("ranks", "extent"),
    [
        pytest.param(4, []),
        *(pytest.param(ranks, ["all"], marks=pytest.mark.slow) for ranks in (2, 3, 4)),
    ],
    ids=str,
)
def test_planned_traced_and_counted(
    tmp_path: Path, library: Path, ranks: int, extent: list[str]
) -> None:
    script = f'. "{ROOT}/jobs/env.sh" && mpi_exec "$@"'
    # A rank that fails ends the others, which wait for it.
    module = [sys.executable, "-m", "mpi4py", "-m", "tests.support.traffic_probe"]
    words = ["env", f"LD_PRELOAD={library}", *module]
    found = subprocess.run(
        ["bash", "-c", script, "bash", str(ranks), *words, str(library), str(tmp_path), *extent],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=LIMIT_S,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    # "28 runs, 2534574 bytes"
    runs, _, num_bytes, _ = found.stdout.split()
    assert int(runs) >= 10
    assert int(num_bytes) > 0
