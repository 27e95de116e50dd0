"""Reductions of messages at their targets, over blocks of edges, with their gradients.

Shape suffixes: N local nodes, B edges of a block, T targets of a block, M columns of a message, K
scores of an edge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import widened

SMALLEST_VARIANCE = 1e-5
"""Smaller variances count as 0, as in PyG: the gradient of a square root is unbounded at 0."""


@dataclass(frozen=True, eq=False)
class BlockTargets:
    """The targets of consecutive edges, among T local nodes, `rows`.

    `rows` is a range, or ascending int64 numbers; `targets` (B,) int64 are sorted positions in it.
    """

    rows: slice | Tensor
    num_rows: int
    targets: Tensor

    def add(self, values: Tensor, total: Tensor) -> None:
        """Add the edges' values (B, width) to the rows (N, width) of their targets."""
        if isinstance(self.rows, slice):
            total[self.rows].index_add_(0, self.targets, values)
        else:
            total.index_add_(0, self.rows[self.targets], values)

    def pick(self, rows: Tensor) -> Tensor:
        """Return the rows (B, width) of the edges' targets, from rows (N, width)."""
        if isinstance(self.rows, slice):
            return rows[self.rows].index_select(0, self.targets)
        return rows.index_select(0, self.rows[self.targets])


@dataclass(frozen=True, eq=False)
class EdgeBlock(BlockTargets):
    """Consecutive edges: `message` (B, M); `score` (B, K), or None."""

    message: Tensor
    score: Tensor | None

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums (T, width) of the edges' values (B, width)."""
        shape = (self.num_rows, values.shape[1])
        return values.new_zeros(shape).index_add_(0, self.targets, values)

    def largest(self, values: Tensor, at_least: Tensor) -> Tensor:
        """Return the maxima of `at_least` (T, width) and the edges' values (B, width)."""
        targets = self.targets[:, None].expand_as(values)
        return at_least.scatter_reduce(0, targets, values, "amax")

    def counts(self) -> Tensor:
        """Return the numbers of edges (T, 1), in the dtype of the messages."""
        return self.sums(self.message.new_ones(len(self.message), 1))


