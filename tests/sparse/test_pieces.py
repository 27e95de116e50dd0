"""Pieces of long arrays: results do not depend on their size."""

from itertools import pairwise

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.sparse import DistCSR, pieces, scale
from hpcgnn.sparse.matrix import _number_ghosts
from tests.support.matrices import ugly_matrix, uneven_starts


@pytest.mark.parametrize("most", [1, 4, 1000])
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 9, 0, 1, 3, 0], [2, 2, 2]])
def test_rows_are_walked_once(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], most: int
) -> None:
    monkeypatch.setattr(pieces, "PIECE", most)
    offsets = 5 + np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    found = list(pieces.row_pieces(offsets))
    assert [row for each in found for row in range(len(lengths))[each]] == [*range(len(lengths))]
    for each in found:
        rows = each.stop - each.start
        assert rows >= 1
        assert offsets[each.stop] - offsets[each.start] <= most or rows == 1
    assert [range(7)[each] for each in pieces.pieces_of(0)] == []


@pytest.mark.parametrize("weighted", [False, True])
def test_matrices_are_equal_bits(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, weighted: bool
) -> None:
    whole = ugly_matrix(61, 7, weighted=weighted).tocsr()
    row_map = RowMap(uneven_starts(61, comm.size, 5), comm.rank)
    mine = whole[row_map.start : row_map.stop]
    values = mine.data.astype(np.float32) if weighted else None

    def made(piece: int, columns: np.dtype[np.integer]) -> list[np.ndarray | None]:
        monkeypatch.setattr(pieces, "PIECE", piece)
        indptr = mine.indptr.astype(np.int64)
        matrix = DistCSR.from_rows(row_map, indptr, mine.indices.astype(columns), values)
        with ProcessGrid(comm) as grid:
            plan = CommPlan.from_ghosts(grid, row_map, matrix.ghosts)
            scaled = [scale(matrix, powers, np.float32, plan) for powers in ((0.5, 0.5), (1, 0))]
        parts = [part for each in (matrix, *scaled) for part in (each.diagonal, each.remote)]
        arrays = [each for part in parts for each in (part.indptr, part.indices, part.entries())]
        return [*arrays, matrix.ghosts]

    runs = [made(piece, np.dtype(kind)) for piece in (3, 10**6) for kind in (np.int32, np.int64)]
    for one, other in pairwise(runs):
        for mine_of, its in zip(one, other, strict=True):
            assert (mine_of is None) == (its is None)
            if mine_of is not None and its is not None:
                assert mine_of.dtype == its.dtype
                np.testing.assert_array_equal(mine_of, its)


@pytest.mark.parametrize("num_rows", [40, 4000])
def test_ghosts_are_numbered_in_order(num_rows: int) -> None:
    columns = np.random.default_rng(3).integers(0, num_rows, 60)
    row_map = RowMap(np.array([0, num_rows]), 0)
    for kind in (np.int32, np.int64):
        ghosts, numbers = _number_ghosts(row_map, columns.astype(kind))
        assert ghosts.dtype == np.int64
        np.testing.assert_array_equal(ghosts, np.unique(columns))
        np.testing.assert_array_equal(ghosts[numbers], columns)
