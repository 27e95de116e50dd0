import numpy as np
import pytest
import torch

from hpcgnn.autograd import linear_by_type


@pytest.mark.parametrize("needing", [(), (0,), (1,), (0, 1, 2)])
def test_each_node_has_the_map_of_its_type(needing: tuple[int, ...]) -> None:
    """Gradients, in float64, of those parts that need one; a type may lack nodes or features."""
    torch.manual_seed(2)
    order = torch.from_numpy(np.random.default_rng(2).permutation(9))
    rows, widths = (order[:5], order[5:9], order[9:]), (3, 0, 2)
    shapes = [(len(where), width) for where, width in zip(rows, widths, strict=True)]
    parts = [
        torch.randn(shape).double().requires_grad_(i in needing) for i, shape in enumerate(shapes)
    ]
    weights = [torch.randn(4, width).double().requires_grad_() for width in widths]
    biases = [torch.randn(4).double().requires_grad_() for _ in widths]
    out = linear_by_type(rows, parts, weights, biases)
    for where, part, weight, bias in zip(rows, parts, weights, biases, strict=True):
        torch.testing.assert_close(out[where], part @ weight.t() + bias)

    def mapped(*tensors: torch.Tensor) -> torch.Tensor:
        return linear_by_type(rows, tensors[:3], tensors[3:6], tensors[6:])

    assert torch.autograd.gradcheck(mapped, (*parts, *weights, *biases))
    out.sum().backward()
    assert [part.grad is not None for part in parts] == [i in needing for i in range(3)]
