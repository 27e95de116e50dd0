"""Sums of integers on the wire, each in as few bytes as its number of terms allows.

A sum of few integers needs no more bytes than a single one, and most sums have few terms. Both ends
know each sum's number of terms from one product with ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Message
from hpcgnn.spmm.wire import SUM_BYTES, sum_bytes
from hpcgnn.typing import Array, Offsets


@dataclass(frozen=True, eq=False)
class PackedSums:
    """Rows of sums as bytes: for each message all upper parts, int32, then the lower parts.

    A unit is one byte of each number of a row. `messages` are ranges of the `num_units` units,
    `spans` the rows of each message, and `longer` its rows with 5 and with 6 bytes.
    """

    messages: tuple[Message, ...]
    num_units: int
    spans: tuple[slice, ...]
    longer: tuple[tuple[Offsets, ...], ...]

    @classmethod
    def of(cls, messages: Sequence[Message], sizes: Array) -> "PackedSums":
        """Return the layout of the rows of messages, with `sizes` (rows,) bytes a number."""
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
        """Write integers (rows, width) in float64 to `out` (units, width) uint8."""
        # Numbers that are not finite become any integer; `IntegerSums` handles them.
        with np.errstate(invalid="ignore"):
            integers = rows.astype(np.int64)
        for span, upper, lower in self._parts(out):
            for row_numbers, part in lower:
                numbers = integers[row_numbers]
                np.copyto(part, numbers, casting="unsafe")
                integers[row_numbers] = numbers >> 8 * part.itemsize
            np.copyto(upper, integers[span], casting="unsafe")

    def unpack(self, packed: Array, out: Array) -> None:
        """Write the rows that were packed into `packed` to `out`."""
        for span, upper, lower in self._parts(packed):
            out[span] = upper
            for row_numbers, part in lower:
                out[row_numbers] = out[row_numbers] * 2.0 ** (8 * part.itemsize) + part

    def _parts(self, packed: Array) -> Iterator[tuple[slice, Array, list[tuple[Offsets, Array]]]]:
        """Yield the rows of each message, their upper parts, and lower parts of longer rows."""
        width, numbers = packed.shape[1], packed.reshape(-1)
        for message, span, longer in zip(self.messages, self.spans, self.longer, strict=True):
            at, lower = message.rows.start + SUM_BYTES[0] * (span.stop - span.start), []
            upper = numbers[message.rows.start * width : at * width]
            for size, rows in zip(SUM_BYTES[1:], longer, strict=True):
                over = size - SUM_BYTES[0]
                part = numbers[at * width : (at + over * len(rows)) * width]
                lower.append((rows, part.view(f"u{over}").reshape(len(rows), width)))
                at += over * len(rows)
            yield span, upper.view(np.int32).reshape(span.stop - span.start, width), lower


class SumRows:
    """The rows of the messages at one end of a stage, and the number of terms of each sum."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = tuple(messages)
        self._log_terms = np.zeros(sum(message.num_rows for message in messages), np.int8)
        self._packed: dict[int, PackedSums] = {}

    def count(self, terms: Array) -> None:
        """Record the numbers of terms of sums, (rows, 1), on both ends at the same time.

        Matrices of a pattern may differ, so the largest number is kept.
        """
        logs = np.frexp(terms.max(axis=1, initial=0))[1].astype(np.int8)
        self._log_terms = np.maximum(self._log_terms, logs)
        self._packed.clear()

    def packed(self, bits: int) -> PackedSums:
        """Return the layout of sums of numbers of `bits`; 0 if the bits are not known."""
        if bits not in self._packed:
            sizes = sum_bytes(self._log_terms, bits)
            if bits == 0:
                sizes = np.full(len(self._log_terms), SUM_BYTES[-1])
            self._packed[bits] = PackedSums.of(self._messages, sizes)
        return self._packed[bits]
