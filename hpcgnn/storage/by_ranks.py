"""Let all ranks write one store, each its own rows; the store appears whole or not at all.

Also compares what the ranks have read of a store together with its checksums.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hpcgnn.comm import (
    Communicator,
    RankGroup,
    agree,
    allreduce_sum,
    allreduce_xor,
    bcast,
    exclusive_sum,
    redistribute,
)
from hpcgnn.spmd import collective
from hpcgnn.storage import OpenStore, ShareSizes, StoreHeader, StoreShare, StoreWriter


@contextlib.contextmanager
@collective
def open_store(
    ranks: RankGroup,
    path: Path,
    header: StoreHeader,
    sizes: Callable[[], ShareSizes],
    declare: Callable[[StoreWriter], None],
) -> Iterator[StoreWriter]:
    """Yield each rank a writer for its rows; leaving the block completes the store.

    Rows are stored by rank, and within a rank in the order of appending: the store is the one that
    a single process would write. Memory is a few chunks for each dataset, and 8 bytes for each
    chunk (1 MiB) of the whole store.

    Rank 0 writes the attributes of the whole store, and it alone records parts. `path` is in a
    directory that all hosts share, and `header` is the same on all ranks. `sizes` and `declare` are
    called only if there are several ranks. `sizes` says how much this rank will append, to place
    its rows. `declare` is called with the writer on every rank: in the same order, it appends an
    empty block of every dataset that any rank will append to. Append inside an `agree`. If a rank
    cannot write, all raise `CollectiveInputError` and no file is left.
    """
    comm = ranks.comm
    if comm is None:
        with StoreWriter(path, header) as writer:
            yield writer
        return
    with agree(comm):
        sizes_here = sizes()
    counts = sizes_here.counts()
    before, total = exclusive_sum(comm, counts), counts.copy()
    allreduce_sum(comm, total)
    with contextlib.ExitStack() as stack:
        share = None
        with agree(comm):
            if comm.rank == 0:
                made = StoreShare(path, header, sizes_here, (before, total), None)
                share = stack.enter_context(made)
        temporary = bcast(comm, None if share is None else share.temporary)
        with agree(comm):
            if share is None:
                made = StoreShare(path, header, sizes_here, (before, total), temporary)
                share = stack.enter_context(made)
            declare(share)
            share.declared()
            offsets = share.create() if comm.rank == 0 else None
        assert share is not None
        share.place(bcast(comm, offsets))
        yield share
        _join(comm, share)
        with agree(comm):
            stack.pop_all().close()


@collective
def _join(comm: Communicator, share: StoreShare) -> None:
    """Send heads to the ranks that write them, and checksums and ends of all shares to rank 0."""
    with agree(comm):
        heads = share.heads()
    starts: list[list[int]] = comm.allgather([column.span.start for column in share.columns])
    owners = [
        np.searchsorted(begins, column.head_chunk, side="right") - 1
        for column, begins in zip(share.columns, np.array(starts).T, strict=True)
    ]
    arrived = [
        redistribute(comm, np.full(len(head), owner, np.int32), head)[0]
        for owner, head in zip(owners, heads, strict=True)
    ]
    with agree(comm):
        share.complete(arrived)
    crcs = np.array([column.share_of_crc() for column in share.columns], np.int64)
    allreduce_xor(comm, crcs)
    ends = comm.gather(share.ends())
    if ends is not None:
        share.join(crcs.tolist(), ends)


def verify_by_ranks(ranks: RankGroup, store: OpenStore) -> None:
    """Read the whole store, each rank a share, and compare it with the checksums.

    Call it before any other read. Raises what `check_rows_read` does.
    """
    if ranks.comm is None:
        store.verify()
        return
    with ranks.agree():
        store.read_share(ranks.rank, ranks.size)
    check_rows_read(ranks.comm, store)


@collective
def check_rows_read(comm: Communicator, store: OpenStore) -> None:
    """Compare the rows that the ranks of `comm` have read together with the store's checksums.

    Raises `CollectiveInputError` if a dataset was changed in place or ranks read different files.
    """
    crcs, rows = store.rows_read()
    allreduce_xor(comm, crcs)
    allreduce_sum(comm, rows)
    with agree(comm):
        store.check_rows_read(crcs, rows)
