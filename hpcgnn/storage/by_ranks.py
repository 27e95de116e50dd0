"""Stores that all ranks write, each its rows: one ordinary store appears, whole or not at all.

What they have read of a store together is compared with its checksums here, too.
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
def open_store(
    ranks: RankGroup,
    path: Path,
    header: StoreHeader,
    sizes: Callable[[], ShareSizes],
    declare: Callable[[StoreWriter], None],
) -> Iterator[StoreWriter]:
    """Give each rank a writer of its rows, see `store_by_ranks`; leaving completes the store.

    `sizes` is asked where a rank must know its place beside others; one process needs none.
    """
    if ranks.comm is None:
        with StoreWriter(path, header) as writer:
            yield writer
        return
    with ranks.agree():
        sizes_here = sizes()
    with store_by_ranks(ranks.comm, path, header, sizes_here, declare) as writer:
        yield writer


@contextlib.contextmanager
@collective
def store_by_ranks(
    comm: Communicator,
    path: Path,
    header: StoreHeader,
    sizes: ShareSizes,
    declare: Callable[[StoreWriter], None],
) -> Iterator[StoreWriter]:
    """Give each rank a writer that takes its rows; leaving the block completes the store.

    The ranks' rows stand in the store in the order of the ranks, those of a rank in the order in
    which it appends them: the store is the one that a single process would write. Memory is a few
    chunks for each dataset, and 8 bytes for each chunk (1 MiB) of the whole store.

    The first of the ranks writes what concerns the whole, and alone records parts; `path` is in a
    directory that all hosts see, `header` the same on all ranks, `sizes` what this rank will
    append. `declare` is called with the writer on every rank: it appends, in the same order, a
    block without rows of all that any rank will append. Errors in appending belong into an `agree`.
    Raises `CollectiveInputError` where a rank cannot write; on all ranks, and nothing is left.
    """
    counts = sizes.counts()
    before, total = exclusive_sum(comm, counts), counts.copy()
    allreduce_sum(comm, total)
    with contextlib.ExitStack() as stack:
        share = None
        with agree(comm):
            if comm.rank == 0:
                share = stack.enter_context(StoreShare(path, header, sizes, (before, total), None))
        temporary = bcast(comm, None if share is None else share.temporary)
        with agree(comm):
            if share is None:
                made = StoreShare(path, header, sizes, (before, total), temporary)
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
    """Hand heads to the ranks that write them, and tell the first rank what concerns the whole."""
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
    """Read everything, each rank a share, and compare it with the checksums.

    Comes before other reading. Raises what `check_rows_read` does.
    """
    if ranks.comm is None:
        store.verify()
        return
    with ranks.agree():
        store.read_share(ranks.rank, ranks.size)
    check_rows_read(ranks.comm, store)


@collective
def check_rows_read(comm: Communicator, store: OpenStore) -> None:
    """Compare what the ranks of `comm` have read together with the checksums of the store.

    Raises `CollectiveInputError` where a dataset was changed in place, or two ranks have read
    different files.
    """
    crcs, rows = store.rows_read()
    allreduce_xor(comm, crcs)
    allreduce_sum(comm, rows)
    with agree(comm):
        store.check_rows_read(crcs, rows)
