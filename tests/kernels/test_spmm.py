import numpy as np
import pytest

from hpcgnn import kernels
from hpcgnn.kernels import SparseMatrix

WIDTHS = [1, 3, 7, 16, 33, 100, 256, 300]
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def assert_close(found, expected, dtype):
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert np.abs(found - expected).max(initial=0) <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [True, False])
def test_spmm_equals_scipy(graph, isa, dtype, weighted):
    values = graph.values.astype(dtype) if weighted else None
    for width in WIDTHS:
        out = np.full((graph.num_rows, width), np.nan, dtype)
        x = graph.dense(width, dtype)
        kernels.spmm(SparseMatrix(graph.indptr, graph.indices, values), x, out, isa=isa)
        assert_close(out, graph.product(width, dtype, weighted), dtype)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_forms(graph, isa, accumulate, mean):
    x = graph.dense(19)
    before = np.random.default_rng(29).standard_normal((graph.num_rows, 19))
    out = before.copy() if accumulate else np.full_like(before, np.nan)
    csr = graph.indptr, graph.indices, graph.values
    kernels.spmm(SparseMatrix(*csr, mean=mean), x, out, accumulate=accumulate, isa=isa)
    expected = graph.product(19)
    if mean:
        expected /= np.maximum(np.diff(graph.indptr), 1)[:, None]
    assert_close(out, expected + before * accumulate, "float64")


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("which", ["rows", "columns", "both"])
def test_factors_of_rows_and_columns(graph, isa, accumulate, which):
    rng, width = np.random.default_rng(41), 37
    num_rows = 2 * graph.num_rows + 1
    rows = rng.permutation(num_rows)[: graph.num_rows].astype(np.int32)
    x, out = graph.dense(width), rng.standard_normal((num_rows, width))
    by_row = rng.uniform(0.5, 2, num_rows) if which != "columns" else None
    by_column = rng.uniform(0.5, 2, len(x)) if which != "rows" else None
    values = (np.ones(num_rows) if by_row is None else by_row)[rows]
    values = np.repeat(values, np.diff(graph.indptr))
    if by_column is not None:
        values *= by_column[graph.indices]
    expected = out.copy()
    pattern = graph.indptr, graph.indices
    kernels.spmm(SparseMatrix(*pattern, values, rows), x, expected, accumulate=accumulate)
    found = SparseMatrix(*pattern, None, rows, row_factors=by_row, column_factors=by_column)
    kernels.spmm(found, x, out, accumulate=accumulate, isa=isa)
    assert_close(out, expected, "float64")


def test_row_subset_leaves_other_rows(graph, isa):
    num_rows = 2 * graph.num_rows + 1
    rng = np.random.default_rng(31)
    rows = rng.permutation(num_rows)[: graph.num_rows].astype(np.int32)
    out = rng.standard_normal((num_rows, 5))
    expected = out.copy()
    expected[rows] = graph.product(5)
    x = graph.dense(5)
    matrix = SparseMatrix(graph.indptr, graph.indices, graph.values, rows)
    kernels.spmm(matrix, x, out, isa=isa)
    assert_close(out, expected, "float64")


@pytest.mark.parametrize("width", [16, 33])
@pytest.mark.parametrize("mean", [False, True])
def test_threads_give_equal_bits(graph, isa, width, mean):
    csr = graph.indptr, graph.indices, graph.values.astype(np.float32)
    x = graph.dense(width, "float32")
    results = []
    for threads in (1, 2, 3):
        out = np.zeros((graph.num_rows, width), np.float32)
        kernels.spmm(SparseMatrix(*csr, mean=mean), x, out, threads=threads, isa=isa)
        results.append(out.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [1, 3, 13, 16])
def test_narrow_products_of_long_rows_have_the_bits_of_wide_ones(isa, width, weighted):
    rng = np.random.default_rng(width)
    # Some of the long rows are empty, and one is longer than a segment.
    counts = rng.choice([0, 1, 30, 200], 300)
    counts[40] = 9000
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    indices = rng.integers(0, 50, indptr[-1]).astype(np.int32)
    values = rng.standard_normal(indptr[-1]).astype(np.float32) if weighted else None
    rows = rng.permutation(400)[:300].astype(np.int32)
    x = rng.standard_normal((50, 80)).astype(np.float32)
    before = rng.standard_normal((400, 80)).astype(np.float32)
    wide, narrow = before.copy(), np.ascontiguousarray(before[:, :width])
    matrix = SparseMatrix(indptr, indices, values, rows)
    kernels.spmm(matrix, x, wide, accumulate=True, isa=isa)
    columns = np.ascontiguousarray(x[:, :width])
    kernels.spmm(matrix, columns, narrow, accumulate=True, threads=3, isa=isa)
    np.testing.assert_array_equal(narrow, wide[:, :width])


def test_many_reads_of_columns_with_factors(isa):
    rng = np.random.default_rng(5)
    indptr = np.arange(0, 3001, 100)
    indices = rng.integers(0, 40, indptr[-1]).astype(np.int32)
    factors = rng.uniform(0.5, 2, 40)
    for dtype in ("float32", "float64"):
        x = rng.standard_normal((40, 37)).astype(dtype)
        found, expected = np.empty((30, 37), dtype), np.empty((30, 37), dtype)
        by_column = factors.astype(dtype)
        pattern = SparseMatrix(indptr, indices, column_factors=by_column)
        kernels.spmm(pattern, x, found, isa=isa)
        kernels.spmm(SparseMatrix(indptr, indices, by_column[indices]), x, expected, isa=isa)
        assert_close(found, expected, dtype)


