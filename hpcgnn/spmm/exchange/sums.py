"""Sums of integers on their way: each takes the bytes that its own terms ask for.

A sum of few integers needs no more bytes than one of them, and most sums are of few. Both ends know
how many terms each has: a product of ones tells, once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Message
from hpcgnn.spmm.wire import SUM_BYTES, sum_bytes
from hpcgnn.typing import Array, Offsets


@dataclass(frozen=True, eq=False)
class PackedSums:
    """Rows of sums as bytes: message by message all upper parts, int32, then the lower ones.

    A unit is a byte of each number of a row: `messages` are in units, `num_units` in all; `spans`
    are the rows of each message, and `longer` those of 5 and of 6 bytes.
    """

    messages: tuple[Message, ...]
    num_units: int
    spans: tuple[slice, ...]
    longer: tuple[tuple[Offsets, ...], ...]

    @classmethod
    def of(cls, messages: Sequence[Message], sizes: Array) -> "PackedSums":
        """Return how the rows of messages travel, in so many bytes a number, (rows,)."""
        first = unit = 0
        packed, spans, longer = [], [], []
        for message in messages:
            span = slice(first, first + message.num_rows)
            units = int(sizes[span].sum())
            packed.append(Message(message.peer, slice(unit, unit + units)))
            spans.append(span)
            longer.append(tuple(first + np.flatnonzero(sizes[span] == e) for e in SUM_BYTES[1:]))
            first, unit = span.stop, unit + units
        return cls(tuple(packed), unit, tuple(spans), tuple(longer))

    def pack(self, rows: Array, out: Array) -> None:
        """Write integers (rows, width) in float64 to (units, width) of uint8."""
        # What is not finite is any integer: `IntegerSums` knows of it.
        with np.errstate(invalid="ignore"):
            integers = rows.astype(np.int64)
        for span, upper, lower in self._parts(out):
            for places, part in lower:
                numbers = integers[places]
                np.copyto(part, numbers, casting="unsafe")
                integers[places] = numbers >> 8 * part.itemsize
            np.copyto(upper, integers[span], casting="unsafe")

    def unpack(self, packed: Array, out: Array) -> None:
        """Write what `pack` was given."""
        for span, upper, lower in self._parts(packed):
            out[span] = upper
            for places, part in lower:
                out[places] = out[places] * 2.0 ** (8 * part.itemsize) + part

    def _parts(self, packed: Array) -> Iterator[tuple[slice, Array, list[tuple[Offsets, Array]]]]:
        """Yield the rows of each message, their upper parts, and the lower ones of some."""
        width, numbers = packed.shape[1], packed.reshape(-1)
        for message, span, longer in zip(self.messages, self.spans, self.longer, strict=True):
            at, lower = message.rows.start + SUM_BYTES[0] * (span.stop - span.start), []
            upper = numbers[message.rows.start * width : at * width]
            for size, places in zip(SUM_BYTES[1:], longer, strict=True):
                over = size - SUM_BYTES[0]
                part = numbers[at * width : (at + over * len(places)) * width]
                lower.append((places, part.view(f"u{over}").reshape(len(places), width)))
                at += over * len(places)
            yield span, upper.view(np.int32).reshape(span.stop - span.start, width), lower


class SumRows:
    """The rows of the messages at one end of a stage, and of how many terms each is a sum."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = tuple(messages)
        self._log_terms = np.zeros(sum(message.num_rows for message in messages), np.int8)
        self._packed: dict[int, PackedSums] = {}

    def count(self, terms: Array) -> None:
        """Take note of sums (rows, 1) where every number is one; matrices of a pattern may differ.

        Both ends do so at one time.
        """
        logs = np.frexp(terms.max(axis=1, initial=0))[1].astype(np.int8)
        self._log_terms = np.maximum(self._log_terms, logs)
        self._packed.clear()

    def packed(self, bits: int) -> PackedSums:
        """Return how they travel where a number has so many bits; 0: it is not known."""
        if bits not in self._packed:
            sizes = sum_bytes(self._log_terms, bits)
            if bits == 0:
                sizes = np.full(len(self._log_terms), SUM_BYTES[-1])
            self._packed[bits] = PackedSums.of(self._messages, sizes)
        return self._packed[bits]
