"""Attention over a distributed pattern in the memory of a GPU.

The loop of `hpcgnn.spmm.attention` with the resident schedule and every remote entry fetched: the
values of ghosts join the state of the rows that own columns began, and stay for the backward pass.
"""

from typing import Any

import numpy as np

from hpcgnn.comm import ProcessGrid
from hpcgnn.kernels import cuda
from hpcgnn.kernels.arguments import Half
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.kernels.cuda.group_size import FixedSize
from hpcgnn.sparse import AdditiveScores, DistCSR, EdgeDraw, Gradients, Scores, Softmax
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.spmm.device import DeviceSpMM
from hpcgnn.spmm.device_exchange import DeviceExchange
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import GlobalIndices

__all__ = ["DeviceAttention"]

_Saved = tuple[DeviceArray, DeviceArray, DeviceArray]


class DeviceAttention(DeviceSpMM):
    """A pattern that aggregates by attention with additive scores; an `AttentionOperator`.

    Collective.

    Parameters
    ----------
    grid, matrix, exchange, trace
        As for `DeviceSpMM`; the matrix has no values.
    row_ids, column_ids
        int64 original ids of the local rows and columns in host memory, which masks of edges are
        drawn from.
    """

    whole = None
    """No kernel of the device attends over the input."""

    def __init__(
        self,
        grid: ProcessGrid,
        matrix: DistCSR,
        exchange: DeviceExchange,
        trace: TraceRecorder,
        row_ids: GlobalIndices,
        column_ids: GlobalIndices,
    ) -> None:
        super().__init__(grid, matrix, exchange, trace, FixedSize(cuda.ATTENTION_GROUP_SIZE))
        # Ids stay below 2^53, which float64 rows carry exactly.
        ghost_ids = exchange.plan.forward(column_ids.astype(np.float64)[:, None])[:, 0]
        self._own = _Block(self._diagonal, row_ids, column_ids)
        self._ghosts = _Block(self._remote, row_ids, ghost_ids.astype(np.int64))

    def attend(
        self,
        scores: Scores,
        values: DeviceArray,
        targets: DeviceArray,
        draw: EdgeDraw | None,
        out: DeviceArray,
        *,
        bias: DeviceArray | None = None,
        keep: bool,
    ) -> Softmax:
        """Write the attention-weighted means of the rows; see `AttentionOperator`.

        Collective.

        Arrays are CuPy arrays.
        """
        cupy, additive = load_cupy(), _additive(scores)
        top = cupy.full((targets.shape[0], scores.heads), -np.inf, values.dtype)
        state = top, cupy.zeros(top.shape, top.dtype), cupy.empty(out.shape, out.dtype)
        arriving = self._exchange.start_fetch(values)
        with self.trace.span("interior.forward"):
            self._own.forward(additive, values, targets, state, draw, None)
        ghosts = arriving.rows()
        with self.trace.span("boundary.forward"):
            self._ghosts.forward(additive, ghosts, targets, state, draw, self._half(ghosts))
            cuda.attention_finish(*state, into=out, bias=bias)
        return Softmax(top, (ghosts,) if keep else None)

    def attend_transpose(
        self,
        scores: Scores,
        values: DeviceArray,
        targets: DeviceArray,
        softmax: Softmax,
        gradient: DeviceArray,
        delta: DeviceArray,
        draw: EdgeDraw | None,
    ) -> Gradients:
        """Return the gradients of values, targets and weights; see `AttentionOperator`.

        Collective.

        Arrays are CuPy arrays.
        """
        cupy, additive = load_cupy(), _additive(scores)
        saved = softmax.lse, gradient, delta
        found = Gradients(
            *(cupy.zeros(a.shape, a.dtype) for a in (values, targets, scores.weights))
        )
        if softmax.kept is None:
            ghosts = self._exchange.start_fetch(values).rows()
        else:
            (ghosts,) = softmax.kept
        with self.trace.span("boundary.reverse"):
            sums = cupy.zeros(ghosts.shape, values.dtype)
            shares = Gradients(sums, found.targets, found.weights)
            half = self._half(ghosts)
            self._ghosts.backward(additive, ghosts, targets, saved, shares, draw, half)
            if half is not None:
                sums = self._exchange.ghost_rows(values)
                cuda.gather_rows(shares.values, None, sums, half=half)
        arriving = self._exchange.start_push(sums)
        with self.trace.span("interior.reverse"):
            self._own.backward(additive, values, targets, saved, found, draw, None)
        self._exchange.add(arriving.rows(), found.values)
        return found

    def _half(self, ghosts: DeviceArray) -> Half | None:
        return self._exchange.wire.half if ghosts.dtype == np.uint16 else None


class _Block:
    """A part of the pattern, and the names of its nodes on the device."""

    def __init__(self, block: DeviceCSR, row_ids: GlobalIndices, column_ids: GlobalIndices) -> None:
        cupy, stored = load_cupy(), block.host.rows
        self._block, self._column_ids = block, cupy.asarray(column_ids)
        self._row_ids = cupy.asarray(row_ids)
        self._stored_ids = self._row_ids
        if stored is not None:
            self._stored_ids = cupy.asarray(np.ascontiguousarray(row_ids[stored]))

    def forward(
        self,
        scores: AdditiveScores,
        values: DeviceArray,
        targets: DeviceArray,
        state: _Saved,
        draw: EdgeDraw | None,
        half: Half | None,
    ) -> None:
        """Add the edges to the state of their rows."""
        block = self._block
        cuda.attention_forward(
            block.indptr,
            block.indices,
            values,
            _sources(scores, values, half),
            targets,
            *state,
            slope=scores.slope,
            rows=block.rows,
            half=half,
            groups=block.groups(values.shape[1]),
            **self._dropouts(draw, self._stored_ids),
        )

    def backward(
        self,
        scores: AdditiveScores,
        values: DeviceArray,
        targets: DeviceArray,
        saved: _Saved,
        gradients: Gradients,
        draw: EdgeDraw | None,
        half: Half | None,
    ) -> None:
        """Add the gradients through the edges."""
        block = self._block.transposed
        cuda.attention_backward(
            block.indptr,
            block.indices,
            values,
            _sources(scores, values, half),
            targets,
            *saved,
            gradients.values,
            load_cupy().zeros((values.shape[0], scores.heads), targets.dtype),
            gradients.targets,
            slope=scores.slope,
            weights=scores.weights,
            dweights=gradients.weights,
            half=half,
            groups=block.groups(values.shape[1]),
            **self._dropouts(draw, self._row_ids),
        )

    def _dropouts(self, draw: EdgeDraw | None, row_ids: DeviceArray) -> dict[str, Any]:
        if draw is None:
            return {}
        weights = draw.weight_word, draw.weight_p, row_ids, self._column_ids
        return {"dropout": weights, "edge_dropout": (draw.edge_word, draw.edge_p)}


def _additive(scores: Scores) -> AdditiveScores:
    if not isinstance(scores, AdditiveScores):
        raise TypeError(f"attention on GPUs takes AdditiveScores, not {type(scores).__name__}")
    return scores


def _sources(scores: AdditiveScores, values: DeviceArray, half: Half | None) -> DeviceArray:
    found = load_cupy().empty((values.shape[0], scores.heads), scores.weights.dtype)
    cuda.attention_scores(values, scores.weights, found, half=half)
    return found
