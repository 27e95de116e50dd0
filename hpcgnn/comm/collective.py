"""Raise an error of one rank on all ranks, so that none is left waiting in a collective.

Between two collectives nothing may return or raise on only some ranks. Code that can fail on one
rank alone (reading a file, checking its rows) runs inside ``with agree(comm):``, and all ranks
leave the block together, either normally or with the same error.
"""

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from hpcgnn.comm.mpi import MPI
from hpcgnn.errors import (
    CollectiveInputError,
    InputError,
    LackOfMemoryError,
    lack_of_memory,
    paths_told,
)
from hpcgnn.spmd import collective

T = TypeVar("T")


@collective
def raise_on_all(comm: "MPI.Comm", error: Exception | None) -> None:
    """Raise the error of the lowest failing rank on every rank, or return on every rank.

    `error` is this rank's failure, or None. If the lowest failing rank has an `InputError`, raises
    `CollectiveInputError` with its message; if it has run out of memory, `LackOfMemoryError`; any
    other error becomes a `RuntimeError`. Both name the rank. On the failing rank itself the
    original exception is the cause.
    """
    # Reduce an array: reducing a Python object takes three times as many sequential messages.
    ranks = np.array([comm.size if error is None else comm.rank])
    comm.Allreduce(MPI.IN_PLACE, ranks, op=MPI.MIN)
    if (first := int(ranks[0])) == comm.size:
        return
    fault = None
    if error is not None and comm.rank == first:
        is_input, lack = isinstance(error, InputError), lack_of_memory(error)
        fault = (is_input, lack, type(error).__name__, str(error))
    is_input, lack, name, text = comm.bcast(fault, root=first)
    if is_input:
        raise CollectiveInputError(text) from error
    if lack:
        raise LackOfMemoryError(f"rank {first} {lack}") from error
    raise RuntimeError(f"rank {first} failed with {name}: {text}") from error


@contextlib.contextmanager
@collective
def agree(comm: "MPI.Comm") -> Iterator[None]:
    """Leave the block on all ranks together, with the same error if any; see `raise_on_all`.

    Collective. The block itself must not communicate.
    """
    error: Exception | None = None
    try:
        with paths_told():
            yield
    except CollectiveInputError:
        # Every rank has raised this already, so no other rank would join another agreement.
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


def send_any(comm: "MPI.Intracomm", value: object, dest: int) -> None:
    """Send an object of any size to a rank, which calls `recv_any`.

    Pickled messages of mpi4py's own communicators end at 2^31 bytes.
    """
    _of_any_size(comm).send(value, dest)


def recv_any(comm: "MPI.Intracomm", source: int) -> Any:
    """Return the object that a rank sends by `send_any`."""
    return _of_any_size(comm).recv(source=source)


def _of_any_size(comm: "MPI.Intracomm") -> Any:
    return import_module("mpi4py.util.pkl5").Intracomm(comm)
