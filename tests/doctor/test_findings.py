"""The findings of the doctor on good and bad machines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcgnn.comm import Link
from hpcgnn.doctor.findings import FAULT, GOOD, REMARK, Finding, judge
from hpcgnn.doctor.folder import FolderFacts
from hpcgnn.doctor.host import RankFacts

RANK = RankFacts(
    host="n1",
    system="Linux",
    cores=(0,),
    threads="1",
    memory_bytes=8 << 30,
    shared_bytes=4 << 30,
    isas=("avx512", "portable"),
    gpu="",
    energy="",
    versions={"hpcgnn": "0.1"},
    mpi="Open MPI 5",
    moves_messages=True,
    batch={},
)
FOLDER = FolderFacts(path=Path("/scratch"), write_bytes_per_s=1e9)
FAST, SLOW = (Link((0, 2), ("n1", "n2"), latency_s=2e-6, bandwidth=rate) for rate in (12e9, 1e7))


def world() -> list[RankFacts]:
    return [replace(RANK, host=host, cores=(core,)) for host in ("n1", "n2") for core in (0, 1)]


def found(
    ranks: list[RankFacts] | None = None,
    folder: FolderFacts = FOLDER,
    links: tuple[Link, ...] = (FAST,),
) -> dict[str, Finding]:
    return {each.topic: each for each in judge(ranks or world(), folder, links)}


def test_a_good_machine() -> None:
    assert {each.verdict for each in found().values()} == {GOOD}
    assert "--bandwidth 1.2e+10 --latency 2e-06" in found()["network"].seen
    assert not any(each.remedy for each in found().values())
    assert "mpiexec -n 4 hpcgnn doctor" in found([RANK])["MPI"].remedy


@pytest.mark.parametrize(
    ("change", "topic", "verdict", "remedy"),
    [
        ({"versions": {"hpcgnn": "0.2"}}, "versions", FAULT, "one environment"),
        ({"mpi": "MPICH 4"}, "versions", FAULT, "one environment"),
        ({"isas": ("portable",)}, "processors", REMARK, "hosts of one kind"),
        ({"host": "n1"}, "MPI", REMARK, "same number of ranks"),
        ({"moves_messages": False}, "MPI", REMARK, "MPI_THREAD_MULTIPLE"),
        ({"threads": "3"}, "cores", REMARK, "more threads than cores"),
        ({"gpu": "no driver"}, "GPU", REMARK, "--gpus-per-task=1"),
        ({"shared_bytes": 1 << 20}, "shared memory", REMARK, "--shm-size"),
        ({"shared_bytes": None}, "shared memory", REMARK, "--shm-size"),
    ],
)
def test_one_rank_differs(change: dict[str, Any], topic: str, verdict: str, remedy: str) -> None:
    ranks = world()
    ranks[3] = replace(ranks[3], **change)
    finding = found(ranks)[topic]
    assert finding.verdict == verdict
    assert remedy in finding.remedy


def test_threads_that_cores_are_not_there_for() -> None:
    bound = [replace(RANK, cores=cores, threads="2") for cores in ((0,), (1, 2, 3))]
    assert "fewer cores than it has threads" in found(bound)["cores"].remedy
    assert "each on its own" in found(bound)["cores"].seen
    free = [replace(RANK, cores=(0, 1, 2, 3), threads=None) for _ in range(2)]
    assert found(free)["cores"].verdict == GOOD
    assert "which they share, 2 threads per rank" in found(free)["cores"].seen
    # As in a run: ranks that the launcher bound have their own cores.
    bound = [replace(RANK, cores=cores, threads="0") for cores in ((0, 1), (2, 3))]
    assert "each on its own, 2 threads per rank" in found(bound)["cores"].seen
    # Two ranks on one core of four, and no more threads than cores.
    bound = [replace(RANK, cores=cores, threads=None) for cores in ((0,), (0,), (1,), (2, 3))]
    assert found(bound)["cores"].remedy.startswith("2 of them are bound to 1 core: tell the launc")


def test_memory_is_that_of_the_least_share_of_a_rank() -> None:
    small, large = (
        replace(RANK, memory_bytes=6 << 30),
        replace(RANK, host="n2", memory_bytes=8 << 30),
    )
    assert "8.0 GiB on n2, 2.0 GiB per rank; " in found([small, *[large] * 4])["memory"].seen
    assert "6.0 GiB on n1, 3.0 GiB per rank; " in found([small, small, large])["memory"].seen


def test_batch_system() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "2"}
    alone = [replace(RANK, batch=job)]
    assert "start with srun" in found(alone)["batch system"].remedy
    step = [replace(each, batch={**job, "SLURM_STEP_NUM_TASKS": "4"}) for each in world()]
    assert "export SRUN_CPUS_PER_TASK=2" in found(step)["batch system"].remedy


@pytest.mark.parametrize(
    ("folder", "topic", "verdict", "told"),
    [
        ({"fault": "/scratch: Permission denied"}, "files", FAULT, "--dir DIR"),
        ({"unseen": ("n2",)}, "files", FAULT, "all hosts share"),
        ({"write_bytes_per_s": 1e6}, "files", REMARK, "faster file system"),
        ({"kind": "nfs4"}, "NFS", REMARK, "on one host"),
        ({"locks": False}, "file locks", REMARK, "HDF5_USE_FILE_LOCKING=FALSE"),
    ],
)
def test_folder(folder: dict[str, Any], topic: str, verdict: str, told: str) -> None:
    finding = found(folder=replace(FOLDER, **folder))[topic]
    assert finding.verdict == verdict
    assert told in finding.remedy


def test_a_file_system_is_named() -> None:
    on_lustre = found(folder=replace(FOLDER, kind="lustre"))
    assert on_lustre["files"].seen.startswith("/scratch (lustre): 1,000 MB/s")
    assert "NFS" not in on_lustre


def test_counters_of_joules() -> None:
    assert found()["energy"].seen == "every host counts joules, those of other jobs included"
    ranks = world()
    ranks[3] = replace(ranks[3], energy="[Errno 13] Permission denied: 'energy_uj'")
    assert "n2: [Errno 13] Permission denied" in found(ranks)["energy"].seen
    assert "run.watts_per_core" in found(ranks)["energy"].seen


def test_links() -> None:
    assert "1 Gbit/s" in found(links=(FAST, SLOW))["network"].remedy
    uneven = replace(FAST, ranks=(1, 3), bandwidth=1e9)
    assert "12 times faster" in found(links=(FAST, uneven))["network"].remedy
    on_a_host = replace(FAST, hosts=("n1", "n1"))
    for link, ends in ((FAST, "(n1 and n2)"), (on_a_host, "(rank 0 and rank 2)")):
        assert ends in found(links=(link,))["network"].seen
    # Ethernet of 1 Gbit/s itself is not slow, and four times are not uneven.
    at_limits = [replace(FAST, bandwidth=rate) for rate in (1.25e8, 5e8)]
    assert found(links=tuple(at_limits))["network"].verdict == GOOD
    assert "network" not in found(links=())
