"""The scores of attention models: the operands of the fused kernels that score edges.

A score belongs to an edge and a head. It depends on the value of the column's node, the *target* of
the row's node and weights that all ranks hold. Only values travel: a column's share of the scores
is computed where it is used, from the same (perhaps rounded) numbers in the forward and backward
passes. Where values travel in few bits, shares of one number a head, the *sources*, travel beside
them unrounded, because a softmax magnifies rounding errors.

Features of edges never travel: a block has those of its entries. They add one number for each edge
and head to an additive score. Where they add to keys, rows of single edges are computed piece by
piece, attended to as separate columns, and computed again in the backward pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from hpcgnn import kernels
from hpcgnn.attention.softmax import widen
from hpcgnn.kernels import (
    AdditiveScore,
    Block,
    Draw,
    DynamicScore,
    EdgeDraw,
    Gradients,
    ProductScore,
    Score,
    SoftmaxGradient,
    SoftmaxState,
)
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.sparse.local import LocalMatrix, Memory
from hpcgnn.spmm.wire import ROWS
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

EDGE_BYTES = 8 << 20
"""Size of the rows of single edges that are in memory at one time."""


@dataclass(frozen=True, eq=False)
class AttentionInput:
    """The operands of an attention.

    The weights of `scores` are equal on all ranks. `values` (columns, H * D) are C-contiguous, in
    the dtype of targets, or bfloat16 as uint16; `targets` are (rows, H) or (rows, H * D), as the
    scores take them. `draw` has edges and weights to leave out. With `fixed` values, such as
    features, the gradient of the values is not needed and may be returned as zeros.
    """

    scores: "Scores"
    values: Array
    targets: FloatArray
    draw: EdgeDraw | None = None
    fixed: bool = False

    def block_draw(self, row_ids: GlobalIndices, column_ids: GlobalIndices) -> Draw | None:
        """Return the draw for a block whose nodes have these ids."""
        return None if self.draw is None else Draw(self.draw, row_ids, column_ids)


@dataclass(frozen=True, eq=False)
class BackwardWalk:
    """A backward pass over the edges of a block, with its operands and results for all rows.

    `transposed` is the block's transpose with all columns as rows; `draw` has the ids of all rows.
    """

    block: LocalMatrix
    transposed: LocalMatrix
    score: Score
    saved: SoftmaxGradient
    gradients: Gradients
    draw: Draw | None


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The rows that scores are computed from, `values` and `targets` as in `AttentionInput`.

    `half` is the format of uint16 values; `sources` are those that travelled with rounded values.
    None: they are computed from the values.
    """

    values: Array
    targets: FloatArray
    half: WireFormat | None = None
    sources: FloatArray | None = None

    @property
    def operands(self) -> dict[str, Any]:
        """The arguments that all scores take."""
        return {"values": self.values, "target": self.targets, "half": self.half}


