"""The hierarchical exchange for rows on GPUs, which pass through the main memory of their host.

A row of another host crosses the network once for all GPUs of a host, and each GPU copies what its
block reads from the memory that the host's ranks share.
"""

from typing import Any, Protocol

import numpy as np

from hpcgnn.comm import Volume
from hpcgnn.kernels.cuda.device import DeviceArray
from hpcgnn.kernels.cuda.staging import Download, Uploads, empty_pinned
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.ghosts import Combine, Fetch, GhostExchange
from hpcgnn.typing import Array, LocalIndices

__all__ = ["DeviceHostExchange", "SharedExchange"]


class SharedExchange(GhostExchange, Protocol):
    """A ghost exchange in main memory that says what it reads."""

    @property
    def read_rows(self) -> LocalIndices:
        """Rows of the arrays that are fetched from which any rank needs, int32 increasing."""
        ...


class DeviceHostExchange:
    """A ghost exchange of main memory, for rows on a device.

    Not collective.

    Parameters
    ----------
    inner
        The exchange, resident or sequential.
    carrier
        Where the rows are.
    """

    def __init__(self, inner: SharedExchange, carrier: Carrier) -> None:
        self.inner, self.carrier, self.uploads = inner, carrier, Uploads()
        self.wire, self.sequential = inner.wire, inner.sequential
        self.host_rows = inner.read_rows
        self.device_rows = carrier.memory.put(self.host_rows)

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return the block by stages of a fetch.

        Not collective.
        """
        return self.inner.split(block)

    def split_push(self, block: LocalCSR) -> tuple[LocalCSR, ...] | None:
        """Return the block by stages of a push; None where those are a fetch's.

        Not collective.
        """
        return self.inner.split_push(block)

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each column of a stage of a fetch is.

        Not collective.
        """
        return self.inner.ghosts_of(index)

    def push_ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each column of a stage of a push is.

        Not collective.
        """
        return self.inner.push_ghosts_of(index)

    def start_fetch(self, x: DeviceArray, *, keep: bool = False) -> "_Fetch":
        """Start to copy what any rank needs to the host; messages start with the first stage.

        Collective.
        """
        return _Fetch(self, x, keep=keep)

    def start_push(self, like: DeviceArray, combine: Combine, *, additive: bool = False) -> "_Push":
        """Prepare the return of partial sums, which are added up on every host.

        Collective.
        """
        return _Push(self, like, combine, additive=additive)

    def volume(self) -> Volume:
        """Return the rows of one fetch that leave a host, and only those.

        Not collective.
        """
        return self.inner.volume()


class _Fetch:
    def __init__(self, exchange: DeviceHostExchange, x: DeviceArray, *, keep: bool) -> None:
        self._exchange, self._shape, self._keep = exchange, x.shape, keep
        carrier, rows = exchange.carrier, exchange.device_rows
        packed = carrier.take((len(rows), x.shape[1]), x.dtype)
        carrier.memory.kernels.gather_rows(x, rows, packed)
        self._download: Download | None = Download(packed, empty_pinned(packed.shape, x.dtype))
        self._inner: Fetch | None = None
        self._room: Any = None

    def stage(self, index: int) -> DeviceArray:
        if self._inner is None:
            self._inner = self._start()
        rows = self._inner.stage(index)
        if self._room is None or len(self._room) < len(rows):
            self._room = self._exchange.carrier.take(rows.shape, rows.dtype, ghosts=True)
        into = self._room[: len(rows)]
        self._exchange.uploads.start(rows, into)
        return into

    def _start(self) -> Fetch:
        assert self._download is not None
        self._download.wait()
        packed, exchange = self._download.host, self._exchange
        x = np.empty(self._shape, packed.dtype)
        x[exchange.host_rows] = packed
        self._download = None
        # What is kept is kept on the device.
        keep = self._keep and exchange.sequential
        return exchange.inner.start_fetch(x, keep=keep)


class _Push:
    def __init__(
        self, exchange: DeviceHostExchange, like: DeviceArray, combine: Combine, *, additive: bool
    ) -> None:
        self._exchange, self._width, self._dtype = exchange, like.shape[1], like.dtype
        carrier, uploads = exchange.carrier, exchange.uploads

        # Not a method: a cycle would keep the buffers until the collector runs.
        def bring(rows: LocalIndices, arrived: Array) -> None:
            there = carrier.take(arrived.shape, arrived.dtype)
            uploads.start(arrived, there)
            combine(carrier.memory.put(rows), there)

        empty = np.empty((0, self._width), self._dtype)
        self._inner = exchange.inner.start_push(empty, bring, additive=additive)
        self._room: Any = None

    def buffer(self, index: int) -> DeviceArray:
        num_rows = len(self._exchange.push_ghosts_of(index))
        if self._room is None or len(self._room) < num_rows:
            shape = num_rows, self._width
            self._room = self._exchange.carrier.take(shape, self._dtype, ghosts=True)
        self._partial = self._room[:num_rows]
        return self._partial

    def send(self, index: int) -> None:
        download = Download(self._partial, empty_pinned(self._partial.shape, self._dtype))
        download.wait()
        self._inner.buffer(index)[:] = download.host
        self._inner.send(index)

    def finish(self) -> None:
        self._inner.finish()
