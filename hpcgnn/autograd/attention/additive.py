"""Attention over the edges of a graph as a torch function; coefficients are never stored.

Values are the projected input. They are computed for some heads at a time, and again in the
backward pass: the result is the only array of all heads that is kept between the passes, and the
memory and messages of one moment shrink with the number of passes over heads.

Where one rank holds the whole pattern and the heads share their input, additive attention comes
before projection instead. Rows are processed in chunks that stay in cache: the means of a chunk for
all heads are computed, then projected into the layer's columns; the backward pass repeats this.
Only the input is kept for the backward pass, and the result is the only array of all heads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hpcgnn.attention import (
    AdditiveScores,
    AttentionInput,
    AttentionOperator,
    Scores,
    SharedHeads,
    WholePattern,
)
from hpcgnn.autograd.attention.head_passes import (
    PassBuffer,
    PassGradients,
    TargetMap,
    columns_of,
    heads_in_pass,
    new_empty,
    passes,
    rows_of,
)
from hpcgnn.autograd.dropout import DropoutKey
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import add_multiplied, as_multiplied, like_rows, multiply
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.autograd.sparse_features import SparseFeatures
from hpcgnn.kernels import AdditiveScore, EdgeDraw, Gradients, SharedMeans
from hpcgnn.operator import heads_share_input
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import FloatArray

_CHUNK_BYTES = 2 << 20
"""Size of the means of a chunk of rows, which stay in cache until they are projected."""
_LINE_BYTES = 64
_SLICES = 8
"""Threads that can differentiate rows at a time; each slice has a number for each node and head."""

ScoresOf: TypeAlias = Callable[[FloatArray], Scores]
"""Makes the scores of edges from their weights."""


@dataclass(frozen=True, eq=False)
class SharedLayer:
    """How the heads of a layer attend to its input, before projection; see `Heads`."""

    pattern: WholePattern
    slope: float
    average: bool
    draw: EdgeDraw | None
    trace: TraceRecorder


@dataclass(frozen=True, eq=False)
class Heads:
    """How the heads of a layer attend.

    `make_scores` makes the scores of the edges from the weights of some heads. With `average` the
    result is the mean of the heads, and not all of them side by side. `draw`, from `edge_draw`, has
    the edges and weights to leave out.
    """

    operator: AttentionOperator
    make_scores: ScoresOf
    average: bool = False
    draw: EdgeDraw | None = None

    def scores(self, weights: Tensor, heads: slice) -> tuple[Scores, EdgeDraw | None]:
        """Return the scores of some heads, and their draw of what to leave out."""
        draw = None if self.draw is None else self.draw.of_heads(heads.start)
        return self.make_scores(rows_of(weights[heads])), draw

    def shared(self, in_width: int, weights: Tensor) -> SharedLayer | None:
        """Return the layer if attention comes before projection; None if it does not."""
        pattern, scores = self.operator.whole, self.make_scores(rows_of(weights))
        if pattern is None or not isinstance(scores, AdditiveScores) or scores.reads_edges:
            return None
        if not heads_share_input(in_width, *weights.shape):
            return None
        return SharedLayer(pattern, scores.slope, self.average, self.draw, self.operator.trace)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Heads, *tensors: Tensor) -> Tensor:
        x, projection, own, target_map, weights, bias = tensors
        keep = any(ctx.needs_input_grad)
        by_pass, softmaxes = [], []
        targets, narrow = TargetMap(own, target_map).targets, like_rows(projection, x)
        # In 16 bits, the sum over heads would be rounded after each of them.
        result = new_empty(targets if heads.average else x, (len(targets), len(bias)))
        if heads.average:
            result[:] = bias
        vectors = _vectors(weights, projection)
        buffer, memory = PassBuffer(x, vectors), memory_of(x)
        for part, columns in passes(vectors):
            scores, draw = heads.scores(weights, part)
            values = buffer.project(narrow[columns])
            shares = rows_of(columns_of(targets, part, weights))
            into, shift = result[:, columns], None if heads.average else rows_of(bias[columns])
            if heads.average or result.dtype != targets.dtype:
                into = new_empty(targets, (len(targets), values.shape[1]))
            attention_input = AttentionInput(scores, values, shares, draw)
            with memory.ordered():
                softmax = heads.operator.attend(
                    attention_input, memory.array(into), bias=shift, keep=keep
                )
            softmaxes.append(softmax)
            if heads.average:
                for head in into.chunk(part.stop - part.start, dim=1):
                    result.add_(head, alpha=1 / len(weights))
                by_pass.append(into.to(x.dtype))
            elif result.dtype != targets.dtype:
                result[:, columns] = into
        result = result.to(x.dtype)
        # If a tensor were saved twice, rematerialisation might compute it twice.
        others = [] if own is x else [own]
        outs = by_pass or [result]
        ctx.save_for_backward(x, projection, target_map, weights, bias, *outs, *others)
        ctx.heads, ctx.softmaxes, ctx.own_is_input = heads, softmaxes, own is x
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, projection, matrix, weights, bias, *outs = ctx.saved_tensors
        target_map = TargetMap(x if ctx.own_is_input else outs.pop(), matrix)
        targets, heads, softmaxes = target_map.targets, ctx.heads, ctx.softmaxes
        # The graph may live longer than this pass; the values of other ranks need not.
        ctx.softmaxes = [softmax.released() for softmax in softmaxes]
        (gradient,) = gradients
        vectors = _vectors(weights, projection)
        by_pass = PassGradients(gradient.contiguous(), outs, vectors, bias, heads.average)
        for_x = torch.zeros_like(x) if ctx.needs_input_grad[1] else None
        narrow = like_rows(projection, x)
        for_projection, for_weights = torch.empty_like(projection), torch.empty_like(weights)
        for_targets = torch.empty_like(targets)
        buffer, memory = PassBuffer(x, vectors), memory_of(x)
        for index, (part, columns) in enumerate(passes(vectors)):
            scores, draw = heads.scores(weights, part)
            values = buffer.project(narrow[columns])
            shares = rows_of(columns_of(targets, part, weights))
            softmax, softmaxes[index] = softmaxes[index], None
            with memory.ordered():
                attention_input = AttentionInput(scores, values, shares, draw)
                of_pass = by_pass.of(index, part, columns)
                for_edges = heads.operator.attend_transpose(attention_input, softmax, *of_pass)
            del softmax
            for_values = memory.tensor(for_edges.values).to(x.dtype)
            if for_x is not None:
                arithmetic().add_product(for_x, for_values, narrow[columns])
            for_projection[columns] = arithmetic().contract(for_values, x)
            for_weights[part] = memory.tensor(for_edges.weights)
            columns_of(for_targets, part, weights)[:] = memory.tensor(for_edges.targets)
        into = for_x if ctx.own_is_input else None
        for_own, for_map = target_map.gradients(for_targets, into, needed=ctx.needs_input_grad[3])
        for_bias = arithmetic().total(gradient)
        return None, for_x, for_projection, for_own, for_map, for_weights, for_bias


def _vectors(weights: Tensor, projection: Tensor) -> Tensor:
    """Return the first D columns of the weights, without those for features of edges."""
    return weights[:, : len(projection) // len(weights)]


class _Chunks:
    """The attention of one layer by chunks of rows, in buffers that the chunks share.

    Means have a column of ones after their last, and maps the bias: the product adds the bias, and
    the product for the gradient of the maps also gives that of the bias.
    """

    def __init__(
        self, layer: SharedLayer, x: Tensor, maps: Tensor, targets: Tensor, weights: Tensor
    ) -> None:
        self._average, self._rows_dtype = layer.average, x.dtype
        self._exact, self._maps = maps, like_rows(maps, x)
        self.folded = torch.einsum("hdf,hd->hf", maps, weights)
        # Random reads from huge pages save more time than this copy takes; attention reads rows in
        # the precision of scores.
        self.x = x = new_empty(maps, x.shape).copy_(x)
        by_source = torch.mm(x, self.folded.t(), out=new_empty(x, (len(x), len(weights))))
        score = AdditiveScore(
            values=rows_of(x),
            source=rows_of(by_source),
            target=rows_of(targets),
            slope=layer.slope,
        )
        self._heads = SharedHeads(layer.pattern, score, layer.draw, heads_in_pass(weights))
        self._num_rows, (heads, _, width) = len(targets), maps.shape
        line = _LINE_BYTES // x.element_size()
        pitch = (width // line + 1) * line
        self._step = max(1, _CHUNK_BYTES // (heads * pitch * x.element_size()))
        self._shape = min(self._step, self._num_rows), heads, pitch

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, self._num_rows, self._step):
            yield slice(start, min(start + self._step, self._num_rows))

    def buffer(self) -> Tensor:
        """Return a buffer for the means of a chunk."""
        buffer = self.x.new_empty(self._shape)
        buffer[:, :, self.x.shape[1]] = 1
        return buffer

    def means(self, rows: slice, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (rows, H, more than F), in `buffer`, and log-sum-exps (rows, H)."""
        mean = buffer[: rows.stop - rows.start]
        lse = mean.new_empty(mean.shape[:2])
        self._heads.means(rows, SharedMeans(mean.numpy(), lse.numpy()))
        return mean, lse

    def with_bias(self, bias: Tensor) -> Tensor:
        """Return the maps that `project` takes, (H, F + 1, D)."""
        heads, width, _ = self._maps.shape
        by_head = bias.expand(heads, width) if self._average else bias.view(heads, width)
        maps = torch.cat([self._exact.transpose(1, 2), by_head[:, None]], dim=1)
        return (maps / heads if self._average else maps).to(self._rows_dtype)

    def project(self, mean: Tensor, maps: Tensor, into: Tensor) -> None:
        """Write the rows of the layer's result; maps are those of `with_bias`."""
        means = self._narrow(self._by_head(mean, maps.shape[1]))
        if self._average:
            multiply(means[0], maps[0], into)
            for values, weight in zip(means[1:], maps[1:], strict=True):
                add_multiplied(into, values, weight)
        else:
            multiply(means, maps, self._columns(into))

    def unproject(self, gradient: Tensor, mean: Tensor, into: Tensor, for_maps: Tensor) -> None:
        """Write the gradient of the means, and add that of the maps with their bias."""
        if self._average:
            upper = (gradient / len(self._maps)).expand(len(self._maps), *gradient.shape)
        else:
            upper = self._columns(gradient)
        out, means = (
            self._by_head(rows, width)
            for rows, width in ((into, self._maps.shape[2]), (mean, for_maps.shape[2]))
        )
        upper, maps = as_multiplied(upper), as_multiplied(self._maps)
        if upper.dtype != means.dtype:
            out.copy_(torch.bmm(upper, maps))
            for_maps += torch.bmm(upper.transpose(1, 2), self._narrow(means))
            return
        torch.bmm(upper, maps, out=out)
        for_maps.baddbmm_(upper.transpose(1, 2), means)

    def differentiate(
        self,
        rows: slice,
        means: tuple[Tensor, Tensor],
        gradient: Tensor,
        into: Gradients,
    ) -> None:
        """Add the gradients through the edges of a chunk."""
        mean, lse = (array.numpy() for array in means)
        self._heads.differentiate(rows, SharedMeans(mean, lse, gradient.numpy()), into)

    def _narrow(self, rows: Tensor) -> Tensor:
        return rows.to(self._rows_dtype)

    @staticmethod
    def _by_head(mean: Tensor, width: int) -> Tensor:
        return mean[:, :, :width].transpose(0, 1)

    def _columns(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), *self._maps.shape[:2]).transpose(0, 1)


