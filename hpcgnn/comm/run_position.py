"""The position in a run, from which the draws of stochastic rounding on the wire are derived."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple, TypeAlias

from hpcgnn.kernels import key_of

Way: TypeAlias = Literal["forward", "backward", "unpacked"]
"""The kind of travelling rows: activations, gradients, or rows of results, which are not packed."""

_BEFORE_EPOCHS = -1
_SUM_BYTES = 6
"""Bytes of an integer in a sum about which nothing else is known."""


class Instant(NamedTuple):
    """A product in an epoch of a seed, and the kind of rows that travel at that time."""

    seed: int
    epoch: int
    product: int = 0
    way: Way = "forward"

    def key(self, sender: int | None) -> int:
        """Return the key of the random draws for the rows of this product.

        `sender` is the rank that sends partial sums; None for rows of owners, whose draws do not
        depend on the rank.
        """
        names = self.seed, self.epoch, self.product
        return key_of(*names, 0 if sender is None else 1 + sender)


class RunPosition:
    """The current `Instant` of a grid, `now`, which is equal on all ranks.

    Products are numbered from the beginning of the epoch. All ranks multiply in the same order for
    any number of ranks, so the number identifies the step, the layer and the direction.
    """

    def __init__(self) -> None:
        self.now = Instant(0, _BEFORE_EPOCHS)
        self.counts_terms = False
        self.sum_bytes, self.sum_bits = _SUM_BYTES, 0

    def begin(self, seed: int, epoch: int) -> None:
        """Begin an epoch of a seed."""
        self.now = Instant(seed, epoch, way=self.now.way)

    def next_product(self) -> None:
        """Begin a product."""
        now = self.now
        self.now = Instant(now.seed, now.epoch, now.product + 1, now.way)

    def backward(self) -> AbstractContextManager[None]:
        """Treat rows that travel inside the block as gradients."""
        return self._on("backward")

    @property
    def trains(self) -> bool:
        """Whether this is part of an epoch, and no evaluation."""
        return self.now.epoch > _BEFORE_EPOCHS and self.now.way != "unpacked"

    def unpacked(self) -> AbstractContextManager[None]:
        """Do not pack rows that travel inside the block, which are results.

        Results travel seldom, and each is rounded once, while training averages over many draws.
        """
        return self._on("unpacked")

    @contextmanager
    def _on(self, way: Way) -> Iterator[None]:
        before, self.now = self.now.way, self.now._replace(way=way)
        try:
            yield
        finally:
            self.now = self.now._replace(way=before)

    @contextmanager
    def replaying(self, start: Instant) -> Iterator[None]:
        """Repeat inside the block the draws of a pass that began at `start`.

        Rows that are fetched again then have the same bits. Afterwards `now` is as before.
        """
        before, self.now = self.now, start
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def summing(self, bits: int, num_bytes: int) -> Iterator[None]:
        """Send sums of integers of `bits` inside the block, the longest sum in `num_bytes`."""
        before = self.sum_bits, self.sum_bytes
        self.sum_bits, self.sum_bytes = bits, num_bytes
        try:
            yield
        finally:
            self.sum_bits, self.sum_bytes = before

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Mark sums inside the block as sums of ones, which count the terms of each sum."""
        before, self.counts_terms = self.counts_terms, True
        try:
            yield
        finally:
            self.counts_terms = before

    @contextmanager
    def before_epochs(self) -> Iterator[None]:
        """Treat rows that travel inside the block as preparation, which belongs to no epoch.

        A run resumed from a checkpoint prepares again with the same draws. Afterwards `now` is as
        before.
        """
        with self.replaying(Instant(0, _BEFORE_EPOCHS)), self.unpacked():
            yield
