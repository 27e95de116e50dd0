"""Calls of the attention kernels with separate operands, which tests vary."""

from types import ModuleType
from typing import Any

from hpcgnn import kernels
from hpcgnn.kernels import (
    AdditiveScore,
    Block,
    Draw,
    DynamicScore,
    EdgeDraw,
    Gradients,
    SharedMeans,
    SoftmaxGradient,
    SoftmaxState,
    cuda,
)


def draw_of(dropout: Any, edge_dropout: Any, heads_per_word: int = 0) -> Draw | None:
    """Return the draw of ``(word, p, row_ids, column_ids)`` and ``(word, p)``."""
    if dropout is None and edge_dropout is None:
        return None
    word, p, *names = dropout or (0, 0.0, None, None)
    return Draw(EdgeDraw(word, p, *(edge_dropout or (0, 0.0))), *names, heads_per_word)


class Calls:
    """The functions of one set of kernels: `hpcgnn.kernels` or `hpcgnn.kernels.cuda`."""

    def __init__(self, face: ModuleType) -> None:
        self._face = face
        self.attention_scores, self.attention_delta = face.attention_scores, face.attention_delta

    def attention_forward(
        self, indptr, indices, z, source, target, top, total, out, *, slope, **options
    ):
        rest, how = self._split(options)
        score = AdditiveScore(values=z, source=source, target=target, slope=slope, **how)
        self._forward(indptr, indices, score, (top, total, out), rest)

    def attention_dynamic_forward(
        self, indptr, indices, z, target, vector, top, total, out, *, slope, **options
    ):
        rest, how = self._split(options)
        score = DynamicScore(values=z, vector=vector, target=target, slope=slope, **how)
        self._forward(indptr, indices, score, (top, total, out), rest)

    def attention_backward(
        self,
        indptr,
        indices,
        z,
        source,
        target,
        lse,
        grad,
        delta,
        dz,
        dsource,
        dtarget,
        *,
        slope,
        weights=None,
        dweights=None,
        **options,
    ):
        rest, how = self._split(options)
        score = AdditiveScore(
            values=z, source=source, target=target, slope=slope, weights=weights, **how
        )
        saved = SoftmaxGradient(lse, grad, delta)
        into = Gradients(dz, dtarget, dweights, dsource)
        block, draw, options = self._edges(indptr, indices, rest)
        self._face.attention_backward(block, score, saved, into, draw, **options)

    def attention_dynamic_backward_rows(
        self,
        indptr,
        indices,
        z,
        target,
        vector,
        lse,
        grad,
        delta,
        dtarget,
        dvector,
        *,
        slope,
        **options,
    ):
        rest, how = self._split(options)
        score = DynamicScore(values=z, vector=vector, target=target, slope=slope, **how)
        saved, into = SoftmaxGradient(lse, grad, delta), Gradients(None, dtarget, dvector)
        block, draw, options = self._edges(indptr, indices, rest)
        self._face.attention_backward_rows(block, score, saved, into, draw, **options)

    def attention_dynamic_backward_columns(
        self, indptr, indices, z, target, vector, lse, grad, delta, dz, *, slope, **options
    ):
        rest, how = self._split(options)
        score = DynamicScore(values=z, vector=vector, target=target, slope=slope, **how)
        saved, into = SoftmaxGradient(lse, grad, delta), Gradients(dz, None)
        block, draw, options = self._edges(indptr, indices, rest)
        self._face.attention_backward(block, score, saved, into, draw, **options)

    def attention_shared_forward(
        self, indptr, indices, x, source, target, mean, lse, *, slope, **options
    ):
        score = AdditiveScore(values=x, source=source, target=target, slope=slope)
        block, draw, options = self._edges(indptr, indices, {"heads_per_word": 1} | options)
        means = SharedMeans(mean, lse)
        self._face.attention_shared_forward(block, score, means, draw, **options)

    def attention_shared_backward(
        self,
        indptr,
        indices,
        x,
        source,
        target,
        mean,
        lse,
        grad,
        dx,
        dsource,
        dtarget,
        *,
        slope,
        **options,
    ):
        score = AdditiveScore(values=x, source=source, target=target, slope=slope)
        block, draw, options = self._edges(indptr, indices, {"heads_per_word": 1} | options)
        means, into = SharedMeans(mean, lse, grad), Gradients(dx, dtarget, source=dsource)
        self._face.attention_shared_backward(block, score, means, into, draw, **options)

    def attention_merge(self, rows, other_top, other_total, other_out, top, total, out):
        other = SoftmaxState(other_top, other_total, other_out)
        self._face.attention_merge(rows, other, SoftmaxState(top, total, out))

    def attention_finish(self, top, total, out, **options):
        self._face.attention_finish(SoftmaxState(top, total, out), **options)

    def _forward(self, indptr, indices, score, state, rest):
        block, draw, options = self._edges(indptr, indices, rest)
        self._face.attention_forward(block, score, SoftmaxState(*state), draw, **options)

    @staticmethod
    def _split(options):
        """Return the options of a call, and those that belong to a score."""
        rest = dict(options)
        return rest, {"half": rest.pop("half", None)}

    @staticmethod
    def _edges(indptr, indices, options):
        """Return a block, a draw, and the remaining options."""
        rest = dict(options)
        block = Block(indptr, indices, rest.pop("rows", None), rest.pop("groups", None))
        names = (rest.pop(name, None) for name in ("dropout", "edge_dropout"))
        return block, draw_of(*names, rest.pop("heads_per_word", 0)), rest


HOST, DEVICE = Calls(kernels), Calls(cuda)
