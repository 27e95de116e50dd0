"""Where a run is: what a number that is rounded at random for the wire is drawn by."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hpcgnn.kernels import key_of

Way: TypeAlias = Literal["forward", "backward", "unpacked"]
"""What rows on their way are: activations, gradients, or those of results, which no wire packs."""

_BEFORE_EPOCHS = -1
_SUM_BYTES = 6
"""Of a sum of integers of which nothing else is known."""


@dataclass(frozen=True)
class Instant:
    """A seed, an epoch and a product in it, and what rows on their way are then."""

    seed: int
    epoch: int
    product: int = 0
    way: Way = "forward"

    def key(self, sender: int | None) -> int:
        """Return the key of a draw for the rows of this product.

        `sender` is who sends partial sums; None: rows of owners, equal whoever sends them.
        """
        names = self.seed, self.epoch, self.product
        return key_of(*names, 0 if sender is None else 1 + sender)


class Moment:
    """The `now` of a grid, equal on all ranks, as exchanges and steps know it.

    Products are numbered from the beginning of the epoch. All ranks multiply in the same order, at
    any number of them, so the number identifies the step, the layer and the direction.
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

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Take what travels inside for gradients."""
        with self._on("backward"):
            yield

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """Pack no rows inside: results are judged, kept or written.

        They travel seldom. Training averages the rounding of many draws; a result has one.
        """
        with self._on("unpacked"):
            yield

    @contextmanager
    def _on(self, way: Way) -> Iterator[None]:
        before, self.now = self.now.way, replace(self.now, way=way)
        try:
            yield
        finally:
            self.now = replace(self.now, way=before)

    @contextmanager
    def again(self, begun: Instant) -> Iterator[None]:
        """Draw inside as a pass did that began at `begun`, and is computed again.

        Rows that it fetches again are then the same bits. Outside the numbers go on.
        """
        before, self.now = self.now, begun
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def summing(self, bits: int, num_bytes: int) -> Iterator[None]:
        """Let sums travel inside of integers of so many bits, the longest in so many bytes."""
        before = self.sum_bits, self.sum_bytes
        self.sum_bits, self.sum_bytes = bits, num_bytes
        try:
            yield
        finally:
            self.sum_bits, self.sum_bytes = before

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Let sums inside be of ones: they tell how many terms each has."""
        self.counts_terms = True
        try:
            yield
        finally:
            self.counts_terms = False

    @contextmanager
    def before_epochs(self) -> Iterator[None]:
        """Take what travels inside for a preparation, which belongs to no epoch.

        A run that goes on from a checkpoint prepares again, and draws the same. Outside the numbers
        go on.
        """
        with self.again(Instant(0, _BEFORE_EPOCHS)), self.unpacked():
            yield
