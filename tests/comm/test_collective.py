from mpi4py import MPI

import pytest

from hpcgnn.comm import CollectiveInputError, agree, raise_on_all
from hpcgnn.errors import InputError


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


def test_collective_error_passes_through_without_agreeing_twice(comm: MPI.Intracomm) -> None:
    with pytest.raises(CollectiveInputError, match="inner"), agree(comm):
        raise CollectiveInputError("inner")
