"""Features of edges become those of a pattern's entries; more features may come later."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.sparse import EdgeEntries, EdgeFeatures, EdgeRows, PatternRows
from hpcgnn.sparse.edge_rows import EdgeTable

NUM_NODES, COPIES = 17, (1, 2, 0.5)


def edges_of(row_map: RowMap) -> tuple[PatternRows, EdgeRows]:
    """Return edges of some rows, with repeats and loops, and their entries with loops."""
    rng = np.random.default_rng(row_map.start)
    count = 5 * row_map.num_local
    targets = np.sort(rng.integers(0, max(row_map.num_local, 1), count))
    sources = rng.integers(0, NUM_NODES, count)
    own = np.arange(row_map.num_local)
    pairs = np.concatenate([targets * NUM_NODES + sources, own * (NUM_NODES + 1) + row_map.start])
    rows, columns = np.divmod(np.unique(pairs), NUM_NODES)
    indptr = np.searchsorted(rows, np.arange(row_map.num_local + 1)).astype(np.int64)
    features = rng.normal(size=(count, 3))
    return PatternRows(indptr, columns, None), EdgeRows(targets, sources, features)


@pytest.mark.parametrize("loops", [True, False])
def test_further_features_are_as_if_they_had_been_there(comm: MPI.Intracomm, loops: bool) -> None:
    with ProcessGrid(comm) as grid:
        # The last rank of several has no rows.
        ends = np.linspace(0, NUM_NODES, max(comm.size - 1, 1) + 1).astype(np.int64)
        row_map = RowMap(np.append(ends, NUM_NODES) if comm.size > 1 else ends, grid.block)
        pattern, edges = edges_of(row_map)
        given = grid, row_map, pattern
        right = EdgeFeatures.of_pattern(*given, edges, mean_loops=loops)
        few = EdgeRows(edges.targets, edges.sources, edges.features[:, :1])
        found = EdgeFeatures.of_pattern(*given, few, mean_loops=loops, moving=True)
        np.testing.assert_array_equal(
            found.with_columns(edges.features[:, 1:]).features, right.features
        )
        # Powers of two, which are added without rounding.
        later = np.concatenate([factor * edges.features[:, 1:] for factor in COPIES])
        wide = found.copies(len(COPIES)).with_columns(later).features
        for factor, copy in zip(COPIES, np.split(wide, len(COPIES)), strict=True):
            np.testing.assert_array_equal(copy, right.features * [1, factor, factor])
        with pytest.raises(AssertionError, match="not declared as moving"):
            right.with_columns(edges.features)


def test_entries_without_edges_have_zeros() -> None:
    found = EdgeEntries.without_edges(4).features(np.ones((7, 2)))
    np.testing.assert_array_equal(found, np.zeros((4, 2)))


def test_entries_bring_all_their_edges() -> None:
    taken = EdgeTable.of_counts(np.array([2, 1, 3]), np.arange(6.0)[:, None]).take(np.array([2, 0]))
    np.testing.assert_array_equal(taken.counts, [3, 2])
    np.testing.assert_array_equal(taken.features.ravel(), [3, 4, 5, 0, 1])