class _AttendShared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: SharedLayer, *tensors: Tensor) -> Tensor:
        x, projection, own, target_map, weights, bias = tensors
        targets = TargetMap(own, target_map).targets
        chunks = _Chunks(layer, x, projection.view(*weights.shape, -1), targets, weights)
        result = new_empty(x, (len(targets), len(bias)))
        maps, buffer = chunks.with_bias(bias), chunks.buffer()
        with layer.trace.span("interior.forward", order="(AX)W"):
            for rows in chunks:
                mean, _ = chunks.means(rows, buffer)
                chunks.project(mean, maps, result[rows])
        # If a tensor were saved twice, rematerialisation might compute it twice.
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
        for_x = new_empty(maps, x.shape).zero_() if ctx.needs_input_grad[1] else None
        for_maps = maps.new_zeros((*weights.shape, x.shape[1] + 1))
        for_targets = torch.zeros_like(targets)
        by_slice = maps.new_zeros((_SLICES, len(x), len(weights)))
        into = Gradients(
            None if for_x is None else for_x.numpy(), for_targets.numpy(), source=by_slice.numpy()
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
        for_folded = by_source.t() @ chunks.x
        for_weights = torch.einsum("hdf,hf->hd", maps, for_folded)
        by_head = for_maps[:, :, -1]
        for_bias = by_head.sum(0) if layer.average else by_head.reshape(-1)
        for_projection = for_maps[:, :, :-1] + weights[:, :, None] * for_folded[:, None, :]
        for_projection = for_projection.reshape_as(projection)
        if for_x is not None:
            for_x = for_x.to(x.dtype)
        for_input = for_x if ctx.own_is_input else None
        needed = ctx.needs_input_grad[3]
        for_own, for_map = target_map.gradients(for_targets, for_input, needed=needed)
        return None, for_x, for_projection, for_own, for_map, for_weights, for_bias


@collective
def attend(
    x: Tensor,
    projection: Tensor,
    own: Tensor,
    target_map: Tensor,
    weights: Tensor,
    bias: Tensor,
    heads: Heads,
) -> Tensor:
    """Return, for each row and head, the mean of its columns' values weighted by a softmax.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    With `AdditiveScores` this is graph attention (GAT; SAR paper, equation 3), with `DynamicScores`
    GATv2. The values are ``x projectionᵀ``. The result is (result rows, H * D), or (result rows, D)
    where heads are averaged; the bias alone for rows without edges.

    `x` (input rows, F) is float32 or float64, or bfloat16 beside float32 weights, and is where the
    pattern is; `own` (result rows, F), of the same dtype, is the input of the result's nodes, and
    may be `x`. Scores and softmax are in the precision of the weights. `projection` is (H * D, F),
    one head after the other; `target_map` (H, F) or (H * D, F), as the scores take ``own
    target_mapᵀ``; `weights` (H, D), equal on all ranks, followed by the columns for features of
    edges, where the scores read some. The gradient of the weights is this rank's share. `bias` (H *
    D,), or (D,) where heads are averaged, is added to every row.
    """
    # Means of sparse rows would not be sparse, so these are projected first.
    sparse = isinstance(x, SparseFeatures)
    shared = None if sparse else heads.shared(x.shape[1], weights)
    tensors = x, projection, own, target_map, weights, bias
    result: Tensor
    if shared is not None:
        result = _AttendShared.apply(shared, *tensors)  # type: ignore[no-untyped-call]
    else:
        result = _Attend.apply(heads, *tensors)  # type: ignore[no-untyped-call]
    return result


def edge_draw(key: DropoutKey | None, weight_p: float, edge_p: float) -> EdgeDraw | None:
    """Return the draw of what one step of a layer leaves out; None without dropout.

    The key is that of the layer, which node dropout uses too; None: evaluation. Probabilities of
    leaving out weights and edges are in [0, 1).
    """
    if key is None or weight_p == edge_p == 0.0:
        return None
    # Layers have no negative places, so these are free.
    weights, edges = key.at(-1 - 2 * key.layer), key.at(-2 - 2 * key.layer)
    return EdgeDraw(weights.word(), weight_p, edges.word(), edge_p)
