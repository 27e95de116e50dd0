"""Attention over the rows of a layer's input, projected afterwards, as a torch function.

Rows go by in chunks that stay in cache: their means for all heads, the projection of the means into
the layer's columns, and backward the same again. Beside the input nothing waits for the backward
pass, and no array of all heads exists but the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.attention_passes import TargetMap, heads_in_pass, numbers, rows_of
from hpcgnn.sparse import EdgeDraw, InputGradients, SharedHeads, WholePattern
from hpcgnn.trace import TraceRecorder

__all__ = ["SharedLayer", "attend_shared"]

_CHUNK_BYTES = 2 << 20
"""Of the means of a chunk of rows: they stay in cache until they are projected."""
_LINE_BYTES = 64
_SLICES = 8
"""Threads that can differentiate rows at a time; each slice costs a number a node and head."""


@dataclass(frozen=True, eq=False)
class SharedLayer:
    """How the heads of a layer attend.

    Parameters
    ----------
    pattern
        The edges.
    slope
        Of the leaky rectifier of the scores.
    average
        Whether the result is the mean of the heads, and not all of them side by side.
    draw
        Edges and weights to leave out, of `edge_draw`.
    trace
        Where times are recorded.
    """

    pattern: WholePattern
    slope: float
    average: bool
    draw: EdgeDraw | None
    trace: TraceRecorder


class _Chunks:
    """The attention of one layer by chunks of rows, in buffers that the chunks share.

    A mean has a one behind its last column, and a map the bias: the product adds it, and the
    product for the gradient of the map sums up that of the bias.
    """

    def __init__(
        self, layer: SharedLayer, x: Tensor, maps: Tensor, targets: Tensor, weights: Tensor
    ) -> None:
        self._x, self._maps, self._average = x, maps, layer.average
        self.folded = torch.einsum("hdf,hd->hf", maps, weights)
        by_source = torch.mm(x, self.folded.t(), out=numbers(x, (len(x), len(weights))))
        self._heads = SharedHeads(
            layer.pattern,
            # Rows at random are read faster from huge pages than copying them takes.
            rows_of(numbers(x, x.shape).copy_(x)),
            rows_of(by_source),
            rows_of(targets),
            slope=layer.slope,
            draw=layer.draw,
            heads_per_word=heads_in_pass(weights),
        )
        self._num_rows, (heads, _, width) = len(targets), maps.shape
        line = _LINE_BYTES // x.element_size()
        pitch = (width // line + 1) * line
        self._step = max(1, _CHUNK_BYTES // (heads * pitch * x.element_size()))
        self._shape = min(self._step, self._num_rows), heads, pitch

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, self._num_rows, self._step):
            yield slice(start, min(start + self._step, self._num_rows))

    def buffer(self) -> Tensor:
        """Return room for the means of a chunk."""
        room = self._x.new_empty(self._shape)
        room[:, :, self._x.shape[1]] = 1
        return room

    def means(self, rows: slice, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (rows, H, more than F), in `buffer`, and log-sum-exps (rows, H)."""
        mean = buffer[: rows.stop - rows.start]
        lse = mean.new_empty(mean.shape[:2])
        self._heads.means(rows, mean.numpy(), lse.numpy())
        return mean, lse

    def with_bias(self, bias: Tensor) -> Tensor:
        """Return the maps that `project` takes, (H, F + 1, D)."""
        heads, width, _ = self._maps.shape
        behind = bias.expand(heads, width) if self._average else bias.view(heads, width)
        maps = torch.cat([self._maps.transpose(1, 2), behind[:, None]], dim=1)
        return maps / heads if self._average else maps

    def project(self, mean: Tensor, maps: Tensor, into: Tensor) -> None:
        """Write the rows of the layer's result; maps are those of `with_bias`."""
        means = self._by_head(mean, maps.shape[1])
        if self._average:
            torch.mm(means[0], maps[0], out=into)
            for values, weight in zip(means[1:], maps[1:], strict=True):
                into.addmm_(values, weight)
        else:
            torch.bmm(means, maps, out=self._columns(into))

    def unproject(self, gradient: Tensor, mean: Tensor, into: Tensor, for_maps: Tensor) -> None:
        """Write the gradient of the means, and add that of the maps with their bias."""
        if self._average:
            each = (gradient / len(self._maps)).expand(len(self._maps), *gradient.shape)
        else:
            each = self._columns(gradient)
        torch.bmm(each, self._maps, out=self._by_head(into, self._maps.shape[2]))
        for_maps.baddbmm_(each.transpose(1, 2), self._by_head(mean, for_maps.shape[2]))

    def differentiate(
        self,
        rows: slice,
        means: tuple[Tensor, Tensor],
        gradient: Tensor,
        into: InputGradients,
    ) -> None:
        """Add the gradients through the edges of a chunk."""
        mean, lse = (each.numpy() for each in means)
        self._heads.differentiate(rows, (mean, lse), gradient.numpy(), into)

    @staticmethod
    def _by_head(mean: Tensor, width: int) -> Tensor:
        return mean[:, :, :width].transpose(0, 1)

    def _columns(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), *self._maps.shape[:2]).transpose(0, 1)