class Scores(ABC):
    """The scores of an attention model, `heads` (H) of them for each edge.

    `weights` (H, K), C-contiguous, have the `vector` of each head in the first `width` columns,
    followed by the weights of edge features. None: all columns are vectors, and features of edges
    are not read. `slope` is that of the leaky rectifier for negative arguments.
    """

    narrow_targets: ClassVar[bool]
    """Whether targets are logits, (R, H), which must not be rounded on the wire."""
    adds_relations: ClassVar[bool] = False
    """Whether a node's results of all relations are added up and so share one gradient."""
    parts: ClassVar[int] = 1
    """Columns of the values for each column of the result."""

    def __init__(self, weights: FloatArray, slope: float, width: int | None = None) -> None:
        self.weights, self.slope = weights, slope
        self.heads = len(weights)
        self.reads_edges = width is not None and width < weights.shape[1]
        self.vector, self.edge_weights = weights, weights[:, :0]
        if self.reads_edges:
            self.vector, self.edge_weights = weights[:, :width].copy(), weights[:, width:].copy()

    @property
    def num_sources(self) -> int:
        """Columns of the sources; 0: scores read the values themselves."""
        return 0

    def result_width(self, values: Array) -> int:
        """Return the columns of the result."""
        width: int = values.shape[1] // self.parts
        return width

    @abstractmethod
    def operands(self, memory: Memory, rows: ScoredRows) -> Score:
        """Return the score that the kernels of a memory take."""

    def sources(self, memory: Memory, values: Array, half: WireFormat | None) -> FloatArray:
        """Return the values' shares of scores, (columns, num_sources)."""
        del half
        sources: FloatArray = memory.arrays.empty((len(values), 0), self.weights.dtype)
        return sources

    def add_sources(self, values: Array, for_sources: FloatArray, gradients: Gradients) -> None:
        """Add to the gradients of values and weights those that come through the `sources`.

        `values` are (columns, any) as in memory, bfloat16 where they are uint16. Scores without
        sources add nothing.
        """
        assert for_sources.shape[1] == 0

    def forward(
        self, block: LocalMatrix, score: Score, state: SoftmaxState, draw: Draw | None
    ) -> None:
        """Add the edges of a block to the state of its rows; `draw` has the ids of all rows."""
        own = None if draw is None else draw.of_stored(block.rows)
        block.memory.kernels.attention_forward(block.edges, score, state, own)

    def backward(self, walk: BackwardWalk) -> None:
        """Add the gradients through the edges of a block, including those of the weights."""
        backend, edges = walk.transposed.memory.kernels, walk.transposed.edges
        backend.attention_backward(edges, walk.score, walk.saved, walk.gradients, walk.draw)

    def _add_to_weights(
        self, gradients: Gradients, vector_gradient: FloatArray | None, edge_gradient: FloatArray
    ) -> None:
        """Add the gradients of the vectors and, behind them, of the weights of edge features."""
        assert gradients.weights is not None
        assert vector_gradient is not None
        width = vector_gradient.shape[1]
        gradients.weights[:, :width] += vector_gradient
        gradients.weights[:, width:] += edge_gradient.reshape(self.heads, -1)


