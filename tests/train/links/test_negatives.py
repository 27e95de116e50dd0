"""Values drawn from all ranks."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import RowMap
from hpcgnn.train.links.edges import LinkEdges, mixed
from hpcgnn.train.links.negatives import NEGATIVES, InBatch, NodePool, Numbered


def test_every_value_is_drawn_the_first_and_the_last_too(comm: MPI.Intracomm) -> None:
    # The second of several ranks has no keys; the others get them in turn.
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


@pytest.mark.parametrize("num_edges", [2, 3, 4, 5, 8, 9, 13])
def test_no_edge_of_a_batch_is_told_from_its_own_end(comm: MPI.Intracomm, num_edges: int) -> None:
    # All targets differ; the second of several ranks has no edge.
    owners = np.array([rank for rank in range(comm.size) if rank != 1])
    every = np.arange(num_edges)
    mine = every[owners[every % len(owners)] == comm.rank]
    edges = LinkEdges(0 * mine, 100 + mine, 0 * mine, mixed(mine).view(np.int64))
    row_map = RowMap(np.zeros(comm.size + 1, np.int64), comm.rank)
    in_batch = InBatch(NodePool(comm, row_map, every[:0], edges, 1, None))
    order = np.argsort(mixed(mixed(every).view(np.int64), 7, 2).view(np.int64))
    numbers = np.argsort(order)[mine]
    for count in range(1, 9):
        wrong = in_batch.draw(edges, count, (7, 2))
        assert wrong.shape == (len(mine), count)
        assert (wrong != edges.targets[:, None]).all()
        for row in wrong:
            assert len(set(row.tolist())) == min(count, num_edges - 1)
        if num_edges > count:
            first = numbers // (count + 1) * (count + 1)
            others = (numbers[:, None] - first[:, None] + 1 + np.arange(count)) % (count + 1)
            expected = 100 + order[(first[:, None] + others) % num_edges]
            np.testing.assert_array_equal(wrong, expected)


@pytest.mark.parametrize("name", ["uniform", "relation"])
def test_no_edge_is_its_own_negative(comm: MPI.Intracomm, name: str) -> None:
    # Of nodes 0 to 4, the last is the only one of its type.
    row_map = RowMap(np.append(np.arange(comm.size) * 5 // comm.size, 5), comm.rank)
    ids, types = np.arange(row_map.start, row_map.stop), np.array([0, 0, 0, 0, 1], np.uint8)
    edges = LinkEdges(0 * ids, ids, 0 * ids, mixed(ids).view(np.int64))
    pool = NodePool(comm, row_map, ids, edges, 1, types)
    drawn = NEGATIVES[name](pool).draw(edges, 3000, (1, -1))
    for target, row in zip(ids.tolist(), drawn, strict=True):
        others = (types == 0) & (np.arange(5) != target)
        expected = [0, 0, 0, 0, 3000] if target == 4 else 1000 * others
        np.testing.assert_allclose(np.bincount(row, minlength=5), expected, atol=100)
