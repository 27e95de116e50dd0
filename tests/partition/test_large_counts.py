"""Non-zeros and weights beyond 2^32 in the partitioners' input: numbers are invented."""

import numpy as np

from hpcgnn.partition import CSRGraph, part_graph, pattern
from hpcgnn.partition.pattern import row_blocks
from hpcgnn.storage import row_positions
from tests.partition.test_volume_balanced import hubs


class Offsets:
    """The part of a store that cutting its rows reads: 2^34 non-zeros in 1,000 rows."""

    num_nodes = 1000

    def num_edges_before(self, row: int, _relation: str) -> int:
        return row * row * 2**34 // self.num_nodes**2


def test_rows_are_cut_by_non_zeros() -> None:
    starts = pattern._cut(Offsets(), [""], 16)  # type: ignore[arg-type]
    assert (starts[0], starts[-1]) == (0, 1000)
    shares = np.diff([Offsets().num_edges_before(row, "") for row in starts.tolist()])
    np.testing.assert_allclose(shares, 2**30, rtol=0.04)


def test_blocks_of_rows() -> None:
    indptr = 2**32 - 10 + np.array([0, 4, 9, 9, 2**32, 2**32 + 3])
    assert list(row_blocks(indptr, 9)) == [(0, 3), (3, 4), (4, 5)]
    np.testing.assert_array_equal(
        row_positions(indptr, np.array([4, 0])),
        [*range(2**33 - 10, 2**33 - 7), *indptr[0] + range(4)],
    )


def test_weights() -> None:
    graph = CSRGraph.from_scipy(hubs(300, 5))
    weights = np.random.default_rng(8).integers(2**30, 2**31, graph.num_nodes)
    found = part_graph(4, graph, vweights=weights, objective="max_send")
    small = part_graph(4, graph, vweights=weights >> 20, objective="max_send")
    assert weights.sum() > 2**38
    for each in (found, small):
        loads = np.bincount(each.part, weights.astype(float), 4)
        assert loads.max() <= 1.0501 * loads.mean()
    assert found.metrics.imbalance <= 0.05
