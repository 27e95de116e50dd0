"""The operators that attention layers apply, and attention before projection on one rank.

Where one rank holds the whole pattern, heads attend to the input itself. The projection of a
weighted mean is the weighted mean of projections, so it may come second: a row of the input is then
read once for all heads. With several ranks projection comes first, since projected values are
narrower to move and merge.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from hpcgnn import kernels
from hpcgnn.attention.scores import AttentionInput
from hpcgnn.comm import Instant
from hpcgnn.kernels import AdditiveScore, Block, Draw, EdgeDraw, Gradients, SharedMeans
from hpcgnn.operator import AggregationOperator
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class WholePattern:
    """A pattern of edges whose rows and columns are all on this rank; every row is stored.

    Masks of edges are drawn from the int64 original ids.
    """

    block: LocalCSR
    row_ids: GlobalIndices
    column_ids: GlobalIndices


class SharedHeads:
    """The attention of all heads of a layer over the rows of its input.

    The values of the score are x, (columns, F), which all heads read. `heads_per_word` is the
    number of heads in one call of `EdgeDraw.of_heads` where projection comes first.
    """

    def __init__(
        self,
        pattern: WholePattern,
        score: AdditiveScore,
        draw: EdgeDraw | None,
        heads_per_word: int,
    ) -> None:
        self._pattern, self._score = pattern, score
        self._draw, self._heads_per_word = draw, heads_per_word

    def means(self, rows: slice, means: SharedMeans) -> None:
        """Write the weighted means of x for some consecutive rows."""
        kernels.attention_shared_forward(*self._part(rows), means, self._drawn(rows))

    def differentiate(self, rows: slice, means: SharedMeans, into: Gradients) -> None:
        """Add the gradients through some rows, given their means and the means' gradient.

        `into` has those of x (through the means alone), of the target and of slices of the source.
        """
        part = replace(into, targets=into.targets[rows])
        kernels.attention_shared_backward(*self._part(rows), means, part, self._drawn(rows))

    def _part(self, rows: slice) -> tuple[Block, AdditiveScore]:
        edges, score = self._pattern.block, self._score
        block = Block(edges.indptr[rows.start : rows.stop + 1], edges.indices)
        return block, replace(score, target=score.target[rows])

    def _drawn(self, rows: slice) -> Draw | None:
        if self._draw is None:
            return None
        ids = self._pattern.row_ids[rows], self._pattern.column_ids
        return Draw(self._draw, *ids, heads_per_word=self._heads_per_word)


@dataclass(frozen=True, eq=False)
class Softmax:
    """Results of an attention's forward pass that its backward pass needs, beside the output.

    `lse` (rows, H) is the log of the sum of exponentiated scores, -inf for rows without edges;
    `fetched` are values of other ranks from the forward pass. None: they are fetched again, rounded
    as at `instant`, which is None where nothing is rounded.
    """

    lse: FloatArray
    fetched: tuple[Array, ...] | None
    instant: Instant | None = None

    def released(self) -> "Softmax":
        """Return the same without the fetched values."""
        return replace(self, fetched=None)


@runtime_checkable
class AttentionOperator(AggregationOperator, Protocol):
    """A pattern of edges along which rows attend to columns, without any array of edges."""

    @property
    def whole(self) -> WholePattern | None:
        """The pattern where one rank holds all of it; None on all ranks otherwise."""

    @collective
    def attend(
        self, inputs: AttentionInput, out: FloatArray, *, bias: FloatArray | None = None, keep: bool
    ) -> Softmax:
        """Write, for each row and head, the mean of its columns' values weighted by the softmax.

        `out` (rows, H * D) is overwritten, perhaps columns of a wider array: the means, which are
        zero for rows without edges, plus the bias (H * D,). `keep` tells whether a backward pass
        will follow.
        """

    @collective
    def attend_transpose(
        self, inputs: AttentionInput, softmax: Softmax, gradient: FloatArray, delta: FloatArray
    ) -> Gradients:
        """Return the gradients of values, targets and weights, of weights this rank's share.

        `softmax` is what `attend` returned for the same input, `gradient` (rows, H * D) that of the
        result, `delta` (rows, H) inner products of the gradient and the result without bias.
        """
