import numpy as np
import pytest

from hpcgnn import kernels


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint16"])
@pytest.mark.parametrize("width", [0, 1, 7, 64, 129])
def test_gather_rows(dtype, width, isa):
    rng = np.random.default_rng(41)
    x = rng.integers(0, 60000, (97, width)).astype(dtype)
    for count in (0, 1, 1000):
        rows = rng.integers(0, 97, count).astype(np.int32)
        out = np.zeros((count, width), dtype)
        kernels.gather_rows(x, rows, out, threads=2, isa=isa)
        np.testing.assert_array_equal(out, x[rows])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 7, 64, 129])
def test_scatter_add_rows_is_ordered(dtype, width, isa):
    rng = np.random.default_rng(43)
    src = rng.standard_normal((1001, width)).astype(dtype)
    rows = np.minimum(rng.zipf(1.5, 1001) - 1, 96).astype(np.int32)
    start = rng.standard_normal((97, width)).astype(dtype)
    expected = start.copy()
    np.add.at(expected, rows, src)
    for threads in (1, 2, 3):
        out = start.copy()
        kernels.scatter_add_rows(src, rows, out, threads=threads, isa=isa)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [0, 1, 7, 64, 129])
def test_row_dots(dtype, width, isa):
    rng = np.random.default_rng(44)
    queries, x = (rng.standard_normal((count, width)).astype(dtype) for count in (61, 97))
    for count in (0, 1, 7, 8, 29, 300):
        rows = rng.integers(0, 97, (61, count)).astype(np.int32)
        expected = np.einsum("ew,ekw->ek", queries.astype(float), x[rows].astype(float))
        sizes = np.einsum("ew,ekw->ek", abs(queries), abs(x[rows]))
        once = None
        for threads in (1, 3):
            out = np.full((61, count), np.nan, dtype)
            kernels.row_dots(queries, x, rows, out, threads=threads, isa=isa)
            assert (abs(out - expected) <= 4 * np.finfo(dtype).eps * sizes).all()
            assert once is None or np.array_equal(out, once)
            once = out
        # One of them alone has the same bits.
        alone = np.empty((61, count and 1), dtype)
        kernels.row_dots(queries, x, rows[:, -1:].copy(), alone, isa=isa)
        np.testing.assert_array_equal(alone, out[:, -1:])


@pytest.mark.parametrize("half", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("width", [0, 1, 7, 64, 129])
def test_integer_rows_and_scaled_sums(width, half, isa):
    rng = np.random.default_rng(46)
    x = rng.standard_normal((70, width)).astype(np.float32)
    x[3] = 0
    if half:
        bits = np.empty(x.shape, np.uint16)
        kernels.gather_rows(x, None, bits, half=half)
        kernels.gather_rows(bits, None, x, half=half)
    rows = x if half is None else bits
    rounded, scales = np.full((70, width), 99, np.int8), np.full(70, np.nan, np.float32)
    for threads in (1, 3):
        kernels.integers(rows, rounded, scales, threads=threads, half=half, isa=isa)
    largest = abs(x).max(1, initial=0)
    np.testing.assert_allclose(scales, largest / 127, rtol=1e-6)
    assert (abs(rounded * scales[:, None].astype(float) - x) <= 0.5001 * scales[:, None]).all()
    assert not width or (abs(rounded.astype(int)).max(1)[largest > 0] == 127).all()
    by_column = np.empty_like(rounded), np.empty(width, np.float32)
    for threads in (1, 3):
        kernels.integers(rows, *by_column, by_column=True, threads=threads, half=half, isa=isa)
    # The same as rows of the transpose.
    turned = np.empty((width, 70), np.int8), np.empty(width, np.float32)
    kernels.integers(rows.T.copy(), *turned, half=half, isa=isa)
    np.testing.assert_array_equal(by_column[0], turned[0].T)
    np.testing.assert_array_equal(by_column[1], turned[1])

    sums = rng.integers(-(2**14), 2**14, (70, width)).astype(np.int32)
    columns, bias = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
    expected = sums * scales[:, None].astype(float) * columns + bias + x
    out = rows.copy()
    kernels.scale_sums(sums, scales, columns, out, bias=bias, accumulate=True, half=half, isa=isa)
    if half:
        wide = np.empty(x.shape, np.float32)
        kernels.gather_rows(out, None, wide, half=half)
    sizes = abs(sums * scales[:, None] * columns) + abs(bias) + abs(x)
    near = {None: 1e-6, "bfloat16": 2**-8, "float16": 2**-11}[half]
    assert (abs((out if half is None else wide) - expected) <= 1.01 * near * sizes).all()


def test_integers_refuse_operands_that_do_not_fit():
    x, out = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.int8)
    with pytest.raises(ValueError, match="the shape of x"):
        kernels.integers(x, out[:2], np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="one entry for each row or column"):
        kernels.integers(x, out, np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="float64"):
        kernels.integers(x.astype(float), out, np.zeros(4, np.float32))
    sums, ones = np.zeros((4, 3), np.int32), np.ones(4, np.float32)
    with pytest.raises(ValueError, match="entry a row"):
        kernels.scale_sums(sums, ones[:3], ones[:3], x)
    with pytest.raises(ValueError, match="entry a column"):
        kernels.scale_sums(sums, ones, ones, x)
    with pytest.raises(ValueError, match="entry a column"):
        kernels.scale_sums(sums, ones, ones[:3], x, bias=ones)
    with pytest.raises(ValueError, match="the shape of sums"):
        kernels.scale_sums(sums, ones, ones[:3], x[:2])


