"""Errors that every rank learns of, so that none is left waiting in a collective.

Between two collectives nothing may return or raise on a subset of ranks. Code that can fail on one
rank alone (reading a file, checking its rows) runs inside ``with agree(comm):``, and all ranks
leave the block together, either normally or with the same error.
"""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from hpcgnn.comm.mpi import MPI
from hpcgnn.errors import CollectiveInputError, InputError, paths_told
from hpcgnn.spmd import collective

T = TypeVar("T")


@collective
def raise_on_all(comm: "MPI.Comm", error: Exception | None) -> None:
    """Raise on every rank what the lowest failing rank brought, or return on every rank.

    `error` is this rank's failure, or None. Raises `CollectiveInputError` where the lowest failing
    rank brought an `InputError`; the message is that rank's. Anything else becomes a `RuntimeError`
    that names the rank. On the failing rank itself the original exception is the cause.
    """
    # A sum of arrays: of objects it takes three times as many messages one after the other.
    ranks = np.array([comm.size if error is None else comm.rank])
    comm.Allreduce(MPI.IN_PLACE, ranks, op=MPI.MIN)
    if (first := int(ranks[0])) == comm.size:
        return
    fault = None
    if error is not None and comm.rank == first:
        fault = (isinstance(error, InputError), type(error).__name__, str(error))
    is_input, name, text = comm.bcast(fault, root=first)
    if is_input:
        raise CollectiveInputError(text) from error
    raise RuntimeError(f"rank {first} failed with {name}: {text}") from error


@contextlib.contextmanager
@collective
def agree(comm: "MPI.Comm") -> Iterator[None]:
    """Leave the block on all ranks together, see `raise_on_all`.

    Collective; the block itself must not communicate.
    """
    error: Exception | None = None
    try:
        with paths_told():
            yield
    except CollectiveInputError:
        # Already raised on every rank; agreeing again would wait for nobody.
        raise
    except Exception as caught:
        error = caught
    raise_on_all(comm, error)


@collective
def all_ranks(comm: "MPI.Comm", holds: bool) -> bool:
    """Return whether `holds` is true on every rank."""
    held = np.array([holds])
    comm.Allreduce(MPI.IN_PLACE, held, op=MPI.LAND)
    return bool(held[0])


@collective
def bcast(comm: "MPI.Comm", value: T | None, root: int = 0) -> T:
    """Return `root`'s value on every rank."""
    received: T = comm.bcast(value, root=root)
    return received
