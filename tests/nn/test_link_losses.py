import torch
from torch.nn import functional

from hpcgnn.nn import LINK_LOSSES


def test_cross_entropy_is_torchs_with_the_edge_in_front() -> None:
    scores = torch.randn(7, dtype=torch.float64)
    wrong = torch.randn(7, 3, dtype=torch.float64)
    every, first = torch.cat([scores[:, None], wrong], 1), torch.zeros(7, dtype=torch.int64)
    expected = functional.cross_entropy(every, first, reduction="sum")
    torch.testing.assert_close(LINK_LOSSES["cross_entropy"](scores, wrong, 1.0), expected)
    nobody = LINK_LOSSES["cross_entropy"](scores[:0], wrong[:0], 1.0)
    assert nobody == 0
