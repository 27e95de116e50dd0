import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn import kernels
from hpcgnn.comm import RowMap
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.sparse.matrix import positions_of
from tests.support.matrices import block_row, ugly_matrix, uneven_starts


def to_dense(part: LocalCSR) -> np.ndarray:
    dense = np.zeros(part.shape)
    values = np.ones(part.nnz) if part.values is None else part.values
    dense[part.entry_rows(), part.indices] = values
    return dense


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10**6))
def test_split_reassembles(num_nodes: int, num_blocks: int, seed: int) -> None:
    matrix = ugly_matrix(num_nodes, seed)
    starts = uneven_starts(num_nodes, num_blocks, seed)
    for block in range(num_blocks):
        row_map = RowMap(starts, block)
        part = block_row(matrix, row_map)
        rebuilt = np.zeros((row_map.num_local, num_nodes))
        rebuilt[:, row_map.start : row_map.stop] = to_dense(part.diagonal)
        rebuilt[:, part.ghosts] += to_dense(part.remote)
        expected = matrix[row_map.start : row_map.stop].toarray()
        np.testing.assert_array_equal(rebuilt, expected)
        assert not np.any(row_map.is_local(part.ghosts))
        remote = (expected != 0) & ~row_map.is_local(np.arange(num_nodes))
        assert part.num_boundary == remote.any(axis=1).sum()
        assert part.nnz == (expected != 0).sum()


@given(st.integers(1, 30), st.integers(0, 10**6), st.booleans())
def test_products_and_transposes(num_nodes: int, seed: int, accumulate: bool) -> None:
    matrix = ugly_matrix(num_nodes, seed)
    part = block_row(matrix, RowMap(uneven_starts(num_nodes, 3, seed), 1)).remote
    dense = to_dense(part)
    rng = np.random.default_rng(seed)
    for operand, expected in ((part, dense), (part.transposed, dense.T)):
        assert operand.shape == expected.shape
        x = rng.normal(size=(expected.shape[1], 3))
        out = rng.normal(size=(expected.shape[0], 3))
        wanted = expected @ x + (out if accumulate else 0)
        operand.matmul(x, out, accumulate=accumulate)
        np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12)


@given(st.integers(1, 20), st.integers(0, 10**6), st.booleans())
def test_relations_of_a_node_share_a_row(num_nodes: int, seed: int, restricted: bool) -> None:
    relations = [ugly_matrix(num_nodes, seed + number) for number in range(3)]
    row_map = RowMap(uneven_starts(num_nodes, 3, seed), 1)
    own = slice(row_map.start, row_map.stop)
    tall = sp.vstack([each[own] for each in relations]).tocsr()
    matrix = DistCSR.from_rows(row_map, tall.indptr.astype(np.int64), tall.indices, None, 3)
    everywhere = np.ones(num_nodes, np.bool_)[own]
    if restricted:
        # As if rows without entries were left out.
        occupied = np.flatnonzero(np.diff(tall.indptr)).astype(np.int32)
        parts = (
            part.select(
                np.arange(part.shape[1], dtype=np.int32),
                part.shape[1],
                rows=positions_of(occupied, tall.shape[0]),
                num_rows=len(occupied),
            )
            for part in (matrix.diagonal, matrix.remote)
        )
        matrix = DistCSR(row_map, *parts, matrix.ghosts, occupied, num_relations=3)
        everywhere = np.diff(sum(relations)[own].indptr) > 0
    joined = matrix.by_node()
    expected = sum(relations)[own].toarray()[everywhere] != 0
    found = np.zeros((len(expected), num_nodes))
    found[:, own] = to_dense(joined.diagonal)
    found[:, joined.ghosts] += to_dense(joined.remote)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(joined.row_nodes, np.flatnonzero(everywhere))
    assert joined.num_relations == 1


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("valued", [False, True])
def test_select_keeps_and_renumbers(marked: bool, valued: bool) -> None:
    matrix = ugly_matrix(20, 9)
    part = block_row(matrix, RowMap(np.array([0, 20], np.int64), 0)).diagonal
    if not valued:
        part = part.with_values(None)
    rows, columns = np.array([1, 3, 8, 19]), np.array([4, 2, 11])
    new_rows, new_columns = np.full((2, 20), -1, np.int32)
    new_rows[rows], new_columns[columns] = np.arange(4), np.arange(3)
    kept = np.random.default_rng(3).random(part.nnz) < 0.5 if marked else None
    chosen = part.select(new_columns, 3, kept=kept, rows=new_rows, num_rows=4)
    values = np.ones(part.nnz) if part.values is None else part.values
    values = values if kept is None else values * kept
    np.testing.assert_array_equal(
        to_dense(chosen), to_dense(part.with_values(values))[rows][:, columns]
    )


def test_marks_count_entries_of_chosen_rows() -> None:
    matrix = ugly_matrix(20, 9)
    part = block_row(matrix, RowMap(np.array([0, 7, 20], np.int64), 1)).remote
    rows = np.arange(13) % 2 == 0
    expected = (to_dense(part.with_values(None))[rows] != 0).sum(axis=0)
    np.testing.assert_array_equal(part.marks(rows)[:, 0], expected)


def test_select_refuses_what_does_not_fit() -> None:
    indptr, indices = np.array([0, 2, 3], np.int64), np.array([0, 4, 1], np.int32)
    with pytest.raises(ValueError, match="indices holds 4"):
        kernels.select_csr(indptr, indices, None, np.zeros(4, np.int32))
    columns = np.zeros(5, np.int32)
    with pytest.raises(ValueError, match="one flag for each row"):
        kernels.select_csr(indptr, indices, None, columns, rows=np.ones(3, np.bool_))
    with pytest.raises(ValueError, match="one flag for each entry"):
        kernels.select_csr(indptr, indices, None, columns, entries=np.ones(2, np.bool_))
    with pytest.raises(ValueError, match="same length"):
        kernels.select_csr(indptr, indices, np.ones(2), columns)


@pytest.mark.parametrize(
    ("indptr", "columns", "message"), [([0, 1], [0], "offsets"), ([0, 0, 1], [2], "columns")]
)
def test_bad_rows(indptr: list[int], columns: list[int], message: str) -> None:
    row_map = RowMap(np.array([0, 2], np.int64), 0)
    with pytest.raises(ValueError, match=message):
        DistCSR.from_rows(row_map, np.array(indptr, np.int64), np.array(columns, np.int64))


def test_no_entries() -> None:
    row_map = RowMap(np.array([0, 2, 4], np.int64), 1)
    part = block_row(sp.csr_matrix((4, 4)), row_map)
    out = np.full((2, 1), 7.0)
    part.diagonal.matmul(np.ones((2, 1)), out)
    assert (out == 0).all()
    assert (part.nnz, len(part.ghosts)) == (0, 0)
