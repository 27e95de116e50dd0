"""docs/slurm.md as printed, and ranks that start from an archive, on a real Slurm."""

import json
import shutil
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import ROOT, Cluster
from tests.test_pages import blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Each job is waited for, as the next line may need its output.
WAITING = """set -euo pipefail
sbatch() {
    command sbatch --wait "$@"
}
"""


@pytest.fixture(scope="module")
def folder(cluster: Cluster) -> Path:
    """A folder with the files of `hpcgnn init --jobs`, and the data of the page."""
    path = cluster.directory / "stranger"
    shutil.copytree(ROOT / "jobs", path / "jobs", ignore=shutil.ignore_patterns("site.env"))
    for block in blocks_of("docs/slurm.md"):
        cluster.run("bash", "-c", f"cd {path}\n{WAITING}{block.text}", timeout_s=600)
    return path


def summary(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "summary.json").read_text())
    return found


def wait_for_start(number: int, log: Path) -> None:
    while log.read_text().count("resuming seed") < number:
        time.sleep(0.1)


def test_the_page_runs_as_printed(folder: Path) -> None:
    assert summary(folder / "runs" / "host")["ranks"] == 4
    assert summary(folder / "runs" / "hosts")["ranks"] == 8
    seeds = [summary(folder / "runs" / "seeds" / f"seed-{seed}")["seeds"] for seed in (1, 2, 3)]
    assert [each[0]["seed"] for each in seeds] == [1, 2, 3]  # type: ignore[index]


def test_ranks_start_from_an_archive(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    """The packages are links to ours, but Python starts where the job has unpacked it."""
    packed = tmp_path / "packed"
    (packed / "bin").mkdir(parents=True)
    (packed / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", packed)
    for name in ("lib", "share", "etc"):
        (packed / name).symlink_to(Path(sys.prefix) / name)
    archive = cluster.directory / "hpcgnn.tar"
    with tarfile.open(archive, "w") as file:
        file.add(packed, ".")
    # Without PATH.
    options = "--export=HPCGNN_SITE,HPCGNN_ARCHIVE --output=archive.out"
    code = f'cd {folder}; HPCGNN_ARCHIVE={archive} sbatch {options} "$@"'
    words = ("bash", "-c", code, "bash")
    run = ("jobs/train.sbatch", "graph.store=mine.4.h5", "run.dir=runs/archive")
    cluster.run(*words, "--wait", *run, "train.epochs=2", timeout_s=300)
    log = (folder / "archive.out").read_text()
    assert f"unpacked {archive} on 2 hosts" in log
    session = json.loads((folder / "runs" / "archive" / "sessions.json").read_text())
    assert "/tmp/hpcgnn-" in json.dumps(session)
    assert not list(Path("/tmp").glob("hpcgnn-[0-9]*"))
    job = cluster.run(*words, "--parsable", *run, "train.epochs=100000").strip()
    wait_for_start(1, folder / "archive.out")
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    cluster.wait(job, "PENDING")
    # It may start again on other hosts.
    assert not list(Path("/tmp").glob(f"hpcgnn-{job}*"))
    wait_for_start(2, folder / "archive.out")
    cluster.run("scancel", job)
    cluster.wait_until_gone(job)
    assert not list(Path("/tmp").glob(f"hpcgnn-{job}*"))