class Reduction(Protocol):
    """Reduces the messages of each target to one row; constructed with N and the first block."""

    shared: Tensor | None
    """The gradient (N, M) that all messages of a target share, after `start_backward`; or None."""

    def add(self, block: EdgeBlock) -> None:
        """Add the messages of a block."""

    def result(self) -> Tensor:
        """Return the result (N, M) after the last block; zeros at targets without edges."""

    def start_backward(self, gradient: Tensor) -> None:
        """Set the gradient (N, M) of the result, of 16 bits if rows are."""

    def gradient(self, block: EdgeBlock) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of the messages (B, M) and scores (B, K) of a block."""


class Sum(Reduction):
    """Sums messages in `total` (N, M), which others may add to before the result."""

    shared = None

    def __init__(self, num_targets: int, block: EdgeBlock) -> None:
        message = block.message
        self.total = memory_of(message).empty(message, (num_targets, message.shape[1])).zero_()

    @override
    def add(self, block: EdgeBlock) -> None:
        block.add(block.message, self.total)

    @override
    def result(self) -> Tensor:
        total = self.total
        # Free it: the gradient does not need it.
        del self.total
        return total

    @override
    def start_backward(self, gradient: Tensor) -> None:
        self.shared = gradient

    @override
    def gradient(self, block: EdgeBlock) -> tuple[Tensor, Tensor | None]:
        assert self.shared is not None
        return widened(block.pick(self.shared)), None


class _Mean(Sum):
    def __init__(self, num_targets: int, block: EdgeBlock) -> None:
        super().__init__(num_targets, block)
        self.count = block.message.new_zeros(num_targets, 1)

    def add(self, block: EdgeBlock) -> None:
        super().add(block)
        self.count[block.rows] += block.counts()

    def result(self) -> Tensor:
        return super().result() / self.count.clamp(min=1)

    def start_backward(self, gradient: Tensor) -> None:
        super().start_backward(gradient / self.count.clamp(min=1))


class _Largest:
    shared: Tensor | None = None

    def __init__(self, num_targets: int, block: EdgeBlock, sign: int) -> None:
        self.sign, shape = sign, (num_targets, block.message.shape[1])
        self.extreme = block.message.new_full(shape, -torch.inf)
        self.count = block.message.new_zeros(shape)

    def _hits(self, block: EdgeBlock) -> Tensor:
        largest = block.pick(self.extreme)
        return (self.sign * block.message == largest).to(largest.dtype)

    def add(self, block: EdgeBlock) -> None:
        before = self.extreme[block.rows]
        after = block.largest(self.sign * block.message, before)
        # Edges that had the maximum before no longer count if it has grown.
        count = self.count[block.rows].masked_fill(after > before, 0)
        self.extreme[block.rows] = after
        self.count[block.rows] = count + block.sums(self._hits(block))

    def result(self) -> Tensor:
        return (self.sign * self.extreme).masked_fill(self.extreme == -torch.inf, 0)

    def start_backward(self, gradient: Tensor) -> None:
        self.share = gradient / self.count.clamp(min=1)

    def gradient(self, block: EdgeBlock) -> tuple[Tensor, Tensor | None]:
        return self._hits(block) * block.pick(self.share), None


class _Deviation:
    """Merges blocks by their means and squared deviations (Chan et al., 1979)."""

    shared: Tensor | None = None

    def __init__(self, num_targets: int, block: EdgeBlock) -> None:
        width = block.message.shape[1]
        self.count = block.message.new_zeros(num_targets, 1)
        self.mean = block.message.new_zeros(num_targets, width)
        self.squares = block.message.new_zeros(num_targets, width)

    def add(self, block: EdgeBlock) -> None:
        count = block.counts()
        mean = block.sums(block.message) / count.clamp(min=1)
        squares = block.sums((block.message - mean[block.targets]) ** 2)
        before, step = self.count[block.rows], mean - self.mean[block.rows]
        share = count / (before + count).clamp(min=1)
        self.squares[block.rows] += squares + step**2 * before * share
        self.mean[block.rows] += step * share
        self.count[block.rows] += count

    def result(self) -> Tensor:
        variance = self.squares / self.count.clamp(min=1)
        return variance.sqrt().masked_fill(variance <= SMALLEST_VARIANCE, 0)

    def start_backward(self, gradient: Tensor) -> None:
        deviation = self.result()
        self.share = gradient / (self.count * deviation).masked_fill(deviation == 0, torch.inf)

    def gradient(self, block: EdgeBlock) -> tuple[Tensor, Tensor | None]:
        distance = block.message - block.pick(self.mean)
        return distance * block.pick(self.share), None


class _Softmax:
    shared: Tensor | None = None

    def __init__(self, num_targets: int, block: EdgeBlock) -> None:
        if block.score is None:
            raise ValueError("softmax: the module gives no scores; return an EdgeResult with them")
        columns, scores = block.message.shape[1], block.score.shape[1]
        if scores == 0 or columns % scores:
            raise ValueError(f"softmax: {scores} scores do not divide {columns} columns")
        self.times = columns // scores
        self.largest = block.score.new_full((num_targets, scores), -torch.inf)
        self.shares = block.score.new_zeros(num_targets, scores)
        self.total = block.message.new_zeros(num_targets, columns)

    def _wide(self, scores: Tensor) -> Tensor:
        return scores.repeat_interleave(self.times, dim=1)

    def add(self, block: EdgeBlock) -> None:
        assert block.score is not None
        before = self.largest[block.rows]
        after = block.largest(block.score, before)
        # A target between two others may have no edges: avoid inf - inf.
        smaller = (before - after).masked_fill(after == -torch.inf, 0).exp()
        share = (block.score - after[block.targets]).exp()
        self.largest[block.rows] = after
        self.shares[block.rows] = self.shares[block.rows] * smaller + block.sums(share)
        sums = block.sums(self._wide(share) * block.message)
        self.total[block.rows] = self.total[block.rows] * self._wide(smaller) + sums

    def result(self) -> Tensor:
        return self.total / self._wide(self.shares).masked_fill(self._wide(self.shares) == 0, 1)

    def start_backward(self, gradient: Tensor) -> None:
        self.of_result, self.mean = gradient, self.result()

    def gradient(self, block: EdgeBlock) -> tuple[Tensor, Tensor | None]:
        assert block.score is not None
        share = (block.score - block.pick(self.largest)).exp()
        share /= block.pick(self.shares)
        upper = block.pick(self.of_result)
        distance = block.message - block.pick(self.mean)
        by_score = (upper * distance).view(*block.score.shape, self.times).sum(2)
        return self._wide(share) * upper, share * by_score


REDUCTIONS: Mapping[str, Callable[[int, EdgeBlock], Reduction]] = {
    "sum": Sum,
    "mean": _Mean,
    "max": partial(_Largest, sign=1),
    "min": partial(_Largest, sign=-1),
    "std": _Deviation,
    "softmax": _Softmax,
}
"""The reductions by name."""


def gradients_of(reductions: Sequence[Reduction], block: EdgeBlock) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of a block's messages and scores through all reductions."""
    total, of_score = None, None
    for reduction in reductions:
        message, score = reduction.gradient(block)
        total = message if total is None else total.add_(message)
        of_score = of_score if score is None else score
    assert total is not None
    return total, of_score
