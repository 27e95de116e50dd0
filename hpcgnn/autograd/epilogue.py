"""The epilogue of a layer: a bias, and between layers a rectifier and dropout, in one pass.

The result alone waits for the backward pass: what is not positive there was rectified or dropped.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd.dropout import DropoutKey
from hpcgnn.autograd.memory import memory_of
from hpcgnn.typing import GlobalIndices


@dataclass(frozen=True, eq=False)
class Epilogue:
    """A rectifier, and `dropout` for what reads the rows next; without a key none is dropped.

    `WIDENED` ends a model instead.
    """

    node_ids: GlobalIndices
    key: DropoutKey | None = None
    p: float = 0.0

    @property
    def drops(self) -> bool:
        """Whether anything is dropped."""
        return self.key is not None and self.p > 0

    @property
    def scale(self) -> float:
        """The factor by which kept elements are scaled."""
        return 1 / (1 - self.p) if self.drops else 1.0


WIDENED = Epilogue(np.empty(0, np.int64))
"""No rectifier and no dropout: rows of 16 bits only have results in float32."""


def apply_epilogue(rows: Tensor, bias: Tensor | None, epilogue: Epilogue | None) -> None:
    """Add the bias (width,), in the dtype of weights, and apply the epilogue, in place.

    Rows (rows, width) are contiguous, without history.
    """
    # Who makes the rows widens them: here it would rectify.
    assert epilogue is not WIDENED
    if bias is None and epilogue is None:
        return
    memory, draw = memory_of(rows), None
    if epilogue is not None and epilogue.key is not None and epilogue.drops:
        draw = epilogue.node_ids, epilogue.key.word(), epilogue.p
    with memory.ordered():
        added = None if bias is None else memory.array(bias.contiguous())
        array, rectify = memory.array(rows), epilogue is not None
        memory.kernels.finish_rows(array, array, bias=added, rectify=rectify, draw=draw)


def column_sums(rows: Tensor) -> Tensor:
    """Return the sum over rows (rows, width, ...) in the dtype of weights, without history."""
    if rows.dtype != torch.bfloat16:
        return rows.sum(0)
    memory, rows = memory_of(rows), rows.contiguous()
    sums = rows.new_empty(rows.shape[1], dtype=torch.float32)
    with memory.ordered():
        memory.kernels.finish_rows_gradient(memory.array(rows), sums=memory.array(sums))
    return sums


def epilogue_gradient(
    gradient: Tensor,
    result: Tensor | None,
    epilogue: Epilogue | None,
    *,
    of_bias: bool,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of rows before `apply_epilogue`, and that of the bias if asked for.

    `gradient` (rows, width) is contiguous, of the result, which is None without `epilogue`. The
    former is in `out`, which may be the result, or in memory of its own.
    """
    if epilogue is None and not of_bias:
        return gradient, None
    memory, kind = memory_of(gradient), gradient.dtype
    found = sums = None
    if epilogue is not None:
        found = memory.empty(gradient, gradient.shape) if out is None else out
    if of_bias:
        wide = torch.float32 if kind == torch.bfloat16 else kind
        sums = gradient.new_empty(gradient.shape[1], dtype=wide)
    with memory.ordered():
        memory.kernels.finish_rows_gradient(
            memory.array(gradient),
            result=None if result is None else memory.array(result),
            scale=1.0 if epilogue is None else epilogue.scale,
            out=None if found is None else memory.array(found),
            sums=None if sums is None else memory.array(sums),
        )
    return gradient if found is None else found, sums
