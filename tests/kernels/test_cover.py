import dataclasses
import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import maximum_bipartite_matching

from hpcgnn import kernels

EXACT = 1 << 40


def as_arguments(matrix, column_starts):
    rows = scipy.sparse.csr_matrix(matrix)
    rows.sum_duplicates()
    starts = np.asarray(column_starts, np.int64)
    return rows.indptr.astype(np.int64), rows.indices.astype(np.int32), starts


def optimum(block):
    if 0 in block.shape or block.nnz == 0:
        return 0
    return int((maximum_bipartite_matching(block, perm_type="column") >= 0).sum())


def check_cover(matrix, column_starts, limit=EXACT, threads=0):
    """Check a cover by brute force, entry by entry, and its size against SciPy's matching."""
    matrix = scipy.sparse.csr_matrix(matrix)
    indptr, columns, starts = as_arguments(matrix, column_starts)
    found = kernels.vertex_cover(indptr, columns, starts, limit=limit, threads=threads)
    row_of_entry = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    for q, (first, last) in enumerate(itertools.pairwise(starts)):
        fetched = {c for c in range(first, last) if found.fetched[c]}
        mine = [e for e in range(columns.size) if first <= columns[e] < last]
        pushed = {row_of_entry[e] for e in mine if found.pushed[e]}
        used = {columns[e] for e in mine}
        for e in mine:
            assert (columns[e] in fetched) != bool(found.pushed[e])
            assert columns[e] in fetched or row_of_entry[e] in pushed
        best = optimum(matrix[:, first:last])
        size = len(fetched) + len(pushed)
        assert (found.fetched_rows[q], found.pushed_rows[q]) == (len(fetched), len(pushed))
        assert fetched <= used
        assert size <= len(used)
        assert size < len(used) or not pushed
        assert best / 2 <= found.lower_bound[q] <= best <= size
        if limit == EXACT:
            assert size == best == found.lower_bound[q]
    return found


def star(rows, columns):
    return np.ones((rows, columns), np.int8)


def path(length):
    return np.eye(length + 1, length, dtype=np.int8) + np.eye(length + 1, length, -1, np.int8)


UGLY = {
    "no rows": (np.zeros((0, 5)), [0, 2, 5]),
    "no columns": (np.zeros((4, 0)), [0, 0, 0]),
    "no peers": (np.zeros((4, 0)), [0]),
    "no entries": (np.zeros((3, 7)), [0, 0, 4, 4, 7]),
    "one": (np.ones((1, 1)), [0, 0, 1, 1]),
    "row star": (star(1, 33), [0, 33]),
    "column star": (star(33, 1), [0, 1]),
    "wide": (star(5, 11), [0, 11]),
    "tall": (star(11, 5), [0, 5]),
    "square": (star(7, 7), [0, 7]),
    "split": (star(7, 12), [0, 3, 3, 12]),
    "path": (path(51), [0, 51]),
    "reversed path": (path(51).T, [0, 52]),
    "two stars": (scipy.sparse.block_diag([star(1, 9), star(9, 1)]), [0, 10]),
}


@pytest.mark.parametrize("limit", [EXACT, 0])
@pytest.mark.parametrize("name", list(UGLY))
def test_cover_of_ugly_blocks(name, limit):
    check_cover(*UGLY[name], limit=limit)


def test_cover_pushes_a_star_of_columns_and_fetches_a_square():
    found = check_cover(*UGLY["row star"])
    assert (found.fetched_rows[0], found.pushed_rows[0]) == (0, 1)
    for name in ("column star", "square", "path"):
        assert not check_cover(*UGLY[name]).pushed.any()


@pytest.mark.parametrize("limit", [EXACT, 0])
@pytest.mark.parametrize("degree", [0.7, 2.0, 3.5, 9.0])
def test_cover_of_random_blocks_equals_scipy_and_ignores_threads(degree, limit):
    rng = np.random.default_rng(577)
    m, n = 331, 701
    matrix = scipy.sparse.random(m, n, degree / m, "csr", rng=rng)
    starts = np.sort(np.concatenate([[0, n], rng.integers(0, n, 4)]))
    expected = dataclasses.asdict(check_cover(matrix, starts, limit, threads=1))
    for threads in (2, 5):
        arguments = as_arguments(matrix, starts)
        found = kernels.vertex_cover(*arguments, limit=limit, threads=threads)
        for name, array in dataclasses.asdict(found).items():
            np.testing.assert_array_equal(array, expected[name])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_cover_of_any_blocks(data):
    widths = data.draw(st.lists(st.integers(0, 6), max_size=4))
    starts = np.concatenate([[0], np.cumsum(widths)]).astype(int)
    m, n = data.draw(st.integers(0, 8)), int(starts[-1])
    cells = st.tuples(st.integers(0, max(m - 1, 0)), st.integers(0, max(n - 1, 0)))
    entries = data.draw(st.lists(cells, max_size=m * n)) if m * n else []
    matrix = np.zeros((m, n))
    for row, column in entries:
        matrix[row, column] = 1
    check_cover(matrix, starts, data.draw(st.sampled_from([EXACT, 0, 7])))


def test_large_cover_is_close_to_its_bound():
    rng = np.random.default_rng(31)
    n = 20_011
    matrix = scipy.sparse.csr_matrix(
        (np.ones(3 * n), (rng.integers(0, n, 3 * n), rng.integers(0, n, 3 * n))), shape=(n, n)
    )
    arguments = as_arguments(matrix, [0, n])
    exact = kernels.vertex_cover(*arguments, limit=EXACT)
    cheap = kernels.vertex_cover(*arguments, limit=0)
    best = exact.lower_bound[0]
    assert best == optimum(matrix)
    assert 0.97 * best < cheap.lower_bound[0] <= best
    assert best <= cheap.fetched_rows[0] + cheap.pushed_rows[0] < 1.01 * best


def offsets(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("indptr", "columns", "starts", "message"),
    [
        (offsets(), [], offsets(0), "indptr must not be empty"),
        (offsets(1, 1), [0], offsets(0, 1), "indptr must start at 0"),
        (offsets(0, 2, 1), [0], offsets(0, 1), "indptr must not decrease"),
        (offsets(0, 2), [0], offsets(0, 1), "indptr ends at 2"),
        (offsets(0, 1), [1], offsets(0, 1), "columns holds 1"),
        (offsets(0, 1), [-1], offsets(0, 1), "columns holds -1"),
        (offsets(0), [], offsets(), "column_starts must not be empty"),
        (offsets(0), [], offsets(1, 2), "column_starts must start at 0"),
        (offsets(0), [], offsets(0, 2, 1), "column_starts must not decrease"),
        (offsets(0, 0), [], offsets(0, 2**31 - 1), "fewer than 2\\^31"),
        (offsets(0), [], offsets(0, 2**40), "fewer than 2\\^31"),
    ],
)
def test_broken_blocks_are_refused(indptr, columns, starts, message):
    with pytest.raises(ValueError, match=message):
        kernels.vertex_cover(indptr, np.array(columns, np.int32), starts)


def test_other_arrays_are_refused():
    indptr, columns, starts = offsets(0, 1), np.zeros(1, np.int32), offsets(0, 1)
    with pytest.raises(TypeError, match="columns must be int32"):
        kernels.vertex_cover(indptr, columns.astype(np.int64), starts)
    with pytest.raises(TypeError, match="column_starts must be int64"):
        kernels.vertex_cover(indptr, columns, starts.astype(np.int32))
    with pytest.raises(ValueError, match="indptr must have 1 dimensions"):
        kernels.vertex_cover(indptr[None], columns, starts)
