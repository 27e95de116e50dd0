"""The messages of a plan: rows as they are, or packed in few bits while they travel.

Above a route nothing knows of packed rows: it packs what is sent and unpacks what arrives into the
arrays that it was given, whichever exchange, stage or direction they belong to.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from typing_extensions import override

from hpcgnn.comm import CommPlan, Stage, Transfer
from hpcgnn.kernels import dequantise_rows, quantise_rows
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.spmm.exchange.ghosts import Channel
from hpcgnn.spmm.exchange.stages import exchange_span, rows_to, world_ranks
from hpcgnn.spmm.exchange.sums import SumRows
from hpcgnn.spmm.wire import Columns, Packing
from hpcgnn.trace import Span, TraceRecorder
from hpcgnn.typing import Array, GlobalIndices


class Route:
    """How the rows of a plan travel.

    `ids` (num_sent,) int64 name the rows that the plan sends, which those that are rounded at
    random are drawn by; None where nothing is drawn.
    """

    @collective
    def __init__(
        self,
        channel: Channel,
        plan: CommPlan,
        stages: Sequence[Stage],
        ids: GlobalIndices | None,
    ) -> None:
        self._carrier, self._trace, self._wire = channel.carrier, channel.trace, channel.wire
        self._moment, self._sender = channel.grid.moment, channel.grid.block
        self._plan, self._stages = plan, stages
        ranks = world_ranks(channel.grid)
        self._sent = {
            forward: [rows_to(stage.ends(forward=forward)[0], ranks) for stage in stages]
            for forward in (True, False)
        }
        # Of what goes back to the owners: what leaves, and what arrives.
        self._sums: list[tuple[SumRows, SumRows]] = []
        if self._wire.integers:
            self._sums = [(SumRows(stage.ghosts), SumRows(stage.owned)) for stage in stages]
        # The names of the rows of a stage, of what its owners have and of what its readers get.
        self._ids: list[dict[bool, GlobalIndices]] = []
        if self._wire.quantises:
            assert ids is not None, "rows that are rounded at random have names"
            theirs = channel.peers.ids(plan, ids)
            self._ids = [
                {
                    is_owner: np.concatenate([names[:0], *(names[one.rows] for one in end)])
                    for is_owner, names, end in (
                        (True, ids, stage.owned),
                        (False, theirs, stage.ghosts),
                    )
                }
                for stage in stages
            ]

    def span(self, index: int, rows: Array, columns: Packing | None, *, forward: bool) -> Span:
        """Return the span of a stage, whose rows are of the width and dtype of `rows`."""
        name, wire = "exchange.forward" if forward else "exchange.reverse", self._wire
        size: int | list[int] = wire.way_bytes(rows, self._moment, columns, forward=forward)
        if self._wire.has_sums(rows, forward=forward):
            packed = self._sums[index][0].packed(self._moment.sum_bits)
            size = [message.num_rows * rows.shape[1] for message in packed.messages]
        return exchange_span(self._trace, name, self._sent[forward][index], size, self._carrier)

    @neighborwise_collective
    def start(
        self,
        index: int,
        sent: Array,
        received: Array,
        columns: Packing | None,
        *,
        forward: bool,
    ) -> tuple[Transfer, Transfer]:
        """Start the messages of a stage; see `Carrier.start` and `GhostExchange.start_fetch`."""
        carrier, stage = self._carrier, self._stages[index]
        if self._wire.has_sums(sent, forward=forward):
            return self._start_sums(index, sent, received)
        parts = self._wire.packing(sent, self._moment.now, columns)
        if all(bits is None for *_, bits in parts):
            return self._start(stage, sent, received, forward=forward)
        size = sum(size for _, size, _ in parts)
        packed, arrived = (carrier.take((len(e), size), np.uint8) for e in (sent, received))
        # Rows of an owner are rounded once, equally for all readers; partial sums are each rank's
        # own.
        ids, sender = self._ids[index], None if forward else self._sender
        pack_rows(parts, sent, packed, ids[forward], sender)
        going, coming = self._start(stage, packed, arrived, forward=forward)
        senders: list[tuple[int, int | None]] = [(len(received), None)]
        if not forward:
            senders = [(message.num_rows, message.peer) for message in stage.owned]

        def unpack() -> None:
            unpack_rows(parts, received, arrived, ids[not forward], senders)

        return going, _Unpacked(coming, unpack)

    @neighborwise_collective
    def _start_sums(self, index: int, sent: Array, received: Array) -> tuple[Transfer, Transfer]:
        """Start the messages of a stage back to the owners, of sums of integers."""
        bits, (here, there) = self._moment.sum_bits, self._sums[index]
        out, into = here.packed(bits), there.packed(bits)
        packed, arrived = (
            self._carrier.take((side.num_units, sent.shape[1]), np.uint8) for side in (out, into)
        )
        out.pack(sent, packed)
        if self._moment.counts_terms:
            here.count(sent)
        stage = replace(self._stages[index], ghosts=out.messages, owned=into.messages)
        going, coming = self._start(stage, packed, arrived, forward=False)

        def unpack(*, counts: bool = self._moment.counts_terms) -> None:
            into.unpack(arrived, received)
            if counts:
                there.count(received)

        return going, _Unpacked(coming, unpack)

    @neighborwise_collective
    def _start(
        self, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        transfers = self._carrier.start(self._plan, stage, sent, received, forward=forward)
        if (count := transfers[0].num_joined) > 0:
            self._trace.note(joined_messages=count)
        return transfers


class _Part(NamedTuple):
    """Some columns of rows, as they are and packed; see `Wire.packing`."""

    columns: Columns
    bits: int | None
    rows: Array
    packed: Array

    def pack(self, ids: GlobalIndices, sender: int | None) -> None:
        """Pack rows of these names."""
        if self.bits is None:
            self.packed[:] = self.rows.view(np.uint8)
        elif self.columns.drawn is not None:
            key = self.columns.drawn.key(sender)
            quantise_rows(self.rows, ids, key, self.bits, self.packed)

    def unpack(self, ids: GlobalIndices, senders: list[tuple[int, int | None]]) -> None:
        """Unpack rows of these names; so many after the other are of each sender."""
        if self.bits is None:
            self.rows.view(np.uint8)[:] = self.packed
            return
        stop = 0
        for count, sender in senders:
            rows = slice(stop, stop + count)
            stop += count
            if self.columns.drawn is not None:
                key = self.columns.drawn.key(sender)
                dequantise_rows(self.packed[rows], ids[rows], key, self.bits, self.rows[rows])


Parts: TypeAlias = list[tuple[Columns, int, int | None]]
"""Columns of rows, the bytes of each, and their bits; see `Wire.packing`."""


def pack_rows(
    parts: Parts, rows: Array, packed: Array, ids: GlobalIndices, sender: int | None
) -> None:
    """Pack rows of the names `ids` into (rows, bytes) uint8; `sender` as of `Instant.key`."""
    for part in _parts(parts, rows, packed):
        part.pack(ids, sender)


def unpack_rows(
    parts: Parts,
    rows: Array,
    packed: Array,
    ids: GlobalIndices,
    senders: list[tuple[int, int | None]],
) -> None:
    """Unpack rows of the names `ids`; so many after the other are of each of some senders."""
    for part in _parts(parts, rows, packed):
        part.unpack(ids, senders)


def _parts(parts: Parts, rows: Array, packed: Array) -> Iterator[_Part]:
    """Yield the columns of rows, and of packed rows."""
    first = start = 0
    for columns, size, bits in parts:
        own, theirs = slice(first, first + columns.width), slice(start, start + size)
        yield _Part(columns, bits, rows[:, own], packed[:, theirs])
        first, start = own.stop, theirs.stop


class _Unpacked(Transfer):
    """Packed rows that arrive; `wait` unpacks them."""

    def __init__(self, coming: Transfer, unpack: Callable[[], None]) -> None:
        super().__init__()
        self._coming: Transfer | None = coming
        self._unpack = unpack

    @neighborwise_collective
    @override
    def wait(self, trace: TraceRecorder | None = None) -> None:
        if self._coming is None:
            return
        self._coming.wait(trace)
        self._coming = None
        self._unpack()
