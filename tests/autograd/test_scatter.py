import numpy as np
import torch

from hpcgnn.autograd import add_rows


def test_equals_index_add_and_its_gradient() -> None:
    rng = np.random.default_rng(3)
    rows = [np.array(each, np.int32) for each in ([4, 0, 4, 2], [], [2, 1])]
    out, *parts = (
        torch.from_numpy(rng.normal(size=(count, 3))).requires_grad_() for count in (5, 4, 0, 2)
    )
    expected = out
    for each, part in zip(rows, parts, strict=True):
        expected = expected.index_add(0, torch.from_numpy(each.astype(np.int64)), part)
    torch.testing.assert_close(add_rows(out, parts, rows), expected)
    # Numerical gradients want no empty parts.
    some, where = parts[::2], rows[::2]
    assert torch.autograd.gradcheck(lambda a, *b: add_rows(a, b, where), (out, *some))


def test_no_rows() -> None:
    out = torch.ones(2, 3)
    assert torch.equal(add_rows(out, [torch.zeros(0, 3)], [np.zeros(0, np.int32)]), out)
    assert torch.equal(add_rows(out, [], []), out)
