"""Small multilayer perceptrons on blocks of rows: one native call per pass and block.

Register-tiled dense products of a block run as fast as BLAS on whole matrices. One BLAS call from
Python per product took a quarter of a training step of a network on edges.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.kernels.messages import EdgeEnds, NormSums, RowNorm
from hpcgnn.typing import Array, FloatArray


class MapArrays(NamedTuple):
    """A linear map of concatenated inputs, or its gradients (None where not wanted).

    `matrices` are ``(width, in)``, one for each input, with their columns contiguous in memory;
    `bias` is ``(width,)`` or None, and `width` is the number of columns of the result.
    """

    matrices: Sequence[FloatArray | None]
    bias: FloatArray | None
    width: int


class ChainParameters(NamedTuple):
    """The maps of a chain and its norm; the bias of the norm is the bias of the last map."""

    maps: Sequence[MapArrays]
    norm: RowNorm


class ChainSums(NamedTuple):
    """Accumulators for the gradients of a chain's parameters."""

    maps: Sequence[MapArrays]
    norm: NormSums


class ChainKernel:
    """``x_0 + norm(W_n act(... act(a_i + b_j + Σ_k W_1k x_k + c_1) ...))`` on blocks of rows.

    All arrays are float32, or with `is_wide` all float64. Matrices are copied at the first call of
    each pass. Results do not depend on the number of threads, and the result of a row does not
    depend on its block. Without `totals`, no gradients of parameters are computed. `activation` is
    ``none``, ``relu`` or ``elu``. With `residual`, the gradient of the result is added to the
    gradient of the first input.
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
        # The native chain stores the addresses of these arrays.
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
        """Write the results of the first `len(results)` maps, activated except for the last map.

        `inputs` are ``(num_rows, in)`` each, `results` ``(num_rows, out)`` each. The rows of `ends`
        are added to the result of the first map; None means that the rows are not edges.
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
        """Write the gradients of the inputs; add to the gradients of the ends and the parameters.

        `of_inputs` have the shapes of the inputs; None where they are not wanted. `results` are
        what `forward` wrote, with the last map's result only if there is a norm. `gradient`
        ``(num_rows, out)`` is the gradient of the chain's result.
        """
        _kernels.chain_backward(
            self._chain, len(gradient), inputs, of_inputs, of_ends, results, gradient
        )
