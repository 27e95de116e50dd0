"""Curves over thresholds of logits: average precision, area under the ROC curve, best threshold.

Curves come from counts of logits in bins, so that messages have a fixed size, and that curves are
equal for any number of ranks but for logits whose rounding crosses a bound. Bins are finer where
there are more logits, with or without the label: those of a rare class, or after few steps, are
almost equal. Logits in the same bin count as equal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray, GlobalIndices

Counts = NDArray[np.float64]

Piece = tuple[int, Tensor, Tensor]
"""The number of a split, and logits and their truth (labels or zero and one), of one shape."""

# Float32 in ascending order as integers: coarse bins are a 32nd of a factor of two.
_LOW_BITS = 18
_NUM_COARSE = 1 << (32 - _LOW_BITS)
_ZERO = _NUM_COARSE // 2
_INFINITE = 0x7F800000
_STEPS = 1 << (23 - _LOW_BITS)
_FINEST_BITS = 12
"""The finest bins are 2^-17 of a logit and of the usual logit: far above errors of rounding."""
_SHARE_BITS = 13
"""Coarse bins are divided until no bin should have more than 2^-13 of the logits of one truth."""
_LARGEST = 32.0
"""Larger logits have a probability of 1, which nothing exceeds."""


@dataclass(frozen=True, eq=False)
class LogitBins:
    """Bins of logits, equal on all ranks, by the key of a logit: its float32 in ascending order.

    Bin ``first[c] + (low >> shift[c])`` has the keys with the upper bits `c` and the lower bits
    `low`. `lowest` (bins,) float64 is the least logit of each bin.
    """

    first: GlobalIndices
    shift: GlobalIndices
    lowest: FloatArray

    @classmethod
    @collective
    def of(cls, grid: ProcessGrid, pieces: Iterable[Piece]) -> "LogitBins":
        """Divide the logits of all ranks; `pieces`, any number of them, are those of this one.

        Bins are for these logits only.
        """
        numbers = np.zeros((2, _NUM_COARSE))
        for _, logits, truth in pieces:
            numbers += _counts((_keys(logits) >> _LOW_BITS) + _ZERO, truth, _NUM_COARSE)
        allreduce_sum(grid.layer, numbers)
        return cls._divided(numbers)

    @classmethod
    def _divided(cls, by_truth: Counts) -> "LogitBins":
        """Divide coarse bins by their numbers (2, coarse) of logits without and with the label."""
        numbers = by_truth.sum(axis=0)
        by_size = numbers[_ZERO:] + numbers[:_ZERO][::-1]
        cumulated = by_size[1:].cumsum()
        usual = 1 + int(np.searchsorted(cumulated, cumulated[-1] / 2))
        sizes = np.arange(_ZERO)
        finest = np.minimum(_FINEST_BITS, _FINEST_BITS + sizes // _STEPS - usual // _STEPS)
        finest = np.concatenate([finest[::-1], finest])
        # Of the rarer truth too, whose few logits decide on average precision.
        shares = by_truth / np.maximum(by_truth.sum(axis=1, keepdims=True), 1)
        share = np.log2(np.maximum(shares.max(axis=0) * 2.0**_SHARE_BITS, 1))
        bits = np.clip(np.ceil(share).astype(np.int64), 0, np.maximum(finest, 0))
        num_bins = np.where(numbers > 0, 1 << bits, 0)
        # Sums that cancel leave errors of rounding on both sides of 0.
        near = np.flatnonzero(finest < 0)
        if len(near):
            num_bins[near[1:]], num_bins[near[0]] = 0, min(num_bins[near].sum(), 1)
        first = num_bins.cumsum() - num_bins
        first[near] = first[near[:1]]
        shift = _LOW_BITS - bits
        coarse = np.repeat(np.arange(_NUM_COARSE), num_bins)
        low = (np.arange(len(coarse)) - first[coarse]) << shift[coarse]
        keys = ((coarse - _ZERO) << _LOW_BITS) + low
        # Keys above infinity, next to logits of a run that diverges, are no numbers.
        size_bits = np.minimum(np.where(keys < 0, ~keys, keys), _INFINITE)
        size = size_bits.astype(np.int32).view(np.float32)
        lowest = np.where(keys < 0, -size, size).astype(np.float64)
        return cls(first, shift, lowest)

    def __len__(self) -> int:
        return len(self.lowest)

    def numbers(self, logits: Tensor) -> Tensor:
        """Return the bins (n,) int64 of logits of any shape, in ascending order of logits."""
        keys = _keys(logits)
        coarse, low = (keys >> _LOW_BITS) + _ZERO, keys & ((1 << _LOW_BITS) - 1)
        first, shift = (torch.from_numpy(a).to(keys.device) for a in (self.first, self.shift))
        return first[coarse] + (low >> shift[coarse])

    def curve(self, logits: Tensor, truth: Tensor) -> Counts:
        """Return the counts (2, bins) of logits, of any shape, without and with the label."""
        return _counts(self.numbers(logits), truth, len(self))

    def best_threshold(self, curve: Counts) -> float:
        """Return the probability threshold that maximises micro F1; 0.5 if no node has a label.

        `curve` (2, bins) counts pairs without and with the label.
        """
        negative, positive = curve[:, ::-1].cumsum(axis=1)[:, ::-1]
        start, stop = np.searchsorted(self.lowest, (-_LARGEST, _LARGEST))
        candidates = np.arange(start, min(stop + 1, len(self)))[::-1]
        if not len(candidates) or not positive[0]:
            return 0.5
        negative_C, positive_C = negative[candidates], positive[candidates]
        scores = 2 * positive_C / (positive_C + negative_C + positive[0])
        logit = min(float(self.lowest[candidates[int(scores.argmax())]]), _LARGEST)
        # Below the least logit, which is to exceed it, and may be 0.
        logit -= 2.0**-22 * max(abs(logit), 2.0**-28)
        return float(1 / (1 + np.exp(-logit)))


def _keys(logits: Tensor) -> Tensor:
    """Return integers (n,) int64 in the order of logits; 0 and -0 are equal."""
    sizes = logits.reshape(-1).float()
    bits = sizes.abs().view(torch.int32)
    return torch.where(sizes < 0, ~bits, bits).long()


def _counts(bins: Tensor, truth: Tensor, num_bins: int) -> Counts:
    """Return the counts (2, num_bins) of bins (n,) without and with the label."""
    columns = bins + num_bins * (truth.reshape(-1) > 0)
    counts = torch.bincount(columns, minlength=2 * num_bins).cpu().numpy()
    return counts.astype(np.float64).reshape(2, num_bins)


@collective
def curves_by_split(
    grid: ProcessGrid, num_splits: int, pieces: Callable[[], Iterable[Piece]]
) -> tuple[LogitBins, Counts]:
    """Return the curves (splits, 2, bins) of the logits of all ranks, and their bins.

    `pieces` gives those of this rank, and is called twice.
    """
    bins = LogitBins.of(grid, pieces())
    curves = np.zeros((num_splits, 2, len(bins)))
    for split, logits, truth in pieces():
        curves[split] += bins.curve(logits, truth)
    allreduce_sum(grid.layer, curves)
    return bins, curves


def areas(curve: Counts) -> dict[str, float]:
    """Return average_precision and auc of a curve; {} unless pairs with and without the label.

    The first is the mean precision over the pairs with the label, the second the probability that
    one of them exceeds a pair without; ties count half.
    """
    if not curve.any(axis=1).all():
        return {}
    negative, positive = curve
    below = negative.cumsum() - negative / 2
    above, right = curve[:, ::-1].cumsum(axis=1)
    precision = (positive[::-1] * right / np.maximum(right + above, 1)).sum() / positive.sum()
    auc = (positive * below).sum() / (positive.sum() * negative.sum())
    return {"average_precision": float(precision), "auc": float(auc)}
