"""Perceptrons with layer normalisation, the parts of networks on meshes."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import cast

from torch import Tensor, nn

from hpcgnn.autograd import Chain, ChainMap, run_chain
from hpcgnn.nn.linear import Linear


class Perceptron(nn.Module):
    """Linear maps between `widths` with activations between them, then a layer norm if `normed`.

    `residual` adds the first input to the result. `keeps` stores the outputs of the maps for the
    backward pass instead of recomputing them.
    """

    keeps = False

    def __init__(
        self, widths: list[int], activation: str, *, normed: bool = True, residual: bool = False
    ) -> None:
        super().__init__()
        self.maps = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))
        self.norm = nn.LayerNorm(widths[-1]) if normed else None
        self.activation, self.residual = activation, residual

    def chain(self, *before: ChainMap, residual: bool, widths: Sequence[int] = ()) -> Chain:
        """Return the perceptron as a chain, after a map or on inputs of `widths` side by side."""
        linear = cast("Iterable[Linear]", self.maps)
        maps = [*before, *(ChainMap(layer.weight, layer.bias) for layer in linear)]
        if widths:
            ends = [0, *accumulate(widths)]
            columns = [slice(*pair) for pair in pairwise(ends)]
            maps[0] = maps[0]._replace(columns=columns)
        return Chain(maps, self.activation, self.norm, residual)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return (rows, last width) for inputs (rows, any width); widths add up to the first."""
        widths = [rows.shape[1] for rows in inputs]
        return run_chain(
            self.chain(residual=self.residual, widths=widths), inputs, keeps=self.keeps
        )
