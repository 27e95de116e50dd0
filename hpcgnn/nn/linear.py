"""The linear map of rows that models are made of."""

from torch import Tensor, nn

from hpcgnn.autograd import arithmetic


class Linear(nn.Linear):
    """``X Wᵀ + b`` in the arithmetic of the run, with the weights of `torch.nn.Linear`.

    bfloat16 rows give bfloat16 rows.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, out_features) for rows (rows, in_features)."""
        return arithmetic().linear(x, self.weight, self.bias)


def xavier_linear(in_width: int, out_width: int) -> Linear:
    """Return a linear map without bias, by Glorot and Bengio's initialisation."""
    linear = Linear(in_width, out_width, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