class AdditiveScores(Scores):
    """``leaky_relu(target_i + <a, z_j> + <u, e_ij>)`` for each head: graph attention (GAT, 2018).

    The vectors are a, for the share of the column's node, and u follows them in the weights. The
    targets, (R, H), are the shares of the rows.
    """

    narrow_targets = True

    @property
    def num_sources(self) -> int:
        """One number for each head."""
        return self.heads

    @override
    def operands(self, memory: Memory, rows: ScoredRows) -> Score:
        sources, weights = rows.sources, None
        if sources is None:
            sources, weights = self.sources(memory, rows.values, rows.half), self.vector
        return AdditiveScore(**rows.operands, slope=self.slope, source=sources, weights=weights)

    def sources(self, memory: Memory, values: Array, half: WireFormat | None) -> FloatArray:
        """Return (columns, H) ``<a, z_j>``."""
        sources: FloatArray = memory.arrays.empty((len(values), self.heads), self.weights.dtype)
        memory.kernels.attention_scores(values, self.vector, sources, half=half)
        return sources

    @override
    def add_sources(self, values: Array, for_sources: FloatArray, gradients: Gradients) -> None:
        assert gradients.values is not None
        assert gradients.weights is not None
        rows = widen(values, ROWS) if values.dtype == np.uint16 else values
        by_head = for_sources[:, :, None]
        np.add(gradients.values, (by_head * self.vector).reshape(values.shape), gradients.values)
        vector_gradient = (by_head * rows.reshape(len(rows), *self.vector.shape)).sum(axis=0)
        gradients.weights[:, : self.vector.shape[1]] += vector_gradient

    @override
    def forward(
        self, block: LocalMatrix, score: Score, state: SoftmaxState, draw: Draw | None
    ) -> None:
        super().forward(block, self._with_edges(score, block), state, draw)

    @override
    def backward(self, walk: BackwardWalk) -> None:
        transposed, score = walk.transposed, self._with_edges(walk.score, walk.transposed)
        assert isinstance(score, AdditiveScore)
        # Gradients of sources that travelled with values go back to the owners unchanged.
        block_gradients = replace(walk.gradients, weights=None)
        if score.weights is not None:
            arrays, shape = transposed.memory.arrays, (score.values.shape[0], self.heads)
            source = arrays.zeros(shape, score.target.dtype)
            block_gradients = replace(walk.gradients, source=source)
        if score.edges is None:
            super().backward(replace(walk, score=score, gradients=block_gradients))
            return
        edge_gradient, vector_gradient = np.empty_like(score.edges), np.zeros_like(self.vector)
        weights = None if block_gradients.weights is None else vector_gradient
        block_gradients = replace(block_gradients, weights=weights, edges=edge_gradient)
        super().backward(replace(walk, score=score, gradients=block_gradients))
        assert transposed.features is not None
        self._add_to_weights(walk.gradients, vector_gradient, edge_gradient.T @ transposed.features)

    def _with_edges(self, score: Score, block: LocalMatrix) -> Score:
        """Return the score with the shares of the features of a block's edges."""
        if not self.reads_edges:
            return score
        assert block.features is not None
        assert isinstance(score, AdditiveScore)
        return replace(score, edges=block.features @ self.edge_weights.T)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Consecutive edges of a block, each of which has a column of its own in this piece's `block`.

    `rows` and `columns` (edges,) int32 are those in the original block; `features` are (edges, F).
    """

    block: Block
    rows: LocalIndices
    columns: LocalIndices
    features: FloatArray

    @property
    def offsets(self) -> Offsets:
        """(edges + 1,) int64 offsets of lines of one edge each."""
        return np.arange(len(self.columns) + 1, dtype=np.int64)

    def draw(self, draw: Draw | None) -> Draw | None:
        """Return the draw of these edges, given that of the original block with all row ids."""
        return None if draw is None else replace(draw, column_ids=draw.column_ids[self.columns])


def _pieces(block: LocalMatrix, row_bytes: int) -> Iterator[_Piece]:
    """Yield the edges of a block in pieces of `EDGE_BYTES`, which may split rows."""
    assert block.features is not None
    indptr, num_edges = block.indptr, len(block.indices)
    numbers = np.arange(len(indptr) - 1, dtype=np.int32) if block.rows is None else block.rows
    step = max(1, EDGE_BYTES // row_bytes)
    for start in range(0, num_edges, step):
        stop = min(start + step, num_edges)
        first = int(np.searchsorted(indptr, start, side="right")) - 1
        last = int(np.searchsorted(indptr, stop))
        offsets = np.clip(indptr[first : last + 1], start, stop) - start
        rows = numbers[first:last]
        own = Block(offsets, np.arange(stop - start, dtype=np.int32), rows)
        edges = slice(start, stop)
        row_of = np.repeat(rows, np.diff(offsets))
        yield _Piece(own, row_of, block.indices[edges], block.features[edges])


class KeyedScores(Scores):
    """Scores by keys: if edges have features, every edge has a key of its own.

    The map of the features, (H * D, F), follows the vectors in the weights.
    """

    narrow_targets = False

    @abstractmethod
    def add_features(self, score: Score, added: FloatArray) -> Score:
        """Return the score of single edges whose mapped features, (edges, H, D), are added."""

    @abstractmethod
    def value_gradients(self, pairs: FloatArray) -> FloatArray:
        """Return the gradients of values, given those of keys and values (edges, H, 2, D)."""

    @abstractmethod
    def feature_gradients(self, pairs: FloatArray) -> FloatArray:
        """Return the gradients of mapped features (edges, H, D), given the same."""

    @override
    def forward(
        self, block: LocalMatrix, score: Score, state: SoftmaxState, draw: Draw | None
    ) -> None:
        if not self.reads_edges:
            super().forward(block, score, state, draw)
            return
        for piece in self._pieces(block, score):
            row_draw = piece.draw(draw)
            row_draw = None if row_draw is None else row_draw.of_stored(piece.block.rows)
            kernels.attention_forward(piece.block, self._score(score, piece), state, row_draw)

    @override
    def backward(self, walk: BackwardWalk) -> None:
        block, score, draw = walk.block, walk.score, walk.draw
        saved, gradients = walk.saved, walk.gradients
        if not self.reads_edges:
            row_draw = None if draw is None else draw.of_stored(block.rows)
            backend = block.memory.kernels
            backend.attention_backward_rows(block.edges, score, saved, gradients, row_draw)
            super().backward(walk)
            return
        for piece in self._pieces(block, score):
            piece_score, row_draw = self._score(score, piece), piece.draw(draw)
            assert isinstance(piece_score, DynamicScore | ProductScore)
            piece_gradients = Gradients(
                np.zeros_like(piece_score.values, gradients.targets.dtype),
                gradients.targets,
                np.zeros_like(self.vector),
            )
            lines = Block(piece.offsets, piece.rows)
            kernels.attention_backward(lines, piece_score, saved, piece_gradients, row_draw)
            row_draw = None if row_draw is None else row_draw.of_stored(piece.block.rows)
            kernels.attention_backward_rows(
                piece.block, piece_score, saved, piece_gradients, row_draw
            )
            assert piece_gradients.values is not None
            assert gradients.values is not None
            pairs = piece_gradients.values.reshape(len(piece.columns), self.heads, 2, -1)
            value_gradient = np.ascontiguousarray(
                self.value_gradients(pairs).reshape(len(pairs), -1)
            )
            pattern = kernels.SparseMatrix(piece.offsets, piece.columns)
            kernels.spmm_transpose(pattern, value_gradient, gradients.values, accumulate=True)
            added = self.feature_gradients(pairs).reshape(len(pairs), -1)
            self._add_to_weights(gradients, piece_gradients.weights, added.T @ piece.features)

    def _pieces(self, block: LocalMatrix, score: Score) -> Iterator[_Piece]:
        width = 2 // self.parts * score.values.shape[1]
        return _pieces(block, width * score.values.itemsize)

    def _score(self, score: Score, piece: _Piece) -> Score:
        num_features = piece.features.shape[1]
        added = piece.features @ self.edge_weights.reshape(-1, num_features).T
        values = score.values[piece.columns]
        if values.dtype == np.uint16:
            values = widen(values, score.half)
        score = replace(score, values=values, half=None)
        return self.add_features(score, added.reshape(len(added), self.heads, -1))


class DynamicScores(KeyedScores):
    """``<a, leaky_relu(target_i + z_j + W_e e_ij)>`` for each head (Brody et al., ICLR 2022).

    The vectors are a; targets are (R, H * D).
    """

    @override
    def operands(self, memory: Memory, rows: ScoredRows) -> Score:
        return DynamicScore(**rows.operands, slope=self.slope, vector=self.vector)

    @override
    def add_features(self, score: Score, added: FloatArray) -> Score:
        assert isinstance(score, DynamicScore)
        values = score.values.reshape(added.shape)
        pairs = np.stack([values + added, values], axis=2).reshape(len(added), -1)
        return replace(score, values=pairs, keyed=True)

    @override
    def value_gradients(self, pairs: FloatArray) -> FloatArray:
        return pairs.sum(axis=2)

    @override
    def feature_gradients(self, pairs: FloatArray) -> FloatArray:
        return pairs[:, :, 0]


class ProductScores(KeyedScores):
    """``<target_i, k_j + W_e e_ij>`` for each head, with values ``v_j + W_e e_ij`` (transformers).

    Values are (columns, H * 2 D): k_j and then v_j of each head. Targets, (R, H * D), hold the
    scale. There are no vectors; `heads` H is the number of rows of the weights.
    """

    parts = 2

    def __init__(self, weights: FloatArray) -> None:
        super().__init__(weights, 1.0, 0)

    @override
    def operands(self, memory: Memory, rows: ScoredRows) -> Score:
        return ProductScore(**rows.operands, heads=self.heads)

    @override
    def add_features(self, score: Score, added: FloatArray) -> Score:
        pairs = score.values.reshape(len(added), self.heads, 2, -1) + added[:, :, None]
        return replace(score, values=pairs.reshape(len(added), -1))

    @override
    def value_gradients(self, pairs: FloatArray) -> FloatArray:
        return pairs

    @override
    def feature_gradients(self, pairs: FloatArray) -> FloatArray:
        return pairs.sum(axis=2)
