"""The doctor on every rank: it measures, tests the folder, and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.comm import measure_links
from hpcgnn.commands.command import find_command
from hpcgnn.doctor.folder import try_folder

COMMAND = find_command("doctor")


def test_links_of_a_host(comm: MPI.Intracomm) -> None:
    links = measure_links(comm, 0.2)
    pairs = {frozenset(each.ranks) for each in links}
    ring = {frozenset({rank, (rank + 1) % comm.size}) for rank in range(comm.size)}
    assert pairs == (ring if comm.size > 1 else set())
    assert len(links) == len(pairs)
    assert all(each.latency_s > 0 and each.bandwidth > 0 for each in links)
    assert comm.allgather(links) == [links] * comm.size


def test_folder_is_left_as_it_was(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    facts = try_folder(comm, comm_tmp_path)
    assert facts.write_bytes_per_s > 0
    assert facts.locks
    told = subprocess.check_output(["df", "--output=fstype", comm_tmp_path], text=True)
    assert facts.kind == told.split()[-1]
    assert not facts.fault
    assert not facts.unseen
    assert list(comm_tmp_path.iterdir()) == []
    missing = try_folder(comm, comm_tmp_path / "none")
    assert missing.fault == f"{comm_tmp_path / 'none'}: No such file or directory"


def test_one_line_a_finding(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["hpcgnn doctor", "--dir", str(comm_tmp_path), "--seconds", "0.2"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert COMMAND.call(comm=comm) == 0
    told = capsys.readouterr().out
    assert ("  ok  files: " in told or "remark  files: " in told) == (comm.rank == 0)
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    assert COMMAND.call(comm=comm) == 0
    told = capsys.readouterr().out
    if comm.rank == 0:
        assert len(json.loads(told)["ranks"]) == comm.size
    monkeypatch.setattr(sys, "argv", [*arguments, "--dir", str(comm_tmp_path / "none")])
    assert COMMAND.call(comm=comm) == 1
