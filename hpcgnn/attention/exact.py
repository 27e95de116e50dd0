"""Attention with equal bits at any distribution of rows: every sum is in the order of the nodes.

A rank fetches all values that its rows attend to, and adds up each row's edges by increasing node,
whether or not it owns the node. The gradients of targets are computed in the same way. The terms of
a value's gradient, one for each edge, are rounded to multiples of one number. The sums of such
integers do not depend on their order, so they are pushed, once for all relations. Where relations
map their values or edges have features, nothing is rounded or pushed: a rank fetches the rows that
attend to its columns instead. The kernels are the default ones, which here walk each line as a
whole, one relation's edges after another's; where edges have features, coefficients are stored for
every edge. The configured exchange is not used, and replicas repeat the same work.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hpcgnn import kernels
from hpcgnn.attention.operator import Softmax
from hpcgnn.attention.relations import RelationScores
from hpcgnn.attention.scores import (
    AdditiveScores,
    AttentionInput,
    DynamicScores,
    ProductScores,
    ScoredRows,
    Scores,
)
from hpcgnn.attention.softmax import AttentionState
from hpcgnn.comm import ProcessGrid
from hpcgnn.kernels import (
    AdditiveScore,
    DynamicScore,
    Gradients,
    ProductScore,
    Rounding,
    Score,
    SoftmaxGradient,
)
from hpcgnn.operator import Meanwhile
from hpcgnn.sparse import MAIN, DistCSR, EdgeFeatures, LocalCSR
from hpcgnn.spmd import collective
from hpcgnn.spmm import Combine, Exchange, GhostExchange, IntegerSums, RemotePart
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

_CHUNK_VALUES = 1 << 20
"""Gathered values of edges in memory at a time."""

_MORE_BITS = 5
"""Bits of an edge's term below its upper bound, in addition to those of its dtype, since the bound
is some bits too large. Sums of up to 7 terms fit in 4 bytes, of up to 2047 in 5."""


class Exact(Protocol):
    """Arithmetic in main memory with equal bits at any distribution of rows."""

    def product_of(self, rows: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return ``rows matrix``."""

    @collective
    def total_of(self, rows: FloatArray) -> FloatArray:
        """Return the sum over the rows of all ranks."""

    @collective
    def contract_of(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return ``leftᵀ right`` over the rows of all ranks."""


class _Edges:
    """Edges between lines and ends that are both on this rank, each line in the order of its ends.

    `indptr` and `ends` (nnz,) int32 are those of a `LocalCSR` of `shape` (lines, ends); `features`
    are (nnz, F). Lines are targets if `by_row`, values otherwise; `rows` and `columns` (nnz,) int32
    are the positions of each edge's target and value among those on this rank.
    """

    def __init__(
        self,
        indptr: Offsets,
        ends: LocalIndices,
        features: FloatArray,
        shape: tuple[int, int],
        *,
        by_row: bool,
    ) -> None:
        self.edges, self.features = LocalCSR(indptr, ends, None, shape), features
        self.lines = self.edges.entry_rows().astype(np.int32)
        self.rows: LocalIndices = self.lines if by_row else ends
        self.columns: LocalIndices = ends if by_row else self.lines
        self.block = kernels.Block(indptr, ends, whole_lines=True)
        self._in_order = np.arange(len(ends), dtype=np.int32)

    @cached_property
    def transposed(self) -> tuple[kernels.Block, LocalIndices]:
        """The edges by their other ends, and the position (nnz,) of each edge among these."""
        indptr, lines, _, numbers = kernels.transpose_csr(
            self.edges.indptr, self.edges.indices, None, self.edges.shape[1], with_source=True
        )
        positions = np.empty(len(lines), np.int32)
        positions[numbers] = np.arange(len(lines), dtype=np.int32)
        return kernels.Block(indptr, lines, whole_lines=True), positions

    def total(self, of_edges: FloatArray, positions: LocalIndices | None = None) -> FloatArray:
        """Return the sums over the edges of each line, (lines, H), added in their order.

        `positions` (nnz,) are those of the edges in `of_edges`; None: in order.
        """
        out = np.empty((self.edges.shape[0], of_edges.shape[1]), of_edges.dtype)
        positions = self._in_order if positions is None else positions
        kernels.spmm(kernels.SparseMatrix(self.edges.indptr, positions), of_edges, out)
        return out

    def weighted(self, weights: FloatArray, rows: FloatArray) -> FloatArray:
        """Return (lines, H * D) sums of the ends' rows (ends, H * D) with edge weights (nnz, H)."""
        blocks = map(np.ascontiguousarray, np.split(rows, weights.shape[1], axis=1))
        sums = [self.sums(column, block) for column, block in zip(weights.T, blocks, strict=True)]
        return np.concatenate(sums, axis=1)

    def sums(self, weights: FloatArray, rows: FloatArray) -> FloatArray:
        """Return (lines, any) sums of the ends' rows (ends, any) with edge weights (nnz,)."""
        out = np.empty((self.edges.shape[0], rows.shape[1]), rows.dtype)
        self.edges.with_values(np.ascontiguousarray(weights)).matmul(rows, out)
        return out

    def inner_products(self, targets: FloatArray, values: FloatArray, heads: int) -> FloatArray:
        """Return for each edge and head (nnz, H) the inner product of its target and value."""
        width = targets.shape[1] // max(heads, 1)
        out = np.empty((len(self.lines), heads), targets.dtype)
        step = max(1, _CHUNK_VALUES // max(1, targets.shape[1]))
        for start in range(0, len(out), step):
            chunk = slice(start, start + step)
            products = targets[self.rows[chunk]] * values[self.columns[chunk]]
            out[chunk] = products.reshape(-1, heads, width).sum(axis=2)
        return out

    def largest(self, of_edges: FloatArray) -> FloatArray:
        """Return the largest number of each line, (lines, H); -inf without edges."""
        out = np.full((self.edges.shape[0], of_edges.shape[1]), -np.inf, of_edges.dtype)
        occupied = np.flatnonzero(np.diff(self.edges.indptr))
        if len(occupied):
            starts = self.edges.indptr[:-1][occupied]
            out[occupied] = np.maximum.reduceat(of_edges, starts, axis=0)
        return out


@dataclass(frozen=True, eq=False)
class _Part:
    """The edges of one relation, between all of its targets and the values that its edges read.

    `rows` and `columns` are the positions of these among the targets and values of all relations.
    """

    edges: _Edges
    rows: LocalIndices | slice
    columns: LocalIndices | slice

    def saved(self, of_all: SoftmaxGradient) -> SoftmaxGradient:
        """Return the saved arrays of its targets."""
        return SoftmaxGradient(
            of_all.lse[self.rows], of_all.grad[self.rows], of_all.delta[self.rows]
        )


class _Side(_Edges):
    """The edges of this rank's rows or of its columns, whichever ranks have the other ends.

    `entries` are, for each edge, its line on this rank (nnz,) int32, the global number of its other
    end, int64, a key that sorts the ends of a line, int64 (of a row: its node, then its relation),
    and features (nnz, F). `far_ghosts` are the ends on other ranks, whose rows `moves` fetches;
    None: there are none.
    """

    def __init__(
        self,
        matrix: DistCSR,
        entries: tuple[LocalIndices, GlobalIndices, GlobalIndices, FloatArray],
        moves: GhostExchange | None,
        *,
        by_row: bool,
    ) -> None:
        lines, far_ends, keys, features = entries
        num_lines, num_rows = matrix.shape if by_row else matrix.shape[::-1]
        row_map = matrix.row_map if by_row else matrix.result_map
        order = np.lexsort((keys, lines))
        lines, far_ends = lines[order], far_ends[order]
        local = row_map.is_local(far_ends)
        ghosts, numbers = np.unique(far_ends[~local], return_inverse=True)
        positions = matrix.column_positions() if by_row else matrix.row_positions()
        self.far_ghosts, self._moves = ghosts, moves
        ends = np.empty(len(far_ends), np.int32)
        local_rows = row_map.to_local(far_ends[local])
        ends[local] = local_rows if positions is None else positions[local_rows]
        ends[~local] = num_rows + numbers
        shape = num_lines, num_rows + len(ghosts)
        super().__init__(_offsets(lines, num_lines), ends, features[order], shape, by_row=by_row)
        self._by_row, self._num_kinds = by_row, matrix.num_relations
        # The relation of each target.
        self._kinds = np.zeros(shape[1 - by_row], np.int64)
        self._kinds[: matrix.shape[0]] = _nodes(matrix)[0]
        if not by_row:
            self._kinds[ends] = keys[order] % matrix.num_relations

    @cached_property
    def parts(self) -> list[_Part]:
        """The edges of each relation."""
        of_edges, parts = self._kinds[self.rows], []
        for relation in range(self._num_kinds):
            numbers = np.flatnonzero(of_edges == relation)
            rows = np.flatnonzero(self._kinds == relation).astype(np.int32)
            columns = np.unique(self.columns[numbers])
            row_of = _positions_of(rows, self.rows[numbers])
            column_of = _positions_of(columns, self.columns[numbers])
            lines, ends = (row_of, column_of) if self._by_row else (column_of, row_of)
            shape = (len(rows), len(columns)) if self._by_row else (len(columns), len(rows))
            indptr = _offsets(lines, shape[0])
            edges = _Edges(indptr, ends, self.features[numbers], shape, by_row=self._by_row)
            parts.append(_Part(edges, _span(rows), _span(columns)))
        return parts

    @collective
    def ghosts(self, rows: FloatArray, trace: TraceRecorder) -> FloatArray:
        """Return the rows of the ghosts, given this rank's rows."""
        return _fetched(self._moves, rows, trace)

    @collective
    def fetch(self, rows: FloatArray, trace: TraceRecorder) -> FloatArray:
        """Return this rank's rows, followed by those of the ghosts."""
        return _joined(rows, self.ghosts(rows, trace))

    @collective
    def sum(self, rows: FloatArray, trace: TraceRecorder) -> FloatArray:
        """Return the sums of the rows at the other ends, (lines, width)."""
        out = np.empty((self.edges.shape[0], rows.shape[1]), rows.dtype)
        self.edges.matmul(self.fetch(rows, trace), out)
        return out


class _OnePerNode:
    """A fetch of rows that are the same for all relations of a node: each travels once.

    `matrix` has a row for each node and relation, `ghosts` (n,) int64 are those of its rows to
    fetch. `by_node` has a row for each node, and `pushing` fetches its rows.
    """

    @collective
    def __init__(
        self, matrix: DistCSR, by_node: DistCSR, pushing: Exchange, ghosts: GlobalIndices
    ) -> None:
        _, remote = pushing.bind(by_node)
        self._moves = None if remote is None else remote.ghosts
        nodes = _keys(matrix, ghosts) // matrix.num_relations
        self._numbers = np.searchsorted(pushing.targets, nodes)
        _, self._first = np.unique(_nodes(matrix)[1], return_index=True)

    @collective
    def fetch(self, rows: FloatArray, trace: TraceRecorder) -> FloatArray:
        """Return this rank's rows, followed by those of the ghosts, as `_Side.fetch` does."""
        ghosts = _fetched(self._moves, rows[self._first], trace)
        return _joined(rows, ghosts[self._numbers])


@collective
def _fetched(moves: GhostExchange | None, rows: FloatArray, trace: TraceRecorder) -> FloatArray:
    """Return the rows of the ghosts, given this rank's rows; None: there are no ghosts."""
    if moves is None:
        return rows[:0]
    fetch = moves.start_fetch(np.ascontiguousarray(rows), keep=True)
    with trace.span("wait.forward"):
        return fetch.stage(0)


def _offsets(lines: Array, num_lines: int) -> Offsets:
    """Return the offsets of the lines, given the sorted lines of the edges."""
    counts = np.bincount(lines, minlength=num_lines)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _span(numbers: LocalIndices) -> LocalIndices | slice:
    """Return increasing numbers as a slice if they are consecutive: slices copy no rows."""
    start, stop = (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)
    return slice(start, stop) if stop - start == len(numbers) else numbers


def _positions_of(sorted_nodes: LocalIndices, nodes: LocalIndices) -> LocalIndices:
    """Return the int32 positions of nodes in a sorted array that has them all."""
    return np.searchsorted(sorted_nodes, nodes).astype(np.int32)


def _joined(rows: FloatArray, ghosts: FloatArray) -> FloatArray:
    return np.concatenate([rows, ghosts]) if len(ghosts) else rows


def _rectified(sums: FloatArray, numbers: FloatArray, slope: float) -> FloatArray:
    """Return numbers times the derivative of the leaky rectifier at `sums`."""
    return np.where(sums > 0, numbers, numbers * numbers.dtype.type(slope))


class _Passes(ABC):
    """The passes over the edges of a side, given its targets and values.

    `saved` has rows for the targets; results have rows for the side's lines.
    """

    def __init__(
        self,
        exact: Exact,
        side: _Edges,
        scores: Scores,
        targets: FloatArray,
        values: FloatArray,
    ) -> None:
        self.exact, self.side, self.scores = exact, side, scores
        self.targets, self.values, self.heads = targets, values, scores.heads
        self.features = side.features if scores.reads_edges else side.features[:, :0]

    @abstractmethod
    def attend(self, out: FloatArray, bias: FloatArray | None) -> FloatArray:
        """Write the means to `out`, plus a bias; return (rows, H) the log-sum-exps of logits."""

    @abstractmethod
    def transpose_rows(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        """Return the gradients of targets and (H, any) the weights' gradients known to rows.

        Lines are rows; gradients of weights are sums over all ranks. Collective.
        """

    @abstractmethod
    def transpose_columns(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        """Return the gradients of values and (H, any) the weights' gradients known to columns.

        Lines are columns; gradients of weights are sums over all ranks. Collective.
        """

    @collective
    def transpose_pushed(
        self, saved: SoftmaxGradient, pushed: "PushedSums"
    ) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Return the gradients of this rank's values, of targets and of weights; lines are rows.

        None: gradients of values are not pushed; they need a walk over columns.
        """
        del saved, pushed
        return None

    @collective
    def transpose_fixed(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray] | None:
        """Return the gradients of targets and, over all ranks, of weights (H, any).

        Lines are rows. None: the gradients of weights need a walk over columns.
        """
        del saved
        return None

    def contract(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return ``leftᵀ right`` over all ranks; without columns there is no sum over ranks."""
        if not right.shape[1]:
            return np.empty((left.shape[1], 0), left.dtype)
        return self.exact.contract_of(left, right)

    def nothing(self) -> FloatArray:
        """Return the gradient of no weights."""
        return np.empty((self.heads, 0), self.targets.dtype)


class _ByKernel(_Passes):
    """Passes by the kernels of the default attention."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.score = self.scores.operands(MAIN, ScoredRows(self.values, self.targets))

    def attend(self, out: FloatArray, bias: FloatArray | None) -> FloatArray:
        shape = self.side.edges.shape[0], self.heads, self.scores.result_width(self.values)
        state = AttentionState.empty(*shape, self.targets.dtype)
        kernels.attention_forward(self.side.block, self.score, state)
        state.finish(out, bias)
        return state.top

    def transpose_rows(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        score = self.score
        assert isinstance(score, DynamicScore | ProductScore)
        vectors = np.zeros_like(self.targets) if self.scores.vector.size else None
        into = Gradients(None, np.zeros_like(self.targets), vectors)
        kernels.attention_backward_rows(self.side.block, score, saved, into)
        if vectors is None:
            return into.targets, self.nothing()
        return into.targets, self.exact.total_of(vectors).reshape(self.heads, -1)

    def transpose_columns(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        into = Gradients(np.zeros_like(self.values), np.empty_like(self.targets))
        kernels.attention_backward(self.side.block, self.score, saved, into)
        assert into.values is not None
        return into.values, self.nothing()


class _Rounded(_ByKernel):
    """Passes that push the gradients of values; lines are rows.

    Each edge's term is rounded by itself, so the order of their sums does not matter.
    """

    @collective
    def _pushed(
        self, saved: SoftmaxGradient, pushed: "PushedSums", score: Score, into: Gradients
    ) -> FloatArray:
        """Return the edges' terms summed by value (own values, any); add all others to `into`."""
        block, _ = self.side.transposed
        top = self._top(saved, pushed.sums)
        # A column with a bound of infinity has NaN for all of its sums.
        top[~np.isfinite(top)] = np.inf

        def add_up(scale: FloatArray, bits: int, digits: int) -> FloatArray:
            sums = np.zeros((len(self.values), digits * len(top)))
            rounded = replace(into, values=sums, rounding=Rounding(scale, digits, bits))
            with pushed.sums.trace.span("interior.reverse"):
                kernels.attention_backward(block, score, saved, rounded)
            return pushed.home(sums)

        return pushed.sums.join(add_up, 1.01 * top, self.values.dtype)

    def transpose_pushed(
        self, saved: SoftmaxGradient, pushed: "PushedSums"
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        for_targets, of_weights = self.transpose_rows(saved)
        into = Gradients(None, np.empty_like(self.targets))
        return self._pushed(saved, pushed, self.score, into), for_targets, of_weights

    @abstractmethod
    def _top(self, saved: SoftmaxGradient, sums: IntegerSums) -> FloatArray:
        """Return (any,) bounds for the edges' terms by column on all ranks, up to rounding."""

    @collective
    def _tops(self, saved: SoftmaxGradient, sums: IntegerSums) -> tuple[FloatArray, FloatArray]:
        """Return (H * D,) the largest gradients of any rank, and (H,) bounds for those of logits.

        A coefficient s is at most 1. The gradient of a logit is ``s (<g, z> - delta)``, with delta
        the mean of the products: at most ``2 s (1 - s)`` times the lengths of g and z.
        """
        grad = saved.grad
        tables = grad, self._squares(grad), self._squares(self.values)
        columns, of_grad, of_values = _largest(sums, *tables)
        through = np.sqrt(of_grad) * np.sqrt(of_values) / 2 * max(abs(self.scores.slope), 1)
        return columns, through

    def _squares(self, rows: FloatArray) -> FloatArray:
        """Return (any, H) the squared length of each head's part of the rows."""
        squares = np.empty((len(rows), self.heads), rows.dtype)
        kernels.attention_delta(rows, rows, squares)
        return squares


@collective
def _largest(sums: IntegerSums, *tables: FloatArray) -> list[FloatArray]:
    """Return for each table (any, n) the largest magnitudes by column of all ranks, float64."""
    tops = sums.largest(np.concatenate([kernels.column_largest(table) for table in tables]))
    return np.split(tops, np.cumsum([table.shape[1] for table in tables])[:-1])


class _PlainDynamic(_Rounded):
    """``<a, L(t_i + z_j)>``."""

    def _top(self, saved: SoftmaxGradient, sums: IntegerSums) -> FloatArray:
        columns, through = self._tops(saved, sums)
        top: FloatArray = columns + (through[:, None] * np.abs(self.scores.vector)).reshape(-1)
        return top


class _PlainProduct(_Rounded):
    """``<t_i, k_j>``, with ``v_j`` summed; values hold k_j and then v_j of each head."""

    def _top(self, saved: SoftmaxGradient, sums: IntegerSums) -> FloatArray:
        grad, targets, delta = saved.grad, self.targets, saved.delta
        tables = grad, targets, delta, self._squares(grad), self._squares(self.values)
        columns, of_targets, of_delta, of_grad, of_values = _largest(sums, *tables)
        # As in `_tops`, except that delta also has the gradient of the log-sum-exp.
        through = np.sqrt(of_grad) * np.sqrt(of_values) + of_delta
        of_keys = through[:, None] * of_targets.reshape(self.heads, -1)
        both = np.stack([of_keys, columns.reshape(of_keys.shape)], axis=1)
        return both.reshape(-1)


class _Additive(_Rounded):
    """``L(t_i + <a, z_j> + <u, e_ij>)``: its kernel walks columns and writes edges' gradients."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        features, self.edges = self.features, None
        if features.shape[1]:
            self.edges = self.exact.product_of(features, self.scores.edge_weights.T)
        assert isinstance(self.score, AdditiveScore)
        self.score = replace(self.score, weights=None, edges=self.edges)

    def transpose_rows(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        return self._of_edges(self._through(saved))

    def _through(self, saved: SoftmaxGradient) -> FloatArray:
        """Return (nnz, H) the gradients of logits, in the order of columns."""
        block, _ = self.side.transposed
        edges = self._edges_by_column()
        through = np.empty_like(edges)
        self._walk(block, edges, saved, Gradients(None, self.targets, edges=through))
        return through

    def of_edges(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        """Return (nnz, H) the gradients of logits and the coefficients, without edge features."""
        assert isinstance(self.score, AdditiveScore)
        rows, (_, positions) = self.side.rows, self.side.transposed
        sums = self.targets[rows] + self.score.source[self.side.columns]
        logits = _rectified(sums, sums, self.scores.slope)
        return self._through(saved)[positions], np.exp(logits - saved.lse[rows])

    def transpose_columns(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        for_values = np.zeros_like(self.values)
        unused = None if self.edges is None else np.empty_like(self.edges)
        into = Gradients(for_values, self.targets, edges=unused)
        for_source = self._walk(self.side.block, self.edges, saved, into)
        return for_values, self._of_sources(for_source, for_values)

    def transpose_pushed(
        self, saved: SoftmaxGradient, pushed: "PushedSums"
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        edges = self._edges_by_column()
        assert isinstance(self.score, AdditiveScore)
        through, source = np.empty_like(edges), np.zeros_like(self.score.source)
        into = Gradients(None, np.zeros_like(self.targets), source=source, edges=through)
        sums = self._pushed(saved, pushed, replace(self.score, edges=edges), into)
        parts = np.split(sums, [self.values.shape[1]], axis=1)
        for_values, for_source = map(np.ascontiguousarray, parts)
        for_targets, of_features = self._of_edges(through)
        of_vectors = self._of_sources(for_source, for_values).reshape(self.heads, -1)
        return for_values, for_targets, np.concatenate([of_vectors, of_features], axis=1)

    def _top(self, saved: SoftmaxGradient, sums: IntegerSums) -> FloatArray:
        return np.concatenate(self._tops(saved, sums))

    def _edges_by_column(self) -> FloatArray:
        """Return (nnz, H) the features' shares of logits, in the order of a walk over columns."""
        _, positions = self.side.transposed
        edges = np.zeros((len(positions), self.heads), self.targets.dtype)
        if self.edges is not None:
            edges[positions] = self.edges
        return edges

    @collective
    def _of_edges(self, through: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the results of `transpose_rows`, given logits' gradients in column order."""
        _, positions = self.side.transposed
        for_targets = self.side.total(through, positions)
        if self.edges is None:
            return for_targets, self.nothing()
        return for_targets, self.contract(through[positions], self.features)

    @collective
    def _of_sources(self, for_source: FloatArray, for_values: FloatArray) -> FloatArray:
        """Return the gradients of vectors over all ranks, and add to those of values.

        `for_source` (own values, H) are the gradients of the values' shares of logits.
        """
        vector, values = self.scores.vector, self.values[: len(for_source)]
        by_head = for_source[:, :, None]
        for_values += (by_head * vector).reshape(values.shape)
        # Without rows, NumPy cannot infer a width of -1.
        products = by_head * values.reshape(len(values), *vector.shape)
        return self.exact.total_of(products.reshape(values.shape))

    def _walk(
        self,
        block: kernels.Block,
        edges: FloatArray | None,
        saved: SoftmaxGradient,
        into: Gradients,
    ) -> FloatArray:
        """Add to gradients of values and edges; return those of the values' shares of logits."""
        assert isinstance(self.score, AdditiveScore)
        # The kernel adds up those of targets in an order that depends on the distribution.
        unused, for_source = np.zeros_like(self.targets), np.zeros_like(self.score.source)
        into = replace(into, targets=unused, source=for_source)
        kernels.attention_backward(block, replace(self.score, edges=edges), saved, into)
        return for_source


class _AtEdges(_Passes):
    """Passes with coefficients and gradients of logits in arrays of edges.

    `through` (nnz, H) are gradients of logits, `share` (nnz, H) coefficients, and `gradient` (any,
    H * D) is that of the result, by target. Means and gradients are those of the side's lines.
    """

    def attend(self, out: FloatArray, bias: FloatArray | None) -> FloatArray:
        logits, side = self.logits(), self.side
        top = side.largest(logits)
        weights = np.exp(logits - top[side.lines])
        total = side.total(weights)
        weights /= total[side.lines]
        out[:] = self.means(weights)
        if bias is not None:
            out += bias
        with np.errstate(divide="ignore"):
            # Rows without edges keep their maximum, -inf.
            lse: FloatArray = np.where(total > 0, top + np.log(total), top)
        return lse

    def transpose_rows(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        return self.for_targets(*self._backward(saved), saved.grad)

    def transpose_columns(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        return self.for_values(*self._backward(saved), saved.grad)

    def _backward(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        """Return the gradients of logits and the coefficients, each (nnz, H)."""
        rows = self.side.rows
        share = np.exp(self.logits() - saved.lse[rows])
        return share * (self.inner(saved.grad) - saved.delta[rows]), share

    @abstractmethod
    def logits(self) -> FloatArray:
        """Return the logits of edges, (nnz, H)."""

    def inner(self, gradient: FloatArray) -> FloatArray:
        """Return (nnz, H) inner products of the gradient and the summed values."""
        return self.side.inner_products(gradient, self.values, self.heads)

    def means(self, share: FloatArray) -> FloatArray:
        """Return (lines, H * D) means weighted by the coefficients; lines are rows."""
        return self.side.weighted(share, self.values)

    @abstractmethod
    def for_targets(
        self, through: FloatArray, share: FloatArray, gradient: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the results of `transpose_rows`. Collective."""

    @abstractmethod
    def for_values(
        self, through: FloatArray, share: FloatArray, gradient: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the results of `transpose_columns`. Collective."""

    @property
    def maps(self) -> FloatArray:
        """The maps of edge features, (H, D, F), where they are added to all columns of a row."""
        shape = self.heads, self.values.shape[1] // self.heads, self.features.shape[1]
        return self.scores.edge_weights.reshape(shape)

    def _heads(self, rows: FloatArray) -> list[FloatArray]:
        return [np.ascontiguousarray(block) for block in np.split(rows, self.heads, axis=1)]


class _Dynamic(_AtEdges):
    """``<a, L(t_i + z_j + W e_ij)>``; only one head's keys of edges are in memory at a time."""

    def logits(self) -> FloatArray:
        logits = [
            (vector * _rectified(keys, keys, self.scores.slope)).sum(axis=1)
            for vector, keys in zip(self.scores.vector, self._keys(), strict=True)
        ]
        return np.stack(logits, axis=1)

    def for_targets(
        self, through: FloatArray, share: FloatArray, gradient: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        for_targets, of_vectors, of_maps, slope = [], [], [], self.scores.slope
        for head, keys in enumerate(self._keys()):
            of_logit, vector = through[:, head, None], self.scores.vector[head]
            of_vectors.append(self.side.total(of_logit * _rectified(keys, keys, slope)))
            for_keys = _rectified(keys, of_logit * vector, slope)
            for_targets.append(self.side.total(for_keys))
            of_maps.append(self.contract(for_keys, self.features).reshape(-1))
        # The walk over rows gives the whole gradient of the weights.
        of_vector = self.exact.total_of(np.concatenate(of_vectors, axis=1))
        of_weights = [of_vector.reshape(self.heads, -1), np.stack(of_maps)]
        return np.concatenate(for_targets, axis=1), np.concatenate(of_weights, axis=1)

    def for_values(
        self, through: FloatArray, share: FloatArray, gradient: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        for_values = self.side.weighted(share, gradient)
        width = for_values.shape[1] // self.heads
        for head, keys in enumerate(self._keys()):
            for_keys = through[:, head, None] * self.scores.vector[head]
            for_keys = _rectified(keys, for_keys, self.scores.slope)
            for_values[:, head * width : (head + 1) * width] += self.side.total(for_keys)
        return for_values, self.nothing()

    def _keys(self) -> Iterator[FloatArray]:
        """Yield (nnz, D) for each head."""
        maps, width = self.maps, self.values.shape[1] // self.heads
        for head in range(self.heads):
            columns = slice(head * width, (head + 1) * width)
            keys = self.targets[self.side.rows, columns] + self.values[self.side.columns, columns]
            if self.features.shape[1]:
                keys += self.exact.product_of(self.features, maps[head].T)
            yield keys


class _Product(_AtEdges):
    """``<t_i, k_j + W e_ij>``, with ``v_j + W e_ij`` summed; W multiplies rows, not single edges.

    Values hold k_j and then v_j of each head.
    """

    def __init__(self, exact: Exact, side: _Side, *inputs: Any) -> None:
        super().__init__(exact, side, *inputs)
        width = self.values.shape[1] // 2
        pairs = self.values.reshape(len(self.values), self.heads, 2, width // self.heads)
        self._keys, self.values = (
            np.ascontiguousarray(pairs[:, :, half]).reshape(len(pairs), width) for half in (0, 1)
        )

    def logits(self) -> FloatArray:
        logits = self.side.inner_products(self.targets, self._keys, self.heads)
        return logits + self._with_features(self.targets)

    def inner(self, gradient: FloatArray) -> FloatArray:
        return super().inner(gradient) + self._with_features(gradient)

    def means(self, share: FloatArray) -> FloatArray:
        return super().means(share) + self._mapped(self._of_features(share))

    def for_targets(
        self, through: FloatArray, share: FloatArray, gradient: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        sums, means = self._of_features(through), self._of_features(share)
        for_targets = self.side.weighted(through, self._keys) + self._mapped(sums)
        of_maps = [
            self.contract(lower, sum_of) + self.contract(upper, mean_of)
            for lower, sum_of, upper, mean_of in zip(
                self._heads(self.targets), sums, self._heads(gradient), means, strict=True
            )
        ]
        return for_targets, np.stack([gradient_of_map.reshape(-1) for gradient_of_map in of_maps])

    def for_values(
        self, through: FloatArray, share: FloatArray, gradient: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        pairs = self.side.weighted(through, self.targets), self.side.weighted(share, gradient)
        shape = len(pairs[0]), self.heads, pairs[0].shape[1] // self.heads
        stacked = np.stack([rows.reshape(shape) for rows in pairs], axis=2)
        for_values = stacked.reshape(len(stacked), 2 * pairs[0].shape[1])
        return for_values, self.nothing()

    def _with_features(self, rows: FloatArray) -> FloatArray:
        """Return (nnz, H) ``<row_i, W e_ij>`` of rows (targets, H * D)."""
        products, features = np.zeros((len(self.features), self.heads), rows.dtype), self.features
        if features.shape[1]:
            maps = self.maps
            for head, (head_rows, weights) in enumerate(zip(self._heads(rows), maps, strict=True)):
                by_feature = self.exact.product_of(head_rows, weights)[self.side.rows]
                products[:, head] = (by_feature * features).sum(axis=1)
        return products

    def _of_features(self, weights: FloatArray) -> list[FloatArray]:
        """Return for each head (lines, F) sums of features with edge weights (nnz, H)."""
        return [self.side.total(column[:, None] * self.features) for column in weights.T]

    def _mapped(self, sums: list[FloatArray]) -> FloatArray:
        """Return (lines, H * D) W times the sums of features."""
        maps = self.maps
        mapped = [
            self.exact.product_of(rows, weights.T) for rows, weights in zip(sums, maps, strict=True)
        ]
        return np.concatenate(mapped, axis=1)


class _Relations(_Passes):
    """``L(t_i + <a_r, W_r x_j>)``, with ``W_r x_j`` summed: the edges of one relation at a time.

    Values are x, (any, F), of which a relation maps those that its edges read.
    """

    side: _Side
    scores: RelationScores

    def attend(self, out: FloatArray, bias: FloatArray | None) -> FloatArray:
        lse = np.empty_like(self.targets)
        for relation, part in enumerate(self.side.parts):
            means = out[part.rows]
            lse[part.rows] = self._walked(relation, part).attend(means, bias)
            if not isinstance(part.rows, slice):
                out[part.rows] = means
        return lse

    def transpose_rows(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        for_targets = np.empty_like(self.targets)
        for relation, part in enumerate(self.side.parts):
            walked = self._walked(relation, part)
            for_targets[part.rows], _ = walked.transpose_rows(part.saved(saved))
        return for_targets, self.nothing()

    def transpose_fixed(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        # Values are summed before they are mapped, so rows give the whole gradient of weights.
        for_targets, of_weights = np.empty_like(self.targets), []
        for relation, part in enumerate(self.side.parts):
            of_part, x = part.saved(saved), np.ascontiguousarray(self.values[part.columns])
            through, share = self._walked(relation, part).of_edges(of_part)
            for_targets[part.rows] = part.edges.total(through)
            width = of_part.grad.shape[1] // self.heads
            ends = zip(np.split(of_part.grad, self.heads, axis=1), share.T, strict=True)
            of_maps = [self.exact.contract_of(g, part.edges.sums(s, x)) for g, s in ends]
            sums = np.concatenate([part.edges.sums(column, x) for column in through.T], axis=1)
            of_logits = self.exact.total_of(sums).reshape(self.heads, -1)
            vectors = self.scores.vectors[:, relation]
            of_both = np.stack(of_maps) + vectors[:, :, None] * of_logits[:, None]
            mapped = self.exact.product_of(of_logits, self._map(relation).T)
            parts = [row[h * width : (h + 1) * width] for h, row in enumerate(mapped)]
            of_vectors = np.stack(parts)
            of_weights.append(np.concatenate([of_both, of_vectors[:, :, None]], axis=2))
        return for_targets, np.stack(of_weights, axis=1).reshape(self.heads, -1)

    def transpose_columns(self, saved: SoftmaxGradient) -> tuple[FloatArray, FloatArray]:
        for_values, of_weights = np.zeros_like(self.values), []
        for relation, part in enumerate(self.side.parts):
            walked = self._walked(relation, part)
            through, of_vectors = walked.transpose_columns(part.saved(saved))
            # Columns of a relation are distinct, so += adds each once.
            for_values[part.columns] += self.exact.product_of(through, self._map(relation))
            of_map = self.exact.contract_of(through, self.values[part.columns])
            shape = self.scores.vectors[:, relation].shape
            gradients = of_map.reshape(*shape, -1), of_vectors.reshape(*shape, 1)
            of_weights.append(np.concatenate(gradients, axis=2))
        return for_values, np.stack(of_weights, axis=1)

    def _walked(self, relation: int, part: _Part) -> _Additive:
        """Return the passes over the edges of a relation."""
        vectors = np.ascontiguousarray(self.scores.vectors[:, relation])
        scores = AdditiveScores(vectors, self.scores.slope)
        values = self.exact.product_of(self.values[part.columns], self._map(relation).T)
        return _Additive(self.exact, part.edges, scores, self.targets[part.rows], values)

    def _map(self, relation: int) -> FloatArray:
        """Return W_r of all heads, (H * D, F)."""
        maps = self.scores.maps[:, relation]
        return maps.reshape(-1, maps.shape[2])


_KINDS: Mapping[type[Scores], type[_Passes]] = {
    AdditiveScores: _Additive,
    DynamicScores: _Dynamic,
    ProductScores: _Product,
    RelationScores: _Relations,
}
_PLAIN: Mapping[type[Scores], type[_Passes]] = {
    DynamicScores: _PlainDynamic,
    ProductScores: _PlainProduct,
}
"""Used instead of those in `_KINDS` where edges have no features."""


@dataclass(frozen=True, eq=False)
class PushedSums:
    """Sums of integers for the columns of a pattern, to which other ranks contribute.

    `ghosts` moves the contributions; this rank has `num_own` columns.
    """

    ghosts: GhostExchange
    num_own: int
    sums: IntegerSums

    @classmethod
    @collective
    def of(
        cls,
        grid: ProcessGrid,
        matrix: DistCSR,
        fetching: Exchange,
        trace: TraceRecorder,
        most: float | None,
    ) -> "PushedSums":
        """Return the sums for a pattern, moved by the exchange that fetches all columns.

        `most` is the largest number of entries of any column; None: they are counted.
        """
        fetched, _ = fetching.bind(matrix)
        sums = cls(fetched.ghosts, matrix.shape[1], IntegerSums(grid, trace, 0))
        parts = matrix.diagonal, matrix.remote
        counts = [np.bincount(part.indices, minlength=part.shape[1]) for part in parts]
        with grid.run_position.counting():
            terms = sums.home(np.concatenate(counts).astype(np.float64)[:, None])
        if most is not None:
            terms = np.array([[most]])
        return replace(sums, sums=IntegerSums.of(grid, trace, terms, _MORE_BITS))

    @collective
    def home(self, parts: FloatArray) -> FloatArray:
        """Return (own columns, width) sums over all ranks, given those of columns and ghosts."""
        of_columns, of_ghosts = np.split(parts, [self.num_own])

        def add(rows: LocalIndices, arrived: Array) -> None:
            kernels.scatter_add_rows(arrived, rows, of_columns)

        push = self.ghosts.start_push(of_ghosts[:0], Combine(add))
        push.buffer(0)[:] = of_ghosts
        push.send(0)
        push.finish()
        return of_columns


class ExactAttention:
    """A pattern that aggregates by attention with equal bits at any distribution.

    An `AttentionOperator` for the scores of `_KINDS` without dropout of edges. The first of the
    `exchanges` fetches all columns. The second is a function that makes an exchange which pushes
    all rows of a pattern and fetches them in the backward pass; it is not called with `pushed`
    sums. None: nothing is pushed, or a rank has all rows of its graphs. `exact` sums over all
    ranks. With `keeps`, the backward pass reuses rows fetched in the forward pass. The matrix has
    no values or, if there are features of `edges`, the edges' numbers.
    """

    whole = None

    @collective
    def __init__(
        self,
        matrix: DistCSR,
        exchanges: tuple[Exchange, Callable[[DistCSR], Exchange]],
        trace: TraceRecorder,
        exact: Exact,
        edges: EdgeFeatures | None = None,
        *,
        pushed: PushedSums | None = None,
        keeps: bool = False,
    ) -> None:
        self._pushed = pushed
        self.trace, self.shape, self._exact, self._keeps = trace, matrix.shape, exact, keeps
        fetching, make_pushing = exchanges
        self.run_position = fetching.run_position
        fetched, _ = fetching.bind(matrix)
        self._rows = _Side(matrix, _entries(matrix, edges), fetched.ghosts, by_row=True)
        self._of_columns = make_pushing, matrix, edges
        self._columns: _Side | None = None
        self._of_nodes: _OnePerNode | None = None
        self.size = replace(fetching.size(matrix), num_moved=0)

    @collective
    def _columns_side(self) -> _Side:
        """Return the edges of this rank's columns, which the first call gathers."""
        if self._columns is None:
            make_pushing, matrix, edges = self._of_columns
            pushing = make_pushing(matrix)
            _, remote = pushing.bind(matrix)
            entries = _entries_of_columns(matrix, edges, remote, pushing.targets)
            moves = None if remote is None else remote.ghosts
            self._columns = _Side(matrix, entries, moves, by_row=False)
        return self._columns

    @collective
    def _one_per_node(self) -> _OnePerNode:
        """Return the fetch of rows that relations of a node share, which the first call makes."""
        if self._of_nodes is None:
            make_pushing, matrix, _ = self._of_columns
            by_node, ghosts = matrix.by_node(), self._columns_side().far_ghosts
            self._of_nodes = _OnePerNode(matrix, by_node, make_pushing(by_node), ghosts)
        return self._of_nodes

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
        return self._columns_side().sum(gradient, self.trace)

    @collective
    def attend(
        self, inputs: AttentionInput, out: FloatArray, *, bias: FloatArray | None = None, keep: bool
    ) -> Softmax:
        """Write the attention-weighted means of the rows; see `AttentionOperator`."""
        ghosts = self._rows.ghosts(inputs.values, self.trace)
        with self.trace.span("interior.forward"):
            values = _joined(inputs.values, ghosts)
            lse = self._at(self._rows, inputs.scores, inputs.targets, values).attend(out, bias)
        return Softmax(lse, (ghosts,) if keep and self._keeps else None)

    @collective
    def attend_transpose(
        self, inputs: AttentionInput, softmax: Softmax, gradient: FloatArray, delta: FloatArray
    ) -> Gradients:
        """Return the gradients of values, targets and, summed over all ranks, weights."""
        scores, values, targets, trace = inputs.scores, inputs.values, inputs.targets, self.trace
        side, saved = self._rows, SoftmaxGradient(softmax.lse, gradient, delta)
        (ghosts,) = softmax.fetched or (side.ghosts(values, trace),)
        passes = self._at(side, scores, targets, _joined(values, ghosts))
        if self._pushed is not None:
            gradients = passes.transpose_pushed(saved, self._pushed)
            if gradients is not None:
                for_values, for_targets, of_weights = gradients
                return Gradients(for_values, for_targets, of_weights.astype(scores.weights.dtype))
        with trace.span("interior.reverse"):
            fixed = passes.transpose_fixed(saved) if inputs.fixed else None
            if fixed is not None:
                for_targets, for_weights = fixed
                for_weights = for_weights.astype(scores.weights.dtype)
                return Gradients(np.zeros_like(values), for_targets, for_weights)
            for_targets, of_edges = passes.transpose_rows(saved)
        side, parts = self._columns_side(), [targets, softmax.lse, delta, gradient]
        per_node = scores.adds_relations and self._of_columns[1].num_relations > 1
        arrived = self._one_per_node().fetch(parts.pop(), trace) if per_node else None
        rows = side.fetch(np.concatenate(parts, axis=1), trace)
        with trace.span("interior.reverse"):
            ends = np.cumsum([part.shape[1] for part in parts])[:-1]
            of_targets, *rest = map(np.ascontiguousarray, np.split(rows, ends, axis=1))
            arrived = rest.pop() if arrived is None else arrived
            passes = self._at(side, scores, of_targets, values)
            for_values, of_vectors = passes.transpose_columns(
                SoftmaxGradient(rest[0], arrived, rest[1])
            )
        parts = [part.reshape(scores.heads, -1) for part in (of_vectors, of_edges)]
        for_weights = np.concatenate(parts, axis=1).astype(scores.weights.dtype)
        return Gradients(for_values, for_targets, for_weights)

    def _at(self, side: _Side, scores: Scores, *operands: FloatArray) -> _Passes:
        scoring = type(scores)
        walked = _KINDS[scoring] if scores.reads_edges else _PLAIN.get(scoring, _KINDS[scoring])
        return walked(self._exact, side, scores, *operands)


def _nodes(matrix: DistCSR) -> tuple[GlobalIndices, GlobalIndices]:
    """Return the relation of each row, and its local node, int64."""
    rows = np.arange(matrix.shape[0]) if matrix.row_nodes is None else matrix.row_nodes
    relations, nodes = np.divmod(rows.astype(np.int64), max(matrix.row_map.num_local, 1))
    return relations, nodes


def _entries(
    matrix: DistCSR, edges: EdgeFeatures | None
) -> tuple[LocalIndices, GlobalIndices, GlobalIndices, FloatArray]:
    """Return the row of each edge, its global column, its key and its features; see `_Side`."""
    diagonal, remote = matrix.diagonal, matrix.remote
    local_columns = _local_columns(matrix)
    columns = np.concatenate([matrix.row_map.start + local_columns, matrix.ghosts[remote.indices]])
    rows = np.concatenate([diagonal.entry_rows(), remote.entry_rows()])
    if edges is None:
        return rows, columns, columns, np.empty((len(rows), 0), np.float32)
    features = [edges.own(part).features for part in (diagonal, remote)]
    return rows, columns, columns, np.concatenate([part for part in features if part is not None])


@collective
def _entries_of_columns(
    matrix: DistCSR,
    edges: EdgeFeatures | None,
    pushed: RemotePart | None,
    targets: GlobalIndices,
) -> tuple[LocalIndices, GlobalIndices, GlobalIndices, FloatArray]:
    """Return the column of each edge, its global row, its key and its features; see `_Side`.

    `pushed` has the edges of other ranks' rows; `targets` are the global numbers of these.
    """
    relations, nodes = _nodes(matrix)
    positions, rows = matrix.column_positions(), matrix.diagonal.entry_rows()
    local_columns = _local_columns(matrix)
    lines = [local_columns if positions is None else positions[local_columns]]
    numbers = [(matrix.result_map.start + relations * matrix.row_map.num_local + nodes)[rows]]
    features = [] if edges is None else [edges.own(matrix.diagonal).features]
    blocks: list[LocalCSR] = []
    if pushed is not None:
        blocks = [block for block in pushed.blocks if isinstance(block, LocalCSR)]
        if edges is not None:
            blocks = list(edges.others(blocks))
        lines += [block.entry_rows() for block in blocks]
        numbers += [targets[block.indices] for block in blocks]
        features += [block.features for block in blocks if edges is not None]
    rows_of_all = np.concatenate(numbers)
    read = [values for values in features if values is not None]
    of_edges = np.concatenate(read) if read else np.empty((len(rows_of_all), 0), np.float32)
    return np.concatenate(lines).astype(np.int32), rows_of_all, _keys(matrix, rows_of_all), of_edges


def _keys(matrix: DistCSR, rows: GlobalIndices) -> GlobalIndices:
    """Return keys that sort rows of the whole matrix by node, then by relation."""
    starts, owners = matrix.row_map.starts, matrix.result_map.owner(rows)
    local = rows - matrix.result_map.starts[owners]
    relations, nodes = np.divmod(local, np.maximum(np.diff(starts)[owners], 1))
    keys: GlobalIndices = (starts[owners] + nodes) * matrix.num_relations + relations
    return keys


def _local_columns(matrix: DistCSR) -> GlobalIndices:
    """Return the local node of each edge of the diagonal, int64."""
    columns: Array = matrix.diagonal.indices
    if matrix.column_nodes is not None:
        columns = matrix.column_nodes[columns]
    return columns.astype(np.int64)
