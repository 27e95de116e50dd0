"""Dot products of rows with several others: equal to copies of rows, in value and gradient."""

import numpy as np
import pytest
import torch

from hpcgnn.autograd import pair_products


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_pairs", "count", "width"), [(0, 3, 5), (7, 1, 1), (3000, 9, 33)])
def test_products_equal_those_of_copies(
    dtype: torch.dtype, num_pairs: int, count: int, width: int
) -> None:
    rng = np.random.default_rng(1)
    # Few rows: most repeat.
    numbers = rng.integers(0, 11, (num_pairs, count)).astype(np.int32)
    numbers[:, -1] = 4
    queries, rows = (
        torch.from_numpy(rng.normal(size=(size, width))).to(dtype).requires_grad_()
        for size in (num_pairs, 13)
    )
    weights = torch.from_numpy(rng.normal(size=(num_pairs, count))).to(dtype)
    found = pair_products(queries, rows, numbers)
    expected = (queries[:, None] * rows[torch.from_numpy(numbers).long()]).sum(-1)
    assert found.dtype == dtype
    near = {torch.float32: 2e-6, torch.float64: 1e-14}[dtype]
    torch.testing.assert_close(found, expected, rtol=near, atol=10 * near)
    gradients = [
        torch.autograd.grad((result * weights).sum(), (queries, rows))
        for result in (found, expected)
    ]
    size = max(1.0, (num_pairs * count) ** 0.5)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=near, atol=10 * near * size)