class _AttendShared(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        projection: Tensor,
        own: Tensor,
        target_map: Tensor,
        weights: Tensor,
        bias: Tensor,
        layer: SharedLayer,
    ) -> Tensor:
        targets = TargetMap(own, target_map).targets
        chunks = _Chunks(layer, x, projection.view(*weights.shape, -1), targets, weights)
        result = numbers(targets, (len(targets), len(bias)))
        maps, buffer = chunks.with_bias(bias), chunks.buffer()
        with layer.trace.span("interior.forward", order="(AX)W"):
            for rows in chunks:
                mean, _ = chunks.means(rows, buffer)
                chunks.project(mean, maps, result[rows])
        # Saved twice, it might be computed twice.
        others = [] if own is x else [own]
        ctx.save_for_backward(x, projection, target_map, weights, *others)
        ctx.layer, ctx.own_is_input = layer, own is x
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, projection, matrix, weights, *others = ctx.saved_tensors
        target_map = TargetMap(x if ctx.own_is_input else others.pop(), matrix)
        targets, layer, gradient = target_map.targets, ctx.layer, gradients[0].contiguous()
        maps = projection.view(*weights.shape, -1)
        chunks = _Chunks(layer, x, maps, targets, weights)
        for_x = numbers(x, x.shape).zero_() if ctx.needs_input_grad[0] else None
        for_maps = maps.new_zeros((*weights.shape, x.shape[1] + 1))
        for_targets = torch.zeros_like(targets)
        by_slice = x.new_zeros((_SLICES, len(x), len(weights)))
        into = InputGradients(
            None if for_x is None else for_x.numpy(), by_slice.numpy(), for_targets.numpy()
        )
        buffer, inner = chunks.buffer(), chunks.buffer()
        with layer.trace.span("interior.reverse", order="(AX)W"):
            for rows in chunks:
                means = chunks.means(rows, buffer)
                for_means = inner[: len(means[0])]
                chunks.unproject(gradient[rows], means[0], for_means, for_maps)
                chunks.differentiate(rows, means, for_means, into)
        by_source = by_slice.sum(0)
        if for_x is not None:
            for_x.addmm_(by_source, chunks.folded)
        for_folded = by_source.t() @ x
        for_weights = torch.einsum("hdf,hf->hd", maps, for_folded)
        by_head = for_maps[:, :, -1]
        for_bias = by_head.sum(0) if layer.average else by_head.reshape(-1)
        for_projection = for_maps[:, :, :-1] + weights[:, :, None] * for_folded[:, None, :]
        for_projection = for_projection.reshape_as(projection)
        for_input = for_x if ctx.own_is_input else None
        needed = ctx.needs_input_grad[2]
        for_own, for_map = target_map.gradients(for_targets, for_input, needed=needed)
        return for_x, for_projection, for_own, for_map, for_weights, for_bias, None


def attend_shared(
    x: Tensor,
    projection: Tensor,
    own: Tensor,
    target_map: Tensor,
    weights: Tensor,
    bias: Tensor,
    layer: SharedLayer,
) -> Tensor:
    """Return what `attend` returns for `AdditiveScores`, where a rank holds the whole pattern.

    Not collective.

    Parameters
    ----------
    x, projection, own, target_map, weights, bias
        As for `attend`.
    layer
        The pattern, and how it is used.
    """
    result: Tensor = _AttendShared.apply(  # type: ignore[no-untyped-call]
        x, projection, own, target_map, weights, bias, layer
    )
    return result
