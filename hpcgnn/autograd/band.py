"""Products with the dense blocks of a band, and their adjoint, in torch, so that they run on GPUs.

``torch.bmm`` replaces the three batched products of `hpcgnn.banded.BandedOperator`. In bfloat16
the blocks, which are counts of edges, are exact; operands and results are rounded.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.banded import BandedOperator, Slice
from hpcgnn.typing import FloatArray

BAND_PRECISIONS = ("native", "tf32", "bfloat16")
"""The precisions of products: the training dtype, tf32 on tensor cores, or bfloat16."""


class TorchBand:
    """The blocks of a `BandedOperator` and its slices of supernodes, as tensors.

    `precision` is one of `BAND_PRECISIONS`.
    """

    def __init__(self, operator: BandedOperator, precision: str, device: torch.device) -> None:
        self._precision = precision
        self._num_pairs, self._num_nodes = operator.shape
        blocks = operator.blocks
        put = partial(_put, device=device, narrow=precision == "bfloat16")
        self._centre, self._upper, self._lower = map(
            put, (blocks.centre, blocks.upper, blocks.lower)
        )
        parts: list[Slice] = [] if operator.slices is None else operator.slices.parts
        self._slices = [(part, put(part.columns), put(part.rows)) for part in parts]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the sums (n P, H) of the rows of `x` (n, H); differentiable."""
        return _Band.apply(x, self)  # type: ignore[no-untyped-call]

    def apply(self, x: Tensor) -> Tensor:
        """Return the sums (n P, H) of messages by edge type, see `BandedOperator.apply`."""
        blocks = self._centre, self._upper, self._lower
        sums = self._multiply(x, blocks, self._num_pairs)
        with _tensor_cores(self._precision):
            for part, columns, rows in self._slices:
                sources, targets = x[part.nodes].to(rows.dtype), sums[part.pairs]
                targets += columns @ sources[: columns.shape[1]]
                targets[: len(rows)] += rows @ sources
        return sums

    def apply_transpose(self, gradient: Tensor) -> Tensor:
        """Return the adjoint (n, H) of `apply` on `gradient` (n P, H)."""
        bands = (self._centre, self._lower, self._upper)
        sums = self._multiply(gradient, tuple(b.transpose(1, 2) for b in bands), self._num_nodes)
        with _tensor_cores(self._precision):
            for part, columns, rows in self._slices:
                targets, sources = gradient[part.pairs].to(rows.dtype), sums[part.nodes]
                sources[: columns.shape[1]] += columns.t() @ targets
                sources += rows.t() @ targets[: len(rows)]
        return sums

    def _multiply(self, rows: Tensor, blocks: tuple[Tensor, ...], num_results: int) -> Tensor:
        """Return ``centre[k] rows[k] + upper[k] rows[k + 1] + lower[k - 1] rows[k - 1]``."""
        centre, upper, lower = blocks
        count, _, size = centre.shape
        padded = functional.pad(rows, (0, 0, 0, count * size - len(rows)))
        tall = padded.view(count, size, -1).to(centre.dtype)
        with _tensor_cores(self._precision):
            sums = torch.bmm(centre, tall)
            if count > 1:
                sums[:-1].baddbmm_(upper, tall[1:])
                sums[1:].baddbmm_(lower, tall[:-1])
        return sums.view(-1, rows.shape[1])[:num_results].to(rows.dtype)


class _Band(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, band: TorchBand) -> Tensor:
        ctx.band = band
        return band.apply(x.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.band.apply_transpose(gradients[0]), None


def _put(array: FloatArray, device: torch.device, narrow: bool) -> Tensor:
    tensor = torch.from_numpy(array).to(device)
    return tensor.to(torch.bfloat16) if narrow else tensor


@contextlib.contextmanager
def _tensor_cores(precision: str) -> Iterator[None]:
    """Allow tf32 inside the block if `precision` is "tf32"; the setting is process-wide."""
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = before or precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = before
