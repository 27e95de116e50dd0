"""A thread that calls MPI regularly, so that messages progress while their rank computes.

MPI libraries move a long message only inside MPI calls: over TCP nothing of a message of 512 KiB or
more arrives, however long the receiver computes before it waits. So a thread polls MPI while
messages are under way, and they overlap with all computation that releases the interpreter's lock.
This needs ``MPI_THREAD_MULTIPLE``; without it, messages move only when they are waited for.
"""

import threading
from time import sleep

from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.transfer import Transfer

_TICK_S = 5e-4
"""Seconds between two calls. A call moves about what socket buffers hold; at 10 Gbit/s half a
millisecond fills 640 KB."""
_LONG_BYTES = 1 << 16
"""Shorter messages are sent at once and wait in the receiver's buffers."""
_IDLE_S = 1.0
"""Seconds without messages after which the thread ends, so that it needs no explicit stop."""


class MessageProgress:
    """Keeps the messages of a grid moving with a thread that lives while there are any."""

    def __init__(self) -> None:
        self.is_permitted: bool = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._under_way: list[Transfer] = []
        self._thread: threading.Thread | None = None

    def keep(self, transfer: Transfer, num_bytes: int) -> None:
        """Keep a transfer of `num_bytes` moving until it is waited for."""
        if not self.is_permitted or num_bytes < _LONG_BYTES or transfer.has_ended:
            return
        with self._lock:
            self._under_way.append(transfer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._wake.clear()
                moving = self._under_way.copy()
            ended = {id(transfer) for transfer in moving if not transfer.move()}
            with self._lock:
                self._under_way = [
                    transfer for transfer in self._under_way if id(transfer) not in ended
                ]
            if len(ended) < len(moving):
                sleep(_TICK_S)
            elif not self._wake.wait(_IDLE_S):
                with self._lock:
                    if not self._under_way:
                        self._thread = None
                        return
