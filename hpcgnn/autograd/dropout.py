"""Dropout with masks that depend on the node, not on the rank.

The mask of a value is a function of a key, the node's original id and the column. Results therefore
do not depend on the number of ranks or the partition, a resumed run needs no random state, and a
recomputed forward pass draws the same mask again.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.sparse_features import SparseFeatures
from hpcgnn.kernels import key_of
from hpcgnn.typing import GlobalIndices


class DropoutKey(NamedTuple):
    """Identifies one draw of masks: the seed of the run, the step and the layer.

    `step` is unique among the steps of a seed; it is the epoch if an epoch is one step.
    """

    seed: int
    step: int
    layer: int = 0

    def at(self, layer: int) -> "DropoutKey":
        """Return the key of another layer, or below 0 of a draw outside of layers."""
        return DropoutKey(self.seed, self.step, layer)

    def word(self) -> int:
        """Return 64 well-mixed bits."""
        return key_of(self.seed, self.step, self.layer)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, node_ids: GlobalIndices, word: int, p: float) -> Tensor:
        ctx.arguments = (node_ids, word, p)
        return _masked(x, node_ids, word, p)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # Draw the mask again, which is cheaper than keeping it; the operation is self-adjoint.
        return _masked(gradients[0], *ctx.arguments), None, None, None


def _masked(x: Tensor, node_ids: GlobalIndices, word: int, p: float) -> Tensor:
    memory = memory_of(x)
    out = memory.empty(x, x.shape)
    with memory.ordered():
        rows = memory.array(x.contiguous())
        memory.kernels.dropout_rows(rows, node_ids, word, p, memory.array(out))
    return out


def dropout(x: Tensor, node_ids: GlobalIndices, key: DropoutKey | None, p: float) -> Tensor:
    """Zero each value of (rows, width) with probability `p` in [0, 1), scale the others by 1/(1-p).

    The mask is drawn from `node_ids`, (rows,) int64 original ids, a CuPy array for rows on a GPU.
    Without a key, as in evaluation, `x` is returned unchanged.
    """
    if key is None or p == 0.0:
        return x
    if isinstance(x, SparseFeatures):
        return x.dropped(node_ids, key.word(), p)
    return _Dropout.apply(x, node_ids, key.word(), p)  # type: ignore[no-untyped-call]
