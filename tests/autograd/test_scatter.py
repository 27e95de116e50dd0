import numpy as np
import torch

from hpcgnn.autograd import add_rows


def test_equals_index_add_and_its_gradient() -> None:
    rng = np.random.default_rng(3)
    rows = np.array([4, 0, 4, 2], np.int32)
    out, values = (
        torch.from_numpy(rng.normal(size=(count, 3))).requires_grad_() for count in (5, 4)
    )
    expected = out.index_add(0, torch.from_numpy(rows.astype(np.int64)), values)
    found = add_rows(out, values, rows)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda a, b: add_rows(a, b, rows), (out, values))


def test_no_rows() -> None:
    out = torch.ones(2, 3)
    assert torch.equal(add_rows(out, torch.zeros(0, 3), np.zeros(0, np.int32)), out)
