from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import (
    CollectiveInputError,
    agree,
    allreduce_max,
    allreduce_sum,
    raise_on_all,
    recv_any,
    send_any,
)
from hpcgnn.errors import InputError, LackOfMemoryError


def fail_on(comm: MPI.Intracomm, rank: int, error: Exception) -> None:
    if comm.rank == rank:
        raise error


def test_no_error_returns(comm: MPI.Intracomm) -> None:
    raise_on_all(comm, None)
    with agree(comm):
        pass


def test_input_error_of_the_last_rank_reaches_all(comm: MPI.Intracomm) -> None:
    with pytest.raises(CollectiveInputError, match="bad file of the last"), agree(comm):
        fail_on(comm, comm.size - 1, InputError("bad file of the last"))


def test_lowest_rank_is_reported(comm: MPI.Intracomm) -> None:
    with pytest.raises(CollectiveInputError, match=r"^rank 0$"), agree(comm):
        raise InputError(f"rank {comm.rank}")


def test_defect_names_its_rank(comm: MPI.Intracomm) -> None:
    with pytest.raises(RuntimeError, match="rank 0 failed with KeyError: 'x'"), agree(comm):
        fail_on(comm, 0, KeyError("x"))


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (MemoryError("Unable to allocate 7.28 TiB"), "more"),
        (RuntimeError("you tried to allocate 512 bytes: can't allocate memory"), "512 bytes more"),
    ],
)
def test_a_lack_of_memory_names_its_rank(
    comm: MPI.Intracomm, error: Exception, amount: str
) -> None:
    last = comm.size - 1
    text = rf"^rank {last} on \S+: there is no memory for {amount}; "
    with pytest.raises(LackOfMemoryError, match=text) as raised, agree(comm):
        fail_on(comm, last, error)
    assert raised.value.status == 1


def test_collective_error_passes_through_without_agreeing_twice(comm: MPI.Intracomm) -> None:
    with pytest.raises(CollectiveInputError, match="inner"), agree(comm):
        raise CollectiveInputError("inner")


@pytest.mark.several_ranks
def test_sent_objects_arrive(comm: MPI.Intracomm) -> None:
    # Those of 2 GiB take the same way in pieces; mpi4py's own messages refuse them.
    sent = {"rows": np.arange(5), "weights": torch.arange(3.0), "text": ["a", None]}
    if comm.rank == 0:
        send_any(comm, sent, comm.size - 1)
    elif comm.rank == comm.size - 1:
        found = recv_any(comm, 0)
        assert found["text"] == sent["text"]
        assert all((found[name] == sent[name]).all() for name in ("rows", "weights"))


def test_pairs_of_ranks_combine_arrays_in_pieces(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcgnn.comm.transfer._MAX_COUNT", 3)
    pair = comm.Split(comm.rank // 2)
    mine = np.random.default_rng(comm.rank).integers(0, 99, (2, 4))
    shares = pair.allgather(mine)
    for reduce, of_all in ((allreduce_sum, np.sum), (allreduce_max, np.max)):
        found = mine.copy()
        reduce(pair, found)
        np.testing.assert_array_equal(found, of_all(shares, axis=0))
    pair.Free()
