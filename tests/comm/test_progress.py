"""Long messages arrive without calls of MPI, and their arrival is recorded."""

import json
import threading
from time import sleep
from types import SimpleNamespace

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid, Stage, Transfer
from hpcgnn.comm import progress as progress_module
from hpcgnn.comm.stages import Message, start_stage
from hpcgnn.spmm import Carrier
from hpcgnn.trace import TraceRecorder, trace_file

ROWS, WIDTH = 4096, 128
"""2 MiB of float32: no MPI library sends that before the receiver calls it."""


def ring(comm: MPI.Intracomm) -> Stage:
    rows = slice(0, ROWS)
    owner, reader = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return Stage((Message(owner, rows),), (Message(reader, rows),))


def progress_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "progress"}


def waits_of(path) -> list[dict]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [each for each in records if each.get("name") == "wait.forward"]


@pytest.mark.parametrize("keeps", [True, False])
def test_rows_arrive_while_nobody_calls_mpi(comm: MPI.Intracomm, tmp_path, keeps: bool) -> None:
    if comm.size == 1:
        pytest.skip("one rank exchanges nothing")
    path = trace_file(tmp_path, comm.rank)
    with ProcessGrid(comm) as grid, TraceRecorder.open(path, comm.rank, {}) as trace:
        sent = np.full((ROWS, WIDTH), comm.rank, np.float32)
        received = np.empty_like(sent)
        comm.Barrier()
        going, coming = start_stage(grid.layer, ring(comm), sent, received, forward=True)
        if keeps:
            for transfer in (going, coming):
                grid.progress.keep(transfer, sent.nbytes)
        # This stands for computing, without any call of MPI.
        while keeps and grid.progress.is_permitted and not coming.is_there:
            sleep(0.01)
        with trace.span("wait.forward"):
            coming.wait(trace)
            coming.wait(trace)
        going.wait()
    np.testing.assert_array_equal(received, (comm.rank + 1) % comm.size)
    (wait,) = waits_of(path)
    assert wait["awaited_bytes"] == sent.nbytes
    assert wait["waited_ns"] <= wait["dur_ns"]
    if keeps and grid.progress.is_permitted:
        assert wait["arrived_bytes"] == sent.nbytes
        assert 0 < wait["moving_ns"] < wait["t_ns"]
    else:
        assert wait["arrived_bytes"] in (0, sent.nbytes)
        assert "moving_ns" not in wait


def test_pieces_count_that_had_arrived(comm: MPI.Intracomm, tmp_path, monkeypatch) -> None:
    path, count = trace_file(tmp_path, comm.rank), Transfer._arrived_bytes
    sent, received = np.arange(12.0), np.zeros(12)
    pieces = [slice(0, 3), slice(3, 7), slice(7, 12)]
    requests = [comm.Irecv(received[each], comm.rank, 5) for each in pieces]
    coming = Transfer(requests, [received[each].nbytes for each in pieces])
    for each in pieces[:2]:
        comm.Send(sent[each], comm.rank, 5)

    def arrived(transfer: Transfer) -> int:
        counted = count(transfer)
        comm.Send(sent[pieces[2]], comm.rank, 5)
        return counted

    monkeypatch.setattr(Transfer, "_arrived_bytes", arrived)
    with TraceRecorder.open(path, comm.rank, {}) as trace, trace.span("wait.forward"):
        coming.wait(trace)
    np.testing.assert_array_equal(received, sent)
    (wait,) = waits_of(path)
    assert (wait["awaited_bytes"], wait["arrived_bytes"]) == (sent.nbytes, sent[:7].nbytes)


def test_the_thread_lives_while_there_are_messages(comm: MPI.Intracomm, monkeypatch) -> None:
    with ProcessGrid(comm) as grid:
        for _ in range(2):
            # Long enough to be noticed, then none.
            monkeypatch.setattr(progress_module, "_IDLE_S", 1000)
            sent, received = np.zeros((ROWS, WIDTH), np.uint8), np.empty((ROWS, WIDTH), np.uint8)
            transfers = start_stage(grid.layer, ring(comm), sent, received, forward=True)
            for transfer in transfers:
                # Short messages are there at once, and wake no thread.
                grid.progress.keep(transfer, 100)
            before = progress_threads()
            grid.progress.keep(transfers[1], received.nbytes)
            started = progress_threads() - before
            assert len(started) == grid.progress.is_permitted
            for transfer in transfers:
                transfer.wait()
            monkeypatch.setattr(progress_module, "_IDLE_S", 0)
            # The thread looks once more.
            grid.progress._wake.set()
            for thread in started:
                thread.join()


def test_a_fault_is_told_by_the_wait(monkeypatch) -> None:
    transfer = Transfer([MPI.REQUEST_NULL])

    def fail(_):
        raise MPI.Exception(MPI.ERR_TRUNCATE)

    request = SimpleNamespace(Testall=fail)
    library = SimpleNamespace(Request=request, Exception=MPI.Exception)
    monkeypatch.setattr("hpcgnn.comm.transfer.MPI", library)
    assert not transfer.move()
    with pytest.raises(MPI.Exception):
        transfer.wait()


def test_without_leave_nothing_is_kept(comm: MPI.Intracomm, monkeypatch) -> None:
    with ProcessGrid(comm) as grid:
        monkeypatch.setattr(grid.progress, "is_permitted", False)
        before = progress_threads()
        rows = np.full((ROWS, WIDTH), comm.rank, np.float32)
        Carrier(grid).start_broadcast(rows, 0).wait()
        assert progress_threads() <= before
        np.testing.assert_array_equal(rows, 0)
