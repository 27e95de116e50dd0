"""The messages of a plan: rows as they are, or packed in few bits while they travel.

Above a route nothing knows of packed rows: it packs what is sent and unpacks what arrives into the
arrays that it was given, whichever exchange, stage or direction they belong to.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from typing_extensions import override

from hpcgnn.comm import CommPlan, Stage, Transfer
from hpcgnn.kernels import dequantise_rows, quantise_rows
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.spmm.exchange.ghosts import Channel
from hpcgnn.spmm.exchange.stages import exchange_span, rows_to, world_ranks
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
        self._ids: dict[bool, list[GlobalIndices]] = {}
        if self._wire.quantises:
            assert ids is not None, "rows that are rounded at random have names"
            theirs = channel.peers.ids(plan, ids)
            for forward, names in ((True, ids), (False, theirs)):
                ends = [stage.ends(forward=forward)[0] for stage in stages]
                self._ids[forward] = [
                    np.concatenate([names[:0], *(names[message.rows] for message in end)])
                    for end in ends
                ]

    def span(self, index: int, rows: Array, *, forward: bool) -> Span:
        """Return the span of a stage, whose rows are of the width and dtype of `rows`."""
        name = "exchange.forward" if forward else "exchange.reverse"
        size = self._wire.way_bytes(rows, self._moment)
        return exchange_span(self._trace, name, self._sent[forward][index], size, self._carrier)

    @neighborwise_collective
    def start(
        self, index: int, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Start the messages of a stage; see `Carrier.start`."""
        carrier = self._carrier
        if self._wire.has_sums(sent):
            packed, arrived = (
                carrier.take((len(e), self._wire.way_bytes(e, self._moment)), np.uint8)
                for e in (sent, received)
            )
            pack_sums(sent, packed)
            going, coming = self._start(index, packed, arrived, forward=forward)
            return going, _Unpacked(coming, partial(unpack_sums, arrived, received))
        bits = self._wire.bits_of(sent.dtype, backward=self._moment.is_backward)
        if bits is None:
            return self._start(index, sent, received, forward=forward)
        size = self._wire.row_bytes(sent, backward=self._moment.is_backward)
        packed, arrived = (carrier.take((len(e), size), np.uint8) for e in (sent, received))
        # Rows of an owner are rounded once, equally for all readers; partial sums are each rank's
        # own.
        key = self._moment.key(None if forward else self._sender)
        quantise_rows(sent, self._ids[forward][index], key, bits, packed)
        going, coming = self._start(index, packed, arrived, forward=forward)
        return going, _Unpacked(coming, partial(dequantise_rows, arrived, bits, received))

    @neighborwise_collective
    def _start(
        self, index: int, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        stage = self._stages[index]
        transfers = self._carrier.start(self._plan, stage, sent, received, forward=forward)
        if (count := transfers[0].num_joined) > 0:
            self._trace.note(joined_messages=count)
        return transfers


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


def pack_sums(rows: Array, out: Array) -> None:
    """Write integers (rows, width) in float64 in 4, 5 or 6 columns of uint8 each.

    Four have all of a number of 4 bytes, else what is above the others, which follow.
    """
    width = rows.shape[1]
    upper, lower, bits = _packed(out, width)
    # What is not finite is any integer: `IntegerSums` knows of it.
    with np.errstate(invalid="ignore"):
        whole = rows.astype(np.int64)
    if lower is not None:
        np.copyto(lower, whole, casting="unsafe")
        whole >>= bits
    np.copyto(upper, whole, casting="unsafe")


def unpack_sums(packed: Array, out: Array) -> None:
    """Write what `pack_sums` was given."""
    upper, lower, bits = _packed(packed, out.shape[1])
    np.multiply(upper, 2.0**bits, out=out)
    if lower is not None:
        out += lower


def _packed(rows: Array, width: int) -> tuple[Array, Array | None, int]:
    """Return the upper parts of packed sums, int32, the lower ones, unsigned, and their bits."""
    bits = 8 * (rows.shape[1] // max(width, 1) - 4)
    upper, lower = rows[:, : 4 * width].view(np.int32), rows[:, 4 * width :]
    return upper, lower.view(f"u{bits // 8}") if bits > 0 else None, max(bits, 0)
