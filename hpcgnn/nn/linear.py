"""Linear maps of rows, from which models are built."""

from torch import Tensor, nn

from hpcgnn.autograd import Epilogue, arithmetic, linear_by_type


class Linear(nn.Linear):
    """``X Wᵀ + b`` in the arithmetic of the run, with the weights of `torch.nn.Linear`.

    bfloat16 rows give bfloat16 rows, unless the epilogue is `WIDENED`.
    """

    def forward(self, x: Tensor, epilogue: Epilogue | None = None) -> Tensor:
        """Return (rows, out_features) for rows (rows, in_features), after `epilogue` if given."""
        return arithmetic().linear(x, self.weight, self.bias, epilogue)


class TypedLinear(nn.Module):
    """``X Wᵀ + b`` with the W and b of each row's type."""

    def __init__(self, in_width: int, out_width: int, num_types: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(Linear(in_width, out_width) for _ in range(num_types))

    def forward(self, x: Tensor, types: Tensor | None) -> Tensor:
        """Return (rows, out_width) for rows (rows, in_width) of `types` (rows,), None: all 0."""
        if types is None or len(self.maps) == 1:
            return self.maps[0](x)
        rows = [(types == number).nonzero()[:, 0] for number in range(len(self.maps))]
        weights, biases = zip(*((linear.weight, linear.bias) for linear in self.maps), strict=True)
        return linear_by_type(rows, [x[rows_of] for rows_of in rows], weights, biases)


def xavier_linear(in_width: int, out_width: int) -> Linear:
    """Return a linear map without bias, with Glorot and Bengio's initialisation."""
    linear = Linear(in_width, out_width, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
