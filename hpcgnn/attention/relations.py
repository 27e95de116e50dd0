"""Attention by relation: every relation maps rows and scores edges by itself (R-GAT).

Rows of sources travel once for all relations, unmapped. The rank that reads them applies each
relation's map to the columns of that relation's edges, which attend to the result, in the forward
pass and again in the backward pass. Only one relation's values are in memory at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from typing_extensions import override

from hpcgnn.attention.scores import AdditiveScores, BackwardWalk, ScoredRows, Scores
from hpcgnn.attention.softmax import widen
from hpcgnn.kernels import AdditiveScore, Draw, Gradients, Score, SoftmaxState
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.sparse.local import LocalCSR, LocalMatrix, Memory
from hpcgnn.spmm.wire import ROWS
from hpcgnn.typing import Array, FloatArray, LocalIndices


@dataclass(frozen=True, eq=False)
class _RelationBlock:
    """The edges of a relation in a block, and the `columns` (int32) of the block that they read."""

    relation: int
    block: LocalCSR
    columns: LocalIndices

    def draw(self, draw: Draw | None) -> Draw | None:
        """Return the draw of its edges, given that of the block."""
        return None if draw is None else replace(draw, column_ids=draw.column_ids[self.columns])

    def rows(self, score: Score) -> FloatArray:
        """Return the rows (columns, F) that it reads."""
        rows: FloatArray = score.values[self.columns]
        return rows


_Parts = dict[tuple[int, ...], list[_RelationBlock]]
_PARTS: WeakKeyDictionary[LocalMatrix, _Parts] = WeakKeyDictionary()
"""The relations of each block for given bounds, made once."""


def _parts(block: LocalMatrix, bounds: Sequence[int]) -> Iterator[_RelationBlock]:
    """Yield the relations that have edges in a block, whose rows lie between the bounds."""
    known, key = _PARTS.setdefault(block, {}), tuple(bounds)
    if key not in known:
        assert isinstance(block, LocalCSR)
        relations = np.searchsorted(bounds, block.entry_rows(), side="right") - 1
        known[key] = parts = []
        for relation in np.unique(relations):
            kept = relations == relation
            columns = np.unique(block.indices[kept]).astype(np.int32)
            positions = np.zeros(block.shape[1], np.int32)
            positions[columns] = np.arange(len(columns))
            part = block.select(positions, len(columns), kept=kept)
            parts.append(_RelationBlock(int(relation), part, columns))
    yield from known[key]


class RelationScores(Scores):
    """``leaky_relu(target_i + <a_r, W_r x_j>)`` of each head for an edge of relation r.

    Values are x, (columns, F); an edge attends to ``W_r x_j``. Weights are (H, R * D * (F + 1)),
    for each head and relation D rows of ``[W_r, a_r]``; `bounds` are the first rows of the R
    relations.
    """

    narrow_targets = True
    adds_relations = True

    def __init__(
        self, weights: FloatArray, bounds: Sequence[int], width: int, slope: float
    ) -> None:
        super().__init__(weights, slope)
        self._bounds, self._shape = bounds, (self.heads, len(bounds), width, -1)
        self._both = weights.reshape(self._shape)

    @cached_property
    def _folded(self) -> FloatArray:
        """(R * H, F) ``W_rᵀ a_r``, the heads of a relation one after the other."""
        folded = np.einsum("hrdf,hrd->rhf", self.maps, self.vectors)
        return folded.reshape(-1, folded.shape[2])

    @property
    def maps(self) -> FloatArray:
        """(H, R, D, F) W_r of each head."""
        return self._both[..., :-1]

    @property
    def vectors(self) -> FloatArray:
        """(H, R, D) a_r of each head."""
        return self._both[..., -1]

    def result_width(self, values: Array) -> int:
        """Return the columns of the result."""
        return self.heads * self._both.shape[2]

    @property
    def num_sources(self) -> int:
        """One number for each head and relation."""
        return self._folded.shape[0]

    def operands(self, memory: Memory, rows: ScoredRows) -> Score:
        """Return the unmapped rows and the sources, which have no columns if none travelled."""
        values, targets, sources = rows.values, rows.targets, rows.sources
        if values.dtype == np.uint16:
            values = widen(values, rows.half)
        sources = targets[:0, :0] if sources is None else sources
        return AdditiveScore(values=values, target=targets, slope=self.slope, source=sources)

    def sources(self, memory: Memory, values: Array, half: WireFormat | None) -> FloatArray:
        """Return (columns, R * H) ``<a_r, W_r x_j>``, the heads of a relation side by side."""
        rows = widen(values, half) if values.dtype == np.uint16 else values
        sources: FloatArray = rows @ self._folded.T
        return sources

    @override
    def add_sources(self, values: Array, for_sources: FloatArray, gradients: Gradients) -> None:
        assert gradients.values is not None
        assert gradients.weights is not None
        rows = widen(values, ROWS) if values.dtype == np.uint16 else values
        np.add(gradients.values, for_sources @ self._folded, gradients.values)
        of_both = gradients.weights.reshape(self._shape)
        shape = len(self._bounds), self.heads, 1, rows.shape[1]
        of_folded = (for_sources.T @ rows).reshape(shape).swapaxes(0, 1)
        of_both[..., :-1] += self.vectors[..., None] * of_folded
        of_both[..., -1] += (self.maps * of_folded).sum(axis=-1)

    @override
    def forward(
        self, block: LocalMatrix, score: Score, state: SoftmaxState, draw: Draw | None
    ) -> None:
        for part in _parts(block, self._bounds):
            matrix, scores = self._of(part)
            values, sources = part.rows(score) @ matrix.T, self._sources(score, part)
            ready = scores.operands(block.memory, ScoredRows(values, score.target, sources=sources))
            scores.forward(part.block, ready, state, part.draw(draw))

    @override
    def backward(self, walk: BackwardWalk) -> None:
        gradients, score = walk.gradients, walk.score
        assert gradients.values is not None
        assert gradients.weights is not None
        for part in _parts(walk.block, self._bounds):
            (matrix, scores), rows = self._of(part), part.rows(score)
            values = rows @ matrix.T
            for_values = np.zeros(values.shape, gradients.targets.dtype)
            for_vectors = np.zeros_like(scores.weights)
            sources = self._sources(score, part)
            for_sources = None if sources is None else np.zeros_like(sources)
            into = Gradients(for_values, gradients.targets, for_vectors, for_sources)
            rows_read = ScoredRows(values, score.target, sources=sources)
            ready = scores.operands(part.block.memory, rows_read)
            both = part.block, part.block.transposed
            scores.backward(BackwardWalk(*both, ready, walk.saved, into, part.draw(walk.draw)))
            # Columns of a part are distinct.
            gradients.values[part.columns] += for_values @ matrix
            of_both = gradients.weights.reshape(self._shape)[:, part.relation]
            of_both[..., :-1] += (for_values.T @ rows).reshape(of_both[..., :-1].shape)
            of_both[..., -1] += for_vectors
            if for_sources is not None:
                assert gradients.source is not None
                gradients.source[part.columns, self._heads(part)] += for_sources

    def _heads(self, part: _RelationBlock) -> slice:
        """Return the columns of a relation's sources."""
        return slice(part.relation * self.heads, (part.relation + 1) * self.heads)

    def _sources(self, score: Score, part: _RelationBlock) -> FloatArray | None:
        """Return the sources of the columns of a relation; None if none travelled."""
        assert isinstance(score, AdditiveScore)
        if not score.source.shape[1]:
            return None
        return np.ascontiguousarray(score.source[part.columns, self._heads(part)])

    def _of(self, part: _RelationBlock) -> tuple[FloatArray, AdditiveScores]:
        """Return W_r of all heads, (H * D, F), and the scores of the relation's edges."""
        both = self._both[:, part.relation]
        vectors = AdditiveScores(np.ascontiguousarray(both[..., -1]), self.slope)
        return both[..., :-1].reshape(-1, both.shape[2] - 1), vectors
