"""Send elements of arrays to the ranks that own them (one personalised all-to-all)."""

from mpi4py import MPI

import numpy as np

from hpcgnn.typing import Array, LocalIndices

__all__ = ["redistribute"]


def redistribute(comm: MPI.Intracomm, owners: LocalIndices, *arrays: Array) -> tuple[Array, ...]:
    """Send ``array[i]`` to rank ``owners[i]`` for every array; return what arrived.

    Collective.

    Parameters
    ----------
    comm
        The ranks that take part.
    owners
        (m,) int32 ranks.
    arrays
        (m, ...) arrays with the same dtypes and trailing shapes on all ranks.

    Returns
    -------
    tuple of arrays
        Elements in order of the sending rank, and in the sender's order within a rank.
    """
    # NumPy sorts 16-bit integers by radix: a sixth of the time.
    narrow = owners.astype(np.int16) if comm.size <= np.iinfo(np.int16).max else owners
    order = np.argsort(narrow, kind="stable")
    send_counts = np.bincount(owners, minlength=comm.size).astype(np.int32)
    recv_counts = np.empty(comm.size, np.int32)
    comm.Alltoall(send_counts, recv_counts)
    received = []
    for array in arrays:
        outgoing = np.ascontiguousarray(array[order])
        incoming = np.empty((int(recv_counts.sum()), *array.shape[1:]), array.dtype)
        # One datatype an element keeps counts below 2^31 whatever the element's width.
        width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        element = MPI.BYTE.Create_contiguous(width).Commit()
        comm.Alltoallv((outgoing, send_counts, element), (incoming, recv_counts, element))
        element.Free()
        received.append(incoming)
    return tuple(received)
