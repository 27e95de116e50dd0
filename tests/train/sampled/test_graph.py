"""Sums over a graph that ranks share equal those of all entries at once, bit by bit."""

import numpy as np
import pytest

from hpcgnn.sampling import Topology
from hpcgnn.sparse import pieces
from hpcgnn.train.sampled.graph import weight_sums
from tests.support.matrices import ugly_matrix


@pytest.mark.parametrize("piece", [1, 10, 10**6])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_by_pieces(monkeypatch: pytest.MonkeyPatch, piece: int, weighted: bool) -> None:
    monkeypatch.setattr(pieces, "PIECE", piece)
    matrix = ugly_matrix(43, 5, weighted=weighted).tocsr()
    matrix.sort_indices()
    edges = Topology(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
    weights = matrix.data.astype(np.float32) if weighted else None
    rows, columns = weight_sums(edges, weights)
    np.testing.assert_array_equal(rows, np.bincount(edges.entry_rows(), weights, 43))
    np.testing.assert_array_equal(columns, np.bincount(edges.indices, weights, 43))
