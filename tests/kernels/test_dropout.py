import numpy as np
import pytest

from hpcgnn import kernels

KEY = 0xFEDCBA9876543210


def dropped(shape=(300, 101), p=0.3, key=KEY, first_row=0, dtype="float64", threads=0):
    row_ids = np.arange(first_row, first_row + shape[0])
    x = np.ones(shape, dtype)
    out = np.full(shape, np.nan, dtype)
    kernels.dropout_rows(x, row_ids, key, p, out, threads=threads)
    return out


def test_values_are_zero_or_scaled():
    out = dropped(p=0.25)
    assert set(np.unique(out)) == {0.0, 1 / 0.75}


def test_same_mask_in_both_precisions_and_any_threads():
    masks = [dropped(dtype=d, threads=t) > 0 for d in ("float32", "float64") for t in (1, 2, 3)]
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0])


def test_mask_follows_the_row_name():
    whole = dropped()
    np.testing.assert_array_equal(dropped((100, 101), first_row=57), whole[57:157])
    np.testing.assert_array_equal(dropped((300, 64)), whole[:, :64])


def test_extremes():
    x = np.random.default_rng(53).standard_normal((50, 33))
    out = np.empty_like(x)
    kernels.dropout_rows(x, np.arange(50), KEY, 0.0, out)
    np.testing.assert_array_equal(out, x)
    kernels.dropout_rows(x, np.arange(50), KEY, 1.0, out)
    np.testing.assert_array_equal(out, np.zeros_like(x))
    nearly = dropped((2000, 1000), p=1 - 1e-4)
    assert abs(np.count_nonzero(nearly) - 200) < 5 * np.sqrt(200)
    assert np.isfinite(nearly).all()


def test_in_place():
    x = np.random.default_rng(59).standard_normal((40, 21))
    out = np.empty_like(x)
    kernels.dropout_rows(x, np.arange(40), KEY, 0.5, out)
    kernels.dropout_rows(x, np.arange(40), KEY, 0.5, x)
    np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_rates_by_row_column_and_total(p):
    shape = (2000, 400)
    kept = dropped(shape, p=p) > 0
    for axis in (0, 1, None):
        count = kept.sum(axis=axis)
        trials = kept.size / np.size(count)
        z = (count - trials * (1 - p)) / np.sqrt(trials * p * (1 - p))
        assert np.abs(z).max() < 5.5


def test_neighbours_are_independent():
    p, shape = 0.5, (1500, 301)
    base = np.where(dropped(shape, p=p) > 0, 1.0, -1.0)
    others = [
        np.where(dropped(shape, p=p, key=KEY + 1) > 0, 1.0, -1.0),
        np.where(dropped(shape, p=p, key=KEY ^ (1 << 40)) > 0, 1.0, -1.0),
        np.roll(base, 1, axis=0),
        np.roll(base, 1, axis=1),
        np.roll(base, 2, axis=1),
        np.where(dropped(shape, p=p, first_row=1 << 33) > 0, 1.0, -1.0),
    ]
    for other in others:
        assert abs(np.vdot(base, other)) / np.sqrt(base.size) < 5


def test_bad_arguments():
    x, ids = np.ones((3, 4)), np.arange(3)
    for p in (-0.1, 1.5, np.nan):
        with pytest.raises(ValueError, match=r"p must be in \[0, 1\]"):
            kernels.dropout_rows(x, ids, KEY, p, x)
    for key in (-1, 1 << 64):
        with pytest.raises(ValueError, match="key must be"):
            kernels.dropout_rows(x, ids, key, 0.5, x)
    with pytest.raises(ValueError, match="row_ids"):
        kernels.dropout_rows(x, ids[:2], KEY, 0.5, x)
    with pytest.raises(TypeError, match="out must be float64"):
        kernels.dropout_rows(x, ids, KEY, 0.5, x.astype(np.float32))
