"""Checkpoints in the memory of two hosts, which are separate folders here."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import pytest
import torch

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.train.run.checkpoint import Checkpoint, checkpoint_paths, read_checkpoint
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.memory_checkpoints import MemoryCheckpoints
from tests.support import training


class Hosts:
    """A run whose rank 0 is alone on the first host; each host has a folder as its memory."""

    def __init__(self, comm: MPI.Intracomm, path: Path) -> None:
        self.comm, self.path = comm, path
        self.host = "first" if comm.rank == 0 else "second"
        self.grid = ProcessGrid(comm, host=self.host)
        memory = f"run.partner_dir={path / self.host}"
        self.config = training.make_config(path / "no.h5", path / "run", memory)
        self.directory = RunDirectory(path / "run")
        if comm.rank == 0:
            self.directory.checkpoints.mkdir(parents=True)
            self.directory.begin_session({"started": "now"})
        comm.Barrier()

    def memory(self, **settings: object) -> MemoryCheckpoints:
        run = replace(self.config.run, **settings)  # type: ignore[arg-type]
        memory = MemoryCheckpoints(self.grid, replace(self.config, run=run), self.directory)
        memory.find_folder()
        return memory

    def on_disk(self) -> list[int]:
        self.comm.Barrier()
        return [epoch for _, epoch, _ in checkpoint_paths(self.directory.checkpoints)]

    def copies(self, host: str) -> list[Path]:
        self.comm.Barrier()
        return sorted((self.path / host).glob("hpcgnn-*/seed*"))

    def do_on_0(self, action: object, *arguments: object) -> None:
        if self.comm.rank == 0:
            action(*arguments)  # type: ignore[operator]
        self.comm.Barrier()


@pytest.fixture
def hosts(comm: MPI.Intracomm, comm_tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(comm, comm_tmp_path)
    yield found
    found.grid.close()


def some(hosts: Hosts, epoch: int) -> Checkpoint:
    state = {"seed": hosts.config.train.seeds[0], "epoch": epoch}
    return Checkpoint(state, {"a": torch.arange(4.0) / epoch}, {}, {}, {})


def test_a_lost_host_takes_one_copy(hosts: Hosts) -> None:
    memory = hosts.memory()
    for epoch in (1, 2):
        memory.save(some(hosts, epoch))
    names = {host: [path.name for path in hosts.copies(host)] for host in ("first", "second")}
    second = ["seed1-epoch000002"] if hosts.comm.size > 1 else []
    assert names == {"first": ["seed1-epoch000002"], "second": second}
    if hosts.comm.size > 1:
        hosts.do_on_0(shutil.rmtree, hosts.path / "first")
    hosts.memory().bring_back()
    assert hosts.on_disk() == [2]
    [(*_, path)] = checkpoint_paths(hosts.directory.checkpoints)
    assert torch.equal(read_checkpoint(path).model["a"], torch.arange(4.0) / 2)
    # The disk is now up to date, and stays unchanged.
    before = path.stat().st_mtime_ns
    hosts.memory().bring_back()
    assert path.stat().st_mtime_ns == before
    memory.drop()
    assert not hosts.copies("first") + hosts.copies("second")


def test_a_damaged_copy_is_left_out(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    hosts.memory().save(some(hosts, 5))
    path = hosts.copies("first")[0] / "model.safetensors"
    hosts.do_on_0(path.write_bytes, b"nothing")
    hosts.memory().bring_back()
    assert hosts.on_disk() == ([5] if hosts.comm.size > 1 else [])
    assert hosts.comm.rank > 0 or "a damaged copy in memory is ignored" in caplog.text


@pytest.mark.parametrize("fault", ["another run", "begun anew"])
def test_copies_of_another_run_are_not_found(hosts: Hosts, fault: str) -> None:
    hosts.memory().save(some(hosts, 5))
    if fault == "another run":
        hosts.do_on_0(hosts.directory.start)
        hosts.do_on_0(hosts.directory.begin_session, {"started": "later"})
    hosts.memory(resume="auto" if fault == "another run" else "never").bring_back()
    assert hosts.on_disk() == []
    assert bool(hosts.copies("first")) == (fault == "another run")


def test_a_folder_that_cannot_be_made_is_named(hosts: Hosts) -> None:
    hosts.do_on_0((hosts.path / "first").write_text, "a file")
    with pytest.raises(CollectiveInputError, match=r"run\.partner_dir .*/first/.*choose another"):
        hosts.memory().save(some(hosts, 1))