def test_unaligned_operands(isa):
    indptr, indices = np.array([0, 2, 3], np.int64), np.array([0, 2, 1], np.int32)
    for offset in (1, 3, 7):
        x = np.frombuffer(bytearray(4 * (offset + 3 * 33)), np.float32)[offset:].reshape(3, 33)
        x[:] = np.random.default_rng(37).standard_normal((3, 33))
        out = np.frombuffer(bytearray(4 * (offset + 2 * 33)), np.float32)[offset:].reshape(2, 33)
        kernels.spmm(SparseMatrix(indptr, indices), x, out, isa=isa)
        np.testing.assert_array_equal(out, np.stack([x[0] + x[2], x[1]]))


def test_width_zero():
    out = np.empty((1, 0), np.float32)
    csr = np.array([0, 1], np.int64), np.array([0], np.int32)
    kernels.spmm(SparseMatrix(*csr), np.empty((1, 0), np.float32), out)


MATRIX = {"indptr", "indices", "values", "rows", "row_factors", "column_factors"}
BAD = [
    ({"x": np.zeros((3, 8), np.float32)[:, ::2]}, TypeError, "x must be C-contiguous"),
    ({"x": np.zeros((3, 4), np.int64)}, TypeError, "x must be float32 or float64 or uint16"),
    ({"x": [[0.0]]}, TypeError, "x must be a NumPy array, not list"),
    ({"x": np.zeros(3, np.float32)}, ValueError, "x must have 2 dimensions, not 1"),
    ({"x": np.zeros((3, 5), np.float32)}, ValueError, "same number of columns"),
    ({"x": np.zeros((0, 4), np.float32)}, ValueError, "x must have rows"),
    ({"x": np.zeros((3, 4), np.uint16)}, TypeError, "half="),
    ({"values": np.zeros(3, np.float64)}, TypeError, "values must be float32, not float64"),
    ({"values": np.zeros(2, np.float32)}, ValueError, "values and indices"),
    ({"row_factors": np.zeros(3, np.float32)}, ValueError, "row_factors must have one"),
    ({"column_factors": np.zeros(2, np.float32)}, ValueError, "column_factors must have one"),
    ({"column_factors": np.zeros(3)}, TypeError, "column_factors must be float32, not float64"),
    ({"indptr": np.array([0, 2, 4])}, ValueError, "indptr must end at the number of indices"),
    ({"indptr": np.array([0, 5, 3])}, ValueError, "indptr must not decrease"),
    ({"indptr": np.array([0, -(2**40), 3])}, ValueError, "indptr must not decrease"),
    ({"indptr": np.array([0, 2**62, 3])}, ValueError, "indptr must not decrease"),
    ({"indptr": np.array([1, 2, 3])}, ValueError, "indptr must start at 0"),
    ({"indptr": np.empty(0, np.int64)}, ValueError, "indptr must not be empty"),
    ({"indices": np.zeros(3, np.int64)}, TypeError, "indices must be int32, not int64"),
    ({"out": np.zeros((3, 4), np.float32)}, ValueError, "out must have one row"),
    ({"out": np.zeros((2, 4))}, TypeError, "out must have the dtype of x"),
    ({"rows": np.array([0, 2], np.int32)}, ValueError, r"rows holds 2, outside \[0, 2\)"),
    ({"rows": np.array([-1, 0], np.int32)}, ValueError, "rows holds -1"),
    ({"rows": np.array([0], np.int32)}, ValueError, "rows must have one entry"),
    ({"isa": "mmx"}, ValueError, "isa 'mmx'"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_arguments_are_one_clear_line(change, error, message):
    good = {
        "indptr": np.array([0, 2, 3]),
        "indices": np.array([0, 2, 1], np.int32),
        "values": np.ones(3, np.float32),
        "x": np.zeros((3, 4), np.float32),
        "out": np.zeros((2, 4), np.float32),
    }
    words = good | change
    matrix = SparseMatrix(**{name: words.pop(name) for name in MATRIX & words.keys()})
    with pytest.raises(error, match=message) as caught:
        kernels.spmm(matrix, **words)
    assert "\n" not in str(caught.value)


def test_read_only_output():
    out = np.zeros((1, 1), np.float32)
    out.flags.writeable = False
    csr = np.array([0, 1]), np.array([0], np.int32)
    with pytest.raises(TypeError, match="read-only"):
        kernels.spmm(SparseMatrix(*csr), np.ones((1, 1), np.float32), out)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 2], [0, 3], r"indices holds 3, outside \[0, 3\)"),
        ([0, 1, 2], [-1, 2], "indices holds -1"),
        ([0, 2, 2], [1, 0], "row 0 has columns"),
        ([0, 0, 2], [1, 1], "row 1 has columns"),
        ([0, 3, 2], [1, 1], "must not decrease"),
    ],
)
def test_validate_csr_names_the_fault(indptr, indices, message):
    with pytest.raises(ValueError, match=message):
        kernels.validate_csr(np.array(indptr), np.array(indices, np.int32), 3)


def test_validate_csr_accepts(graph):
    kernels.validate_csr(graph.indptr, graph.indices, graph.num_columns)
    kernels.validate_csr(np.array([0, 2]), np.array([1, 0], np.int32), 2, sorted_columns=False)
