"""Block rows that a planner cuts equal those that ranks hold."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcgnn.comm import GridPosition, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.plan.ghost_rows import BlockRows, StoredSurvey
from hpcgnn.plan.objectives import Predictions, copies_of_groups
from hpcgnn.plan.traffic import ALL, BlockPairs, Movement, Ranks, Traffic, sent_by_rank
from hpcgnn.sparse import DistCSR
from tests.support.matrices import block_row, ugly_matrix, uneven_starts


def whole_of(num_nodes: int, seed: int) -> DistCSR:
    return block_row(ugly_matrix(num_nodes, seed), RowMap(np.array([0, num_nodes], np.int64), 0))


@pytest.mark.parametrize(("num_nodes", "blocks"), [(53, 5), (20, 1), (7, 12)])
def test_block_rows_are_those_of_ranks(num_nodes: int, blocks: int) -> None:
    whole, starts = whole_of(num_nodes, 3), uneven_starts(num_nodes, blocks, 3)
    cut = BlockRows(whole, starts)
    assert len(cut) == blocks
    for place in range(blocks):
        wanted = block_row(ugly_matrix(num_nodes, 3), RowMap(starts, place))
        found = cut[place]
        np.testing.assert_array_equal(found.ghosts, wanted.ghosts)
        for mine, theirs in ((found.diagonal, wanted.diagonal), (found.remote, wanted.remote)):
            assert mine.shape == theirs.shape
            np.testing.assert_array_equal(mine.indptr, theirs.indptr)
            np.testing.assert_array_equal(mine.indices, theirs.indices)
            np.testing.assert_array_equal(mine.values, theirs.values)
    with pytest.raises(IndexError):
        cut[blocks]


def test_entries_that_are_pushed_reach_the_owner_of_their_column() -> None:
    num_nodes, blocks = 53, 4
    matrix, starts = ugly_matrix(num_nodes, 8), uneven_starts(num_nodes, blocks, 8)
    whole = whole_of(num_nodes, 8)
    drawn = np.random.default_rng(1).random(whole.nnz) < 0.5
    rows = whole.diagonal.entry_rows()
    for place in range(blocks):
        found = BlockRows(whole, starts).pushed_to(place, drawn)
        wanted = [
            (row, column)
            for row, column, pushed in zip(rows, whole.diagonal.indices, drawn, strict=True)
            if pushed and starts[place] <= column < starts[place + 1]
        ]
        assert list(zip(*found, strict=True)) == wanted
    assert matrix.nnz == whole.nnz


def test_a_rank_names_those_that_it_only_reads_from() -> None:
    # The second of three nodes reads the first, and each has its own rank.
    row_map = RowMap(np.array([0, 3], np.int64), 0)
    whole = DistCSR.from_rows(row_map, np.array([0, 0, 1, 1], np.int64), np.zeros(1, np.int32))
    ranks = Ranks(np.arange(4), ExchangeConfig(method="aware"))
    survey = StoredSurvey.of(whole, ranks)
    shares = [
        survey.share(ranks, GridPosition(3, 1, rank, 0, ranks.hosts(0))).fetch for rank in range(3)
    ]
    found = [(each.peers.tolist(), each.send_counts.tolist()) for each in shares]
    assert found == [([1], [1]), ([0], [0]), ([], [])]
    assert [each.recv_counts.tolist() for each in shares] == [[0], [1], []]


def test_block_rows_without_rows_train_nothing() -> None:
    objective: Any = SimpleNamespace(trains=np.array([True, False, True, True]))
    starts = np.array([0, 0, 2, 2, 4, 4])
    assert Predictions.trained(objective, starts).tolist() == [0, 1, 0, 2, 0]


def test_a_message_goes_where_a_row_goes() -> None:
    fetched = np.array([[[0, 1, 2], [0, 0, 0], [3, 0, 0]]])
    pushed = np.array([[[0, 0, 0], [5, 0, 0], [0, 1, 0]]])
    sums = np.zeros((2, 2, 3, 1, 1), np.int64)
    traffic = {ALL: Traffic.of_pairs(BlockPairs.of_all(fetched, pushed), sums, np.ones(3), 3, 3)}
    for what, rows, messages in (
        ("fetched", [3, 1, 2], [1, 1, 1]),
        ("pushed", [0, 5, 1], [0, 1, 1]),
    ):
        sent = sent_by_rank([Movement(ALL, what, False, 8)], traffic, 1)
        assert (sent.rows.tolist(), sent.messages.tolist()) == (rows, messages)


def test_groups_join_copies_of_a_graph() -> None:
    # Of two groups one has the first sample and needs no copy; of four, one has no samples.
    assert copies_of_groups(num_samples=2, batch=2, groups=2) == {1}
    assert copies_of_groups(num_samples=3, batch=3, groups=2) == {1, 2}
    assert copies_of_groups(num_samples=3, batch=3, groups=4) == {1}
    assert copies_of_groups(num_samples=7, batch=5, groups=1) == {5, 2}
    assert not copies_of_groups(num_samples=2, batch=1, groups=1)
