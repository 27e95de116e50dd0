import numpy as np
import pytest
import torch

from hpcgnn.autograd import DropoutKey, dropout

KEY = DropoutKey(seed=3, step=17, layer=1)


def mask(
    ids: np.ndarray, key: DropoutKey, p: float = 0.4, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    return dropout(torch.ones(len(ids), 31, dtype=dtype), ids, key, p)


def test_mask_follows_the_node() -> None:
    ids = np.arange(200, dtype=np.int64)
    order = np.random.default_rng(8).permutation(200)
    torch.testing.assert_close(mask(ids, KEY)[torch.from_numpy(order)], mask(ids[order], KEY))


def test_float32_draws_the_same_mask() -> None:
    ids = np.arange(50, dtype=np.int64)
    assert torch.equal(mask(ids, KEY) > 0, mask(ids, KEY, dtype=torch.float32) > 0)


@pytest.mark.parametrize(
    "other",
    [DropoutKey(4, 17, 1), DropoutKey(3, 18, 1), DropoutKey(3, 17, 2), DropoutKey(17, 3, 1)],
)
def test_every_field_of_the_key_matters(other: DropoutKey) -> None:
    ids = np.arange(100, dtype=np.int64)
    agreement = ((mask(ids, KEY) > 0) == (mask(ids, other) > 0)).double().mean().item()
    # Independent masks with a keeping probability of 0.6 agree on 0.52 of the values.
    assert 0.45 < agreement < 0.6


def test_share_and_scale() -> None:
    values = mask(np.arange(2000, dtype=np.int64), KEY, p=0.25)
    kept = values[values > 0]
    assert kept.numel() / values.numel() == pytest.approx(0.75, abs=0.01)
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.75))


def test_gradient_uses_the_same_mask() -> None:
    ids = np.arange(40, dtype=np.int64)
    x = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    out = dropout(x, ids, KEY, 0.5)
    out.backward(torch.ones_like(out))
    torch.testing.assert_close(x.grad * x.detach(), out.detach())


def test_evaluation_changes_nothing() -> None:
    x = torch.randn(3, 2)
    assert dropout(x, np.arange(3), None, 0.5) is x
    assert dropout(x, np.arange(3), KEY, 0.0) is x
