"""Values that are drawn from all ranks."""

from mpi4py import MPI

import numpy as np

from hpcgnn.train.links.negatives import Numbered


def test_every_value_is_drawn_the_first_and_the_last_too(comm: MPI.Intracomm) -> None:
    # The second of several ranks has none, and keys are dealt out to the others in turn.
    keys = np.arange(12, dtype=np.int64)
    owners = np.array([rank for rank in range(comm.size) if rank != 1])
    mine = keys[owners[keys % len(owners)] == comm.rank]
    values = Numbered(comm, mine, 100 - 3 * mine)
    assert len(values) == 12
    np.testing.assert_array_equal(values.numbers, mine)
    np.testing.assert_array_equal(values.at(keys), 100 - 3 * keys)
    middles = np.arange(1, 2 * 12 * 40, 2, dtype=np.uint64) * np.uint64(2**64 // (2 * 12 * 40))
    words = middles.reshape(12, 40)
    words[-1, -1] = np.uint64(2**64 - 1)
    np.testing.assert_array_equal(values.draw(words), np.repeat(100 - 3 * keys, 40).reshape(12, 40))
