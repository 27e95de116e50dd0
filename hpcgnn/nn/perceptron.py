"""Perceptrons with layer normalisation, as networks on meshes are made of."""

from itertools import pairwise

from torch import Tensor, nn

from hpcgnn.nn.layered import ACTIVATION_FUNCTIONS
from hpcgnn.nn.linear import Linear


class Perceptron(nn.Module):
    """Linear maps between `widths`, activations between them, at the end a layer norm if `normed`.

    With `after_map` its input is what another map gave, which the activation then follows.
    """

    def __init__(
        self, widths: list[int], activation: str, *, normed: bool = True, after_map: bool = False
    ) -> None:
        super().__init__()
        self.maps = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))
        self.norm = nn.LayerNorm(widths[-1]) if normed else nn.Identity()
        self.activate, self.after_map = ACTIVATION_FUNCTIONS[activation], after_map

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, last width) for `x` (rows, first width)."""
        for number, linear in enumerate(self.maps):
            x = linear(self.activate(x) if number or self.after_map else x)
        normed: Tensor = self.norm(x)
        return normed
