"""Heads that attend to the input itself, some rows at a time, where a rank holds the whole pattern.

The projection of a weighted mean is the weighted mean of projections, so it may come second: a row
of the input is then read once for all heads. With other ranks the projected values are what is
narrow to move and merge, and their order stays.
"""

from dataclasses import dataclass

from hpcgnn import kernels
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.sparse.scores import BlockDraw, EdgeDraw, kernel_draw
from hpcgnn.typing import FloatArray, GlobalIndices

__all__ = ["InputGradients", "SharedHeads", "WholePattern"]


@dataclass(frozen=True, eq=False)
class WholePattern:
    """A pattern of edges whose rows and columns are all on this rank.

    Parameters
    ----------
    block
        The edges; every row is stored.
    row_ids, column_ids
        int64 original ids, which masks of edges are drawn from.
    """

    block: LocalCSR
    row_ids: GlobalIndices
    column_ids: GlobalIndices


@dataclass(frozen=True, eq=False)
class InputGradients:
    """Where the backward pass of `SharedHeads` adds up.

    Parameters
    ----------
    x
        (columns, F), through the means alone; None: not wanted.
    source
        (slices, columns, H), to be summed over the slices: as many threads work at a time.
    target
        (rows, H).
    """

    x: FloatArray | None
    source: FloatArray
    target: FloatArray


class SharedHeads:
    """The attention of all heads of a layer over the rows of its input.

    Not collective.

    Parameters
    ----------
    pattern
        The edges.
    x
        (columns, F).
    source, target
        (columns, H) and (rows, H): the terms of a score.
    slope
        Of the leaky rectifier of their sum.
    draw
        Edges and weights to leave out; None: none.
    heads_per_word
        Heads for which `EdgeDraw.of_heads` is called at once where the projection comes first.
    """

    def __init__(
        self,
        pattern: WholePattern,
        x: FloatArray,
        source: FloatArray,
        target: FloatArray,
        *,
        slope: float,
        draw: EdgeDraw | None,
        heads_per_word: int,
    ) -> None:
        self._pattern, self._x, self._source, self._target = pattern, x, source, target
        self._slope, self._draw, self._heads_per_word = slope, draw, heads_per_word

    def means(self, rows: slice, mean: FloatArray, lse: FloatArray) -> None:
        """Write the weighted means of x for some rows.

        Not collective.

        Parameters
        ----------
        rows
            Which: consecutive ones.
        mean
            (rows, H, at least F), overwritten up to column F.
        lse
            (rows, H), overwritten.
        """
        weight_draw, edge_draw = self._drawn(rows)
        block = self._pattern.block
        kernels.attention_shared_forward(
            block.indptr[rows.start : rows.stop + 1],
            block.indices,
            self._x,
            self._source,
            self._target[rows],
            mean,
            lse,
            slope=self._slope,
            dropout=weight_draw,
            edge_dropout=edge_draw,
            heads_per_word=self._heads_per_word,
        )

    def differentiate(
        self,
        rows: slice,
        means: tuple[FloatArray, FloatArray],
        gradient: FloatArray,
        into: InputGradients,
    ) -> None:
        """Add the gradients through some rows.

        Not collective.

        Parameters
        ----------
        rows
            As of `means`.
        means
            What `means` wrote for these rows.
        gradient
            Of the means, with their shape.
        into
            Added to.
        """
        weight_draw, edge_draw = self._drawn(rows)
        block = self._pattern.block
        kernels.attention_shared_backward(
            block.indptr[rows.start : rows.stop + 1],
            block.indices,
            self._x,
            self._source,
            self._target[rows],
            *means,
            gradient,
            into.x,
            into.source,
            into.target[rows],
            slope=self._slope,
            dropout=weight_draw,
            edge_dropout=edge_draw,
            heads_per_word=self._heads_per_word,
        )

    def _drawn(
        self, rows: slice
    ) -> tuple[kernels.WeightDropout | None, kernels.EdgeDropout | None]:
        if self._draw is None:
            return None, None
        pattern = self._pattern
        own = BlockDraw(self._draw, pattern.row_ids[rows], pattern.column_ids)
        return kernel_draw(own, None)
