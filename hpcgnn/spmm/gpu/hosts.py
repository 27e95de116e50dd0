"""The hierarchical exchange for rows on GPUs, which go through the main memory of their host.

A row of another host crosses the network once for all GPUs of a host. Each GPU copies the rows that
its block reads from the memory that the host's ranks share.
"""

from typing import Any

import numpy as np

from hpcgnn.comm import Volume
from hpcgnn.kernels.cuda.device import DeviceArray
from hpcgnn.kernels.cuda.staging import Download, Uploads, empty_pinned
from hpcgnn.spmd import collective
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.exchange.ghosts import Fetch
from hpcgnn.spmm.exchange.hosts import HostExchange
from hpcgnn.spmm.exchange.stages import Combine
from hpcgnn.spmm.wire import Packing
from hpcgnn.typing import Array, LocalIndices


class DeviceHostExchange:
    """Wraps a ghost exchange in main memory for rows on a device."""

    def __init__(self, inner: HostExchange, carrier: Carrier) -> None:
        self.inner, self.carrier, self.uploads = inner, carrier, Uploads()
        self.wire, self.push_wire, self.sequential = inner.wire, inner.push_wire, inner.sequential
        self.columns, self.push_columns, self.plan = inner.columns, inner.push_columns, None
        self.host_rows = inner.read_rows
        self.device_rows = carrier.memory.put(self.host_rows)

    @collective
    def start_fetch(
        self, x: DeviceArray, *, keep: bool = False, columns: Packing | None = None
    ) -> "_DeviceFetch":
        """Start to copy the rows that any rank needs to the host; `stage` starts the messages."""
        # Rows on a device are never packed.
        del columns
        return _DeviceFetch(self, x, keep=keep)

    @collective
    def start_push(
        self, like: DeviceArray, combine: Combine, columns: Packing | None = None
    ) -> "_DevicePush":
        """Prepare the return of partial sums, which are added up on every host."""
        del columns
        return _DevicePush(self, like, combine)

    def volume(self) -> Volume:
        """Return the rows of one fetch that are sent between hosts."""
        return self.inner.volume()


class _DeviceFetch:
    def __init__(self, exchange: DeviceHostExchange, x: DeviceArray, *, keep: bool) -> None:
        self._exchange, self._shape, self._keep = exchange, x.shape, keep
        carrier, rows = exchange.carrier, exchange.device_rows
        packed = carrier.take((len(rows), x.shape[1]), x.dtype)
        carrier.memory.kernels.gather_rows(x, rows, packed)
        self._download: Download | None = Download(packed, empty_pinned(packed.shape, x.dtype))
        self._inner: Fetch | None = None
        self._buffer: Any = None

    def stage(self, index: int) -> DeviceArray:
        if self._inner is None:
            self._inner = self._start()
        rows = self._inner.stage(index)
        if self._buffer is None or len(self._buffer) < len(rows):
            self._buffer = self._exchange.carrier.take(rows.shape, rows.dtype, ghosts=True)
        into = self._buffer[: len(rows)]
        self._exchange.uploads.start(rows, into)
        return into

    def _start(self) -> Fetch:
        assert self._download is not None
        self._download.wait()
        packed, exchange = self._download.host, self._exchange
        x = np.empty(self._shape, packed.dtype)
        x[exchange.host_rows] = packed
        self._download = None
        # The device keeps the rows; a sequential exchange raises the error for `keep`.
        keep = self._keep and exchange.sequential
        return exchange.inner.start_fetch(x, keep=keep)


class _DevicePush:
    def __init__(self, exchange: DeviceHostExchange, like: DeviceArray, combine: Combine) -> None:
        self._exchange, self._width, self._dtype = exchange, like.shape[1], like.dtype
        carrier, uploads = exchange.carrier, exchange.uploads

        # A method would form a reference cycle, which keeps buffers until garbage collection.
        def bring(rows: LocalIndices, arrived: Array) -> None:
            received = carrier.take(arrived.shape, arrived.dtype)
            uploads.start(arrived, received)
            combine(carrier.memory.put(rows), received)

        empty = np.empty((0, self._width), self._dtype)
        self._inner = exchange.inner.start_push(empty, Combine(bring, combine.adds))
        self._buffer: Any = None

    def buffer(self, index: int) -> DeviceArray:
        num_rows = self._exchange.push_columns.widths[index]
        if self._buffer is None or len(self._buffer) < num_rows:
            shape = num_rows, self._width
            self._buffer = self._exchange.carrier.take(shape, self._dtype, ghosts=True)
        self._partial = self._buffer[:num_rows]
        return self._partial

    def send(self, index: int) -> None:
        download = Download(self._partial, empty_pinned(self._partial.shape, self._dtype))
        download.wait()
        self._inner.buffer(index)[:] = download.host
        self._inner.send(index)

    def finish(self) -> None:
        self._inner.finish()
