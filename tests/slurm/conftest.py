"""A Slurm of two emulated hosts, for the tests of the job templates."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SCRIPT, Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    manage(["install"])
    # Its sockets need a short path, and munge a parent folder that others cannot write to.
    directory = Path(tempfile.mkdtemp(prefix="hpcgnn-slurm-"))
    directory.chmod(0o755)
    try:
        manage(["up", str(directory)])
        yield Cluster(directory)
    finally:
        subprocess.run(["bash", SCRIPT, "down", directory], check=True)
        shutil.rmtree(directory, ignore_errors=True)


def manage(arguments: list[str]) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"no Slurm here: cluster.sh {arguments[0]}: {reason}")
