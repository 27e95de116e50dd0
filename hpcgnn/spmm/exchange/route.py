"""The messages of a plan: rows as they are, or packed in few bits while they travel.

Code that uses a route is unaware of packed rows: the route packs what is sent, and unpacks what
arrives into the given arrays, for any exchange, stage and direction.
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
from hpcgnn.spmm.wire import ColumnRange, Packing
from hpcgnn.trace import Span, TraceRecorder
from hpcgnn.typing import Array, GlobalIndices


class Route:
    """Sends and receives the rows of a plan.

    `ids` (num_sent,) int64 of the rows that the plan sends determine the draws of stochastic
    rounding; None without it.
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
        self._run_position, self._sender = channel.grid.run_position, channel.grid.block
        self._plan, self._stages = plan, stages
        ranks = world_ranks(channel.grid)
        self._sent = {
            forward: [rows_to(stage.ends(forward=forward)[0], ranks) for stage in stages]
            for forward in (True, False)
        }
        # Outgoing and arriving sums of each stage, on their way back to owners.
        self._sums: list[tuple[SumRows, SumRows]] = []
        if self._wire.integers:
            self._sums = [(SumRows(stage.ghosts), SumRows(stage.owned)) for stage in stages]
        # The ids of the rows of each stage, by whether this rank owns them.
        self._ids: list[dict[bool, GlobalIndices]] = []
        if self._wire.quantises:
            assert ids is not None, "stochastic rounding needs ids"
            ghost_ids = channel.peers.ids(plan, ids)
            self._ids = [
                {
                    is_owner: np.concatenate([of_rows[:0], *(of_rows[m.rows] for m in messages)])
                    for is_owner, of_rows, messages in (
                        (True, ids, stage.owned),
                        (False, ghost_ids, stage.ghosts),
                    )
                }
                for stage in stages
            ]

    def span(self, index: int, rows: Array, columns: Packing | None, *, forward: bool) -> Span:
        """Return the span of a stage with rows of the width and dtype of `rows`."""
        name, wire = "exchange.forward" if forward else "exchange.reverse", self._wire
        size: int | list[int] = wire.way_bytes(rows, self._run_position, columns, forward=forward)
        if self._wire.has_sums(rows, forward=forward):
            packed = self._sums[index][0].packed(self._run_position.sum_bits)
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
        parts = self._wire.packing(sent, self._run_position.now, columns)
        if all(bits is None for *_, bits in parts):
            return self._start(stage, sent, received, forward=forward)
        size = sum(size for _, size, _ in parts)
        packed, arrived = (carrier.take((len(e), size), np.uint8) for e in (sent, received))
        # All readers get the same rounding of an owner's rows; partial sums differ by sender.
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
        """Start the messages of a stage that return sums of integers to their owners."""
        bits, (outgoing, incoming) = self._run_position.sum_bits, self._sums[index]
        out, into = outgoing.packed(bits), incoming.packed(bits)
        packed, arrived = (
            self._carrier.take((side.num_units, sent.shape[1]), np.uint8) for side in (out, into)
        )
        out.pack(sent, packed)
        if self._run_position.counts_terms:
            outgoing.count(sent)
        stage = replace(self._stages[index], ghosts=out.messages, owned=into.messages)
        going, coming = self._start(stage, packed, arrived, forward=False)

        def unpack(*, counts: bool = self._run_position.counts_terms) -> None:
            into.unpack(arrived, received)
            if counts:
                incoming.count(received)

        return going, _Unpacked(coming, unpack)

    @neighborwise_collective
    def _start(
        self, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        transfers = self._carrier.start(self._plan, stage, sent, received, forward=forward)
        if (count := transfers[0].num_joined) > 0:
            self._trace.note(joined_messages=count)
        return transfers


class _PackedRange(NamedTuple):
    """A column range of rows, unpacked and packed; see `Wire.packing`."""

    columns: ColumnRange
    bits: int | None
    rows: Array
    packed: Array

    def pack(self, ids: GlobalIndices, sender: int | None) -> None:
        """Pack rows with these ids; `sender` as in `Instant.key`."""
        if self.bits is None:
            self.packed[:] = self.rows.view(np.uint8)
        elif self.columns.instant is not None:
            key = self.columns.instant.key(sender)
            quantise_rows(self.rows, ids, key, self.bits, self.packed)

    def unpack(self, ids: GlobalIndices, senders: list[tuple[int, int | None]]) -> None:
        """Unpack rows with these ids; each of `senders` in turn sent the given number of rows."""
        if self.bits is None:
            self.rows.view(np.uint8)[:] = self.packed
            return
        stop = 0
        for count, sender in senders:
            rows = slice(stop, stop + count)
            stop += count
            if self.columns.instant is not None:
                key = self.columns.instant.key(sender)
                dequantise_rows(self.packed[rows], ids[rows], key, self.bits, self.rows[rows])


Parts: TypeAlias = list[tuple[ColumnRange, int, int | None]]
"""Column ranges of rows, with the bytes and the bits of each; see `Wire.packing`."""


def pack_rows(
    parts: Parts, rows: Array, packed: Array, ids: GlobalIndices, sender: int | None
) -> None:
    """Pack rows with `ids` into (rows, bytes) uint8; `sender` as in `Instant.key`."""
    for part in _parts(parts, rows, packed):
        part.pack(ids, sender)


def unpack_rows(
    parts: Parts,
    rows: Array,
    packed: Array,
    ids: GlobalIndices,
    senders: list[tuple[int, int | None]],
) -> None:
    """Unpack rows with `ids`; each of `senders` in turn sent the given number of rows."""
    for part in _parts(parts, rows, packed):
        part.unpack(ids, senders)


def _parts(parts: Parts, rows: Array, packed: Array) -> Iterator[_PackedRange]:
    """Yield the column ranges of rows and of packed rows."""
    first = start = 0
    for columns, size, bits in parts:
        stop, end = first + columns.width, start + size
        yield _PackedRange(columns, bits, rows[:, first:stop], packed[:, start:end])
        first, start = stop, end


class _Unpacked(Transfer):
    """A transfer of packed rows, which `wait` unpacks."""

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
