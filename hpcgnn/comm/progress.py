"""Messages that go on while nobody calls MPI: a thread asks after them.

MPI libraries move a long message only while someone calls them: of messages of 512 KiB and more
nothing arrives over TCP, however long the receiver computes before it waits. So a thread calls MPI
now and then while messages are under way, and computing hides them: products of the kernels, dense
products, and all else that releases the interpreter's lock. That needs a library that lets several
threads call it (``MPI_THREAD_MULTIPLE``), without which messages move when they are waited for.
"""

import threading
from time import sleep

from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.transfer import Transfer

_TICK_S = 5e-4
"""Between two calls. A call moves what the buffers of the sockets hold, about: at 10 Gbit/s half a
millisecond fills 640 KB."""
_LONG_BYTES = 1 << 16
"""Shorter messages are sent at once, and wait in the receiver's buffers."""
_IDLE_S = 1.0
"""Without messages the thread ends, so that nobody has to end it."""


class MessageProgress:
    """Keeps the messages of a grid moving, by a thread that lives while there are any."""

    def __init__(self) -> None:
        self.is_permitted: bool = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._under_way: list[Transfer] = []
        self._thread: threading.Thread | None = None

    def keep(self, transfer: Transfer, num_bytes: int) -> None:
        """Keep a transfer of so many bytes moving until it is waited for."""
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
                some = self._under_way.copy()
            ended = {id(transfer) for transfer in some if not transfer.move()}
            with self._lock:
                self._under_way = [
                    transfer for transfer in self._under_way if id(transfer) not in ended
                ]
            if len(ended) < len(some):
                sleep(_TICK_S)
            elif not self._wake.wait(_IDLE_S):
                with self._lock:
                    if not self._under_way:
                        self._thread = None
                        return
