"""Attention whose bits do not depend on who holds which rows: every sum in the order of the nodes.

A rank fetches what its rows attend to, and adds up each row's edges by increasing node, whether it
owns the node or not. Backward it does so twice: over its rows for the gradients of the targets, and
over its columns, for which it fetches the rows that attend to them. Nothing is pushed and nothing
is merged, so there is nothing to round on the way; coefficients are arrays of edges, of the heads
of one pass. The exchange and its schedule have no part in it, and replicas do the same work.
"""

from collections.abc import Callable

import numpy as np

from hpcgnn import kernels
from hpcgnn.attention.operator import Softmax
from hpcgnn.attention.scores import AttentionInput
from hpcgnn.comm import CommPlan, ProcessGrid, redistribute
from hpcgnn.kernels import AdditiveScore, Gradients
from hpcgnn.operator import Meanwhile, OperatorSize
from hpcgnn.sparse import MAIN, DistCSR, LocalCSR
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices

_CHUNK_VALUES = 1 << 20
"""Gathered values of edges in memory at a time."""


class _Side:
    """The edges of this rank's rows, or of its columns, each line in the order of the other end.

    `lines` (nnz,) int32 are the own line of each edge, `others` (nnz,) int64 the global node at its
    other end.
    """

    @collective
    def __init__(
        self,
        grid: ProcessGrid,
        matrix: DistCSR,
        lines: LocalIndices,
        others: GlobalIndices,
        *,
        by_row: bool,
    ) -> None:
        num_lines, num_own = matrix.shape if by_row else matrix.shape[::-1]
        row_map = matrix.row_map
        order = np.lexsort((others, lines))
        lines, others = lines[order], others[order]
        local = row_map.is_local(others)
        ghosts, numbers = np.unique(others[~local], return_inverse=True)
        positions = matrix.column_positions() if by_row else matrix.row_positions()
        self.plan = CommPlan.from_ghosts(grid, row_map, ghosts, positions)
        ends = np.empty(len(others), np.int32)
        own = row_map.to_local(others[local])
        ends[local] = own if positions is None else positions[own]
        ends[~local] = num_own + numbers
        counts = np.bincount(lines, minlength=num_lines)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.lines = lines.astype(np.int32)
        self.edges = LocalCSR(indptr, ends, None, (num_lines, num_own + len(ghosts)))
        self._each = np.arange(len(others), dtype=np.int32)

    @collective
    def fetch(self, rows: FloatArray, trace: TraceRecorder) -> FloatArray:
        """Return own rows, and behind them those of the ghosts."""
        moved = self.plan.num_sent
        with trace.span("exchange.forward", rows=moved, bytes=moved * rows[:1].nbytes):
            ghosts = self.plan.forward(np.ascontiguousarray(rows))
        return np.concatenate([rows, ghosts])

    @collective
    def sum(self, rows: FloatArray, trace: TraceRecorder) -> FloatArray:
        """Return the sums of the rows at the other ends, (lines, width)."""
        out = np.empty((self.edges.shape[0], rows.shape[1]), rows.dtype)
        self.edges.matmul(self.fetch(rows, trace), out)
        return out

    def total(self, of_edges: FloatArray) -> FloatArray:
        """Return the sums over the edges of each line, (lines, H), added in their order."""
        out = np.empty((self.edges.shape[0], of_edges.shape[1]), of_edges.dtype)
        kernels.spmm(kernels.SparseMatrix(self.edges.indptr, self._each), of_edges, out)
        return out

    def weighted(self, weights: FloatArray, rows: FloatArray) -> FloatArray:
        """Return the sums of other ends' rows (ends, H * D) by weights (nnz, H) of the edges."""
        heads = weights.shape[1]
        width = rows.shape[1] // heads
        out = np.empty((self.edges.shape[0], rows.shape[1]), rows.dtype)
        room = np.empty((len(out), width), rows.dtype)
        for head in range(heads):
            columns = slice(head * width, (head + 1) * width)
            matrix = self.edges.with_values(np.ascontiguousarray(weights[:, head]))
            matrix.matmul(np.ascontiguousarray(rows[:, columns]), room)
            out[:, columns] = room
        return out

    def inner_products(self, mine: FloatArray, others: FloatArray, heads: int) -> FloatArray:
        """Return for each edge and head (nnz, H) the product of rows of its line and other end."""
        width = mine.shape[1] // max(heads, 1)
        out = np.empty((len(self.lines), heads), mine.dtype)
        step = max(1, _CHUNK_VALUES // max(1, mine.shape[1]))
        for start in range(0, len(out), step):
            some = slice(start, start + step)
            products = mine[self.lines[some]] * others[self.edges.indices[some]]
            out[some] = products.reshape(-1, heads, width).sum(axis=2)
        return out

    def largest(self, of_edges: FloatArray) -> FloatArray:
        """Return the largest number of each line, (lines, H); -inf without edges."""
        out = np.full((self.edges.shape[0], of_edges.shape[1]), -np.inf, of_edges.dtype)
        occupied = np.flatnonzero(np.diff(self.edges.indptr))
        if len(occupied):
            starts = self.edges.indptr[:-1][occupied]
            out[occupied] = np.maximum.reduceat(of_edges, starts, axis=0)
        return out


def _rectified(sums: FloatArray, numbers: FloatArray, slope: float) -> FloatArray:
    """Return numbers as the rectifier of the sums, or its derivative, lets them through."""
    return np.where(sums > 0, numbers, numbers * numbers.dtype.type(slope))


class ExactAttention:
    """A pattern that aggregates by attention with equal bits at any distribution.

    An `AttentionOperator` for `AdditiveScores` without dropout of edges. `total` sums an array
    (rows, width) over the rows of all ranks, exactly.
    """

    whole = None

    @collective
    def __init__(
        self,
        grid: ProcessGrid,
        matrix: DistCSR,
        trace: TraceRecorder,
        total: Callable[[FloatArray], FloatArray],
    ) -> None:
        self.trace, self.shape, self._total = trace, matrix.shape, total
        rows, columns = _entries(matrix)
        self._rows = _Side(grid, matrix, rows, columns, by_row=True)
        nodes = np.arange(matrix.shape[0]) if matrix.row_nodes is None else matrix.row_nodes
        arrived = redistribute(
            grid.layer,
            matrix.row_map.owner(columns),
            columns,
            matrix.row_map.start + nodes[rows].astype(np.int64),
        )
        own = matrix.row_map.to_local(arrived[0])
        positions = matrix.column_positions()
        lines = own if positions is None else positions[own]
        self._columns = _Side(grid, matrix, lines, arrived[1], by_row=False)
        counts = grid.layer.allreduce(np.array([*matrix.shape, matrix.nnz], np.int64))
        num_rows, num_columns, num_entries = counts.tolist()
        self.size = OperatorSize(num_rows, num_columns, num_entries, num_moved=0)

    @collective
    def apply(self, x: FloatArray, meanwhile: Meanwhile | None = None) -> FloatArray:
        """Return the sums over the columns of each row."""
        del meanwhile
        return self._rows.sum(x, self.trace)

    @collective
    def apply_transpose(
        self, gradient: FloatArray, meanwhile: Meanwhile | None = None
    ) -> FloatArray:
        """Return the sums over the rows of each column."""
        del meanwhile
        return self._columns.sum(gradient, self.trace)

    @collective
    def attend(
        self, given: AttentionInput, out: FloatArray, *, bias: FloatArray | None = None, keep: bool
    ) -> Softmax:
        """Write the attention-weighted means of the rows; see `AttentionOperator`."""
        side, trace = self._rows, self.trace
        fetched = side.fetch(given.values, trace)
        with trace.span("interior.forward"):
            sums = given.targets[side.lines] + _sources(given, fetched)[side.edges.indices]
            logits = _rectified(sums, sums, given.scores.slope)
            top = side.largest(logits)
            weights = np.exp(logits - top[side.lines])
            total = side.total(weights)
            weights /= total[side.lines]
            out[:] = side.weighted(weights, fetched)
            if bias is not None:
                out += bias
            with np.errstate(divide="ignore"):
                # Rows without edges: their maximum is -inf, and stays.
                lse = np.where(total > 0, top + np.log(total), top)
        return Softmax(lse, None)

    @collective
    def attend_transpose(
        self, given: AttentionInput, softmax: Softmax, gradient: FloatArray, delta: FloatArray
    ) -> Gradients:
        """Return the gradients of values, targets and weights; these last of all ranks."""
        scores, values, targets, trace = given.scores, given.values, given.targets, self.trace
        heads, slope, lse = scores.heads, scores.slope, softmax.lse
        side = self._rows
        fetched = side.fetch(values, trace)
        with trace.span("interior.reverse"):
            sums = targets[side.lines] + _sources(given, fetched)[side.edges.indices]
            inner = side.inner_products(gradient, fetched, heads)
            share = np.exp(_rectified(sums, sums, slope) - lse[side.lines])
            through = _rectified(sums, share * (inner - delta[side.lines]), slope)
            for_targets = side.total(through)
        side = self._columns
        rows = side.fetch(np.concatenate([gradient, targets, lse, delta], axis=1), trace)
        with trace.span("interior.reverse"):
            width = gradient.shape[1]
            theirs = np.ascontiguousarray(rows[:, :width])
            target, their_lse, their_delta = (
                rows[side.edges.indices, width + place * heads : width + (place + 1) * heads]
                for place in range(3)
            )
            sums = target + _sources(given, values)[side.lines]
            inner = side.inner_products(values, theirs, heads)
            share = np.exp(_rectified(sums, sums, slope) - their_lse)
            through = _rectified(sums, share * (inner - their_delta), slope)
            gained = side.total(through)[:, :, None]
            for_values = side.weighted(share, theirs)
            for_values += (gained * scores.weights).reshape(values.shape)
            # Of no rows, a width that is left out could be any.
            products = gained * values.reshape(len(values), *scores.weights.shape)
            products = products.reshape(values.shape)
        for_weights = self._total(products).reshape(scores.weights.shape)
        return Gradients(for_values, for_targets, for_weights)


def _entries(matrix: DistCSR) -> tuple[LocalIndices, GlobalIndices]:
    """Return the row (int32) of each edge and its global column."""
    diagonal, remote = matrix.diagonal, matrix.remote
    own: Array = diagonal.indices
    if matrix.column_nodes is not None:
        own = matrix.column_nodes[own]
    columns = np.concatenate(
        [matrix.row_map.start + own.astype(np.int64), matrix.ghosts[remote.indices]]
    )
    return np.concatenate([diagonal.entry_rows(), remote.entry_rows()]), columns


def _sources(given: AttentionInput, values: FloatArray) -> FloatArray:
    """Return the columns' share of logits, (columns, H)."""
    score = given.scores.operands(MAIN, values, values)
    assert isinstance(score, AdditiveScore)
    return score.source