def test_row_dots_refuse_operands_that_do_not_fit():
    x, rows, out = np.zeros((4, 3)), np.zeros((2, 5), np.int32), np.zeros((2, 5))
    with pytest.raises(ValueError, match="as many columns as x"):
        kernels.row_dots(x[:2, :2].copy(), x, rows, out)
    with pytest.raises(ValueError, match="a row for each query"):
        kernels.row_dots(x, x, rows, out)
    with pytest.raises(ValueError, match="the shape of rows"):
        kernels.row_dots(x[:2], x, rows, out[:, :4].copy())
    with pytest.raises(TypeError, match="the dtype of x"):
        kernels.row_dots(x[:2].astype(np.float32), x, rows, out)
    with pytest.raises(TypeError, match="float32 or float64"):
        kernels.row_dots(x.astype(np.uint16)[:2], x.astype(np.uint16), rows, out)
    with pytest.raises(ValueError, match="rows"):
        kernels.row_dots(x[:2], x, rows + 4, out)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint16"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (16, 32), (97, 13), (5, 1000), (700, 129)])
def test_transpose_rows(dtype, shape):
    x = np.random.default_rng(45).integers(0, 60000, shape).astype(dtype)
    for threads in (1, 3):
        out = np.zeros(shape[::-1], dtype)
        kernels.transpose_rows(x, out, threads=threads)
        np.testing.assert_array_equal(out, x.T)


def test_transposes_of_other_shapes_and_dtypes_are_refused():
    x = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match="a row for each column"):
        kernels.transpose_rows(x, np.zeros((4, 3), np.float32))
    with pytest.raises(TypeError, match="the dtype of x"):
        kernels.transpose_rows(x, np.zeros((3, 4)))
    with pytest.raises(TypeError, match="int32"):
        kernels.transpose_rows(x.astype(np.int32), np.zeros((3, 4), np.int32))


def test_scatter_is_the_adjoint_of_gather():
    rng = np.random.default_rng(47)
    rows = rng.integers(0, 50, 333).astype(np.int32)
    x, y = rng.standard_normal((50, 13)), rng.standard_normal((333, 13))
    gathered, scattered = np.empty((333, 13)), np.zeros((50, 13))
    kernels.gather_rows(x, rows, gathered)
    kernels.scatter_add_rows(y, rows, scattered)
    assert np.vdot(gathered, y) == pytest.approx(np.vdot(x, scattered), rel=1e-12)


@pytest.mark.parametrize("bad", [50, -1])
def test_rows_out_of_range(bad):
    rows = np.array([0, bad], np.int32)
    x, y = np.zeros((50, 4), np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match=f"rows holds {bad}"):
        kernels.gather_rows(x, rows, y)
    with pytest.raises(ValueError, match=f"rows holds {bad}"):
        kernels.scatter_add_rows(y, rows, x)


def test_shapes_and_dtypes():
    rows = np.zeros(2, np.int32)
    x = np.zeros((5, 4), np.float32)
    with pytest.raises(ValueError, match="out must have as many columns"):
        kernels.gather_rows(x, rows, np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="one row for each gathered row"):
        kernels.gather_rows(x, rows, np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match="src must have one row"):
        kernels.scatter_add_rows(np.zeros((3, 4), np.float32), rows, x)
    with pytest.raises(TypeError, match="dtype"):
        kernels.gather_rows(x, rows, np.zeros((2, 4)))
    with pytest.raises(TypeError, match="half="):
        kernels.gather_rows(x, rows, np.zeros((2, 4), np.uint16))
