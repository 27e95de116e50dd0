"""Linear maps of a block of rows and what stands between them: one call forward, one backward.

Dense products of a block are tiles of registers, at the rate of a BLAS for whole matrices. Calls of
a library from Python, one for each product, took a quarter of a step of a network on edges.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.kernels.messages import EdgeEnds, NormSums, RowNorm
from hpcgnn.typing import Array, FloatArray


class MapArrays(NamedTuple):
    """A map of inputs side by side, or its gradients: None where they are not wanted.

    `matrices` are ``(width, in)``, one of each input, whose columns lie side by side in memory;
    `bias` is ``(width,)``, or None, and `width` the columns of the result.
    """

    matrices: Sequence[FloatArray | None]
    bias: FloatArray | None
    width: int


class ChainParameters(NamedTuple):
    """The maps of a chain and its norm, whose bias is that of the last map."""

    maps: Sequence[MapArrays]
    norm: RowNorm


class ChainSums(NamedTuple):
    """Gradients of a chain's parameters, which are added to."""

    maps: Sequence[MapArrays]
    norm: NormSums


class ChainKernel:
    """``x_0 + norm(W_n act(... act(a_i + b_j + Σ_k W_1k x_k + c_1) ...))`` on blocks of rows.

    All arrays are float32, or all float64. Matrices are copied at the first call of each pass.
    Results do not depend on the number of threads, and those of a row not on its block. Without
    `totals`, gradients of parameters are not wanted. `activation` is ``none``, ``relu`` or ``elu``.
    `residual`: the gradient of the first input has that of the result added. `is_wide`: the arrays
    are float64.
    """

    def __init__(
        self,
        parameters: ChainParameters,
        totals: ChainSums | None,
        *,
        activation: str,
        residual: bool,
        is_wide: bool,
        **run: Unpack[Run],
    ) -> None:
        norm = parameters.norm
        sums = NormSums() if totals is None else totals.norm
        # The chain has addresses of them.
        self._held = parameters, totals
        self._chain = _kernels.make_chain(
            parameters.maps,
            norm.scale,
            norm.shift,
            norm.eps,
            None if totals is None else totals.maps,
            sums.scale,
            sums.shift,
            residual,
            activation,
            is_wide,
            *execution(**run),
        )

    def forward(
        self, num_rows: int, inputs: Sequence[Array], ends: EdgeEnds | None, results: Sequence[Any]
    ) -> None:
        """Write what the first maps give, activated but for the last one of the chain.

        `inputs` are ``(num_rows, in)`` each, `results` ``(num_rows, out)`` each, of as many maps as
        are wanted. `ends` are added to the first map; None: the rows are no edges.
        """
        _kernels.chain_forward(self._chain, num_rows, inputs, ends, results)

    def backward(
        self,
        inputs: Sequence[Array],
        of_inputs: Sequence[Array | None],
        of_ends: EdgeEnds | None,
        results: Sequence[Array],
        gradient: Array,
    ) -> None:
        """Write gradients of the inputs, and add those of the ends and the parameters.

        `of_inputs` have the shapes of the inputs; None where they are not wanted. `results` are
        what `forward` wrote; that of the last map only if there is a norm. `gradient` is
        ``(num_rows, out)``, of the chain's result.
        """
        _kernels.chain_backward(
            self._chain, len(gradient), inputs, of_inputs, of_ends, results, gradient
        )
