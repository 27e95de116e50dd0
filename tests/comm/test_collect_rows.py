"""Rows of all ranks in the order of their keys, collected on rank 0 piece by piece."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm.collect_rows import (
    RowStream,
    in_order,
)

KEYS = {
    "permutation": lambda rng: rng.permutation(101),
    "far apart": lambda rng: rng.integers(-(2**62), 2**62, 67),
    "few": lambda rng: rng.integers(0, 3, 40),
    "one": lambda rng: rng.integers(0, 3, 1),
    "none": lambda rng: rng.integers(0, 3, 0),
}


def shares(comm: MPI.Intracomm, count: int, seed: int) -> slice:
    """Return the rows of this rank; the last rank has none."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, count + 1, max(comm.size - 2, 0)))
    starts = np.concatenate([[0], cuts, [count] * min(comm.size, 2)])[: comm.size + 1]
    starts[-1] = count
    return slice(int(starts[comm.rank]), int(starts[comm.rank + 1]))


@pytest.mark.parametrize("name", KEYS)
def test_rows_are_sorted_over_the_ranks(comm: MPI.Intracomm, name: str) -> None:
    keys = KEYS[name](np.random.default_rng(6)).astype(np.int64)
    mine = shares(comm, len(keys), 2)
    number = np.arange(len(keys))
    pair = np.stack([number, -number], axis=1).astype(np.float32)
    found_keys, found, pairs = in_order(comm, keys[mine], keys[mine], number[mine], pair[mine])
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(np.concatenate(comm.allgather(found_keys)), keys[order])
    np.testing.assert_array_equal(np.concatenate(comm.allgather(found)), number[order])
    np.testing.assert_array_equal(np.concatenate(comm.allgather(pairs)), pair[order])


def test_sorted_rows_are_shared_evenly(comm: MPI.Intracomm) -> None:
    mine = np.arange(comm.rank, 12_000, comm.size) * 1_000_003 % 12_007
    (found,) = in_order(comm, mine, mine)
    assert comm.allreduce(len(found), op=MPI.MAX) < 1.1 * 12_000 / comm.size


@pytest.mark.parametrize("piece_bytes", [1, 50, 1 << 20])
def test_stream_brings_all_rows_in_order(comm: MPI.Intracomm, piece_bytes: int) -> None:
    count = 29
    mine = shares(comm, count, 4)
    ids, values = np.arange(count), np.random.default_rng(1).random((count, 3))
    pieces = []
    with RowStream(comm, ids[mine], values[mine], piece_bytes=piece_bytes) as stream:
        for piece in stream:
            pieces.append(piece)
            assert sum(each.nbytes for each in piece) <= max(piece_bytes, 32)
    if comm.rank == 0:
        np.testing.assert_array_equal(np.concatenate([ids for ids, _ in pieces]), ids)
        np.testing.assert_array_equal(np.concatenate([rows for _, rows in pieces]), values)
    else:
        assert pieces == []


@pytest.mark.parametrize("taken", [0, 1, 5, 14])
def test_an_error_on_rank_0_releases_the_others(comm: MPI.Intracomm, taken: int) -> None:
    count = 29
    mine = shares(comm, count, 4)
    # Large enough that the send waits for its receiver.
    values = np.zeros((count, 100_000))
    with RowStream(comm, values[mine], piece_bytes=1) as stream:
        for number, _ in enumerate(stream):
            if number == taken:
                break
    assert comm.allreduce(1) == comm.size
