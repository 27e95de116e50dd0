"""The linear map of rows that models are made of."""

from torch import Tensor, nn

from hpcgnn.autograd import arithmetic


class Linear(nn.Linear):
    """``X Wᵀ + b`` in the arithmetic of the run, with the weights of `torch.nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, out_features) for rows (rows, in_features)."""
        return arithmetic().linear(x, self.weight, self.bias)
