import numpy as np
import pytest

from hpcgnn.partition import initial


def test_the_price_of_parts_is_the_busiest_cut_and_half_of_the_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A star of nodes 1, 2, 3 around node 0; the part of node 0 cuts 5 + 7.
    indptr = np.array([0, 3, 4, 5, 6])
    columns = np.array([1, 2, 3, 0, 0, 0], np.int32)
    edges = np.array([3, 5, 7, 3, 5, 7], np.int32)
    monkeypatch.setattr(initial, "weighted_metis", lambda *_: np.array([0, 0, 1, 2], np.int32))
    price, part = initial._best_of((indptr, columns, edges, np.ones(4, np.int64)), 3, 0, 0.05)
    assert price == 12 + (12 + 5 + 7) / 3 / 2
    assert part.tolist() == [0, 0, 1, 2]
