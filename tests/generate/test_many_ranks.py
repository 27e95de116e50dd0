"""Many ranks generate graphs: the store is the same as that of one process."""

import sys
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.errors import CollectiveInputError, InputError
from hpcgnn.gallery import flow, shapes, streamed
from hpcgnn.storage import EdgeBuilder, GraphStore

KINDS = {
    "rmat": ("rmat", "--scale", "8", "--edge-factor", "5", "--seed", "3"),
    "rmat undirected": ("rmat", "--scale", "8", "--undirected", "--features", "0"),
    "grid": ("grid3d", "--shape", "3,5,7", "--classes", "0"),
    "moved grid": ("grid3d", "--shape", "3,5,7", "--edge-features"),
    "communities": ("communities", "--nodes", "301", "--classes", "4", "--mean-degree", "6"),
    "heat": ("heat", "--shape", "3,5,7", "--trajectories", "2", "--steps", "3"),
    "flow": (
        "flow",
        "--nodes",
        "120",
        "--reynolds",
        "40,60",
        "--trajectories",
        "3",
        "--steps",
        "2",
    ),
    "no edges": ("rmat", "--scale", "1", "--edge-factor", "0"),
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_store_is_that_of_one_process(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    monkeypatch.setattr(streamed, "CHUNK_EDGES", 300)
    monkeypatch.setattr(shapes, "GRID_CHUNK", 25)
    monkeypatch.setattr(streamed, "NODE_CHUNK", 64)
    monkeypatch.setattr(flow, "SETTLING", 0.1)
    alone, together = comm_tmp_path / "alone.h5", comm_tmp_path / "together.h5"
    words = ["generate", *KINDS[kind], "--memory", "0.1K", "-o"]
    monkeypatch.setattr(sys, "argv", [*words, str(together)])
    assert find_command("generate").call(comm=comm) == 0
    if comm.rank == 0:
        monkeypatch.setattr(sys, "argv", [*words, str(alone)])
        find_command("generate").call()
        with GraphStore.open(alone) as expected, GraphStore.open(together) as found:
            found.verify()
            assert found.fingerprint == expected.fingerprint
            assert found.num_nodes == expected.num_nodes
        assert sorted(each.name for each in comm_tmp_path.iterdir()) == ["alone.h5", "together.h5"]
        assert str(together) in capsys.readouterr().out


def test_what_is_made_in_memory_is_refused(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = comm_tmp_path / "planted.h5"
    words = ["generate", "planted", "--nodes", "50", "-o", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(CollectiveInputError, match="start it without mpiexec or srun"):
        find_command("generate").call(comm=comm)
    assert not out.exists()


def test_a_disk_that_is_full_for_one_rank_ends_all(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise InputError("no room")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(EdgeBuilder, "add", full)
    words = ["generate", "rmat", "--scale", "4", "-o", str(comm_tmp_path / "r.h5")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(CollectiveInputError, match="no room"):
        find_command("generate").call(comm=comm)
