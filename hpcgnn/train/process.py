"""The process of a rank: its threads and dense products, and requests to stop it."""

import atexit
import contextlib
import ctypes
import functools
import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import threadpoolctl
import torch

from hpcgnn.autograd.numerics.blas import multiply_alike
from hpcgnn.comm import ProcessGrid
from hpcgnn.console import number, report, warn
from hpcgnn.spmd import collective, crowded, threads_of

_SETTLING = 20
"""The number of first epochs, in which a heap finds its size."""
_GROWTH = 1.01
_REMEDY = "the cores of a rank (srun --cpus-per-task, mpiexec --bind-to none)"


class StopRequest:
    """Remembers that this rank was asked to stop; ranks agree on it once an epoch."""

    def __init__(self) -> None:
        self.received: str | None = None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM and SIGUSR1 into a request while the block runs, the last one of a process.

    After a block without error they have no effect: one that is repeated, or comes late, must not
    change the exit status while MPI ends.
    """
    request = StopRequest()

    def remember(number: int, _frame: object) -> None:
        request.received = signal.Signals(number).name

    before = {
        number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield request
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in before:
        # Until then the handler stays: processes started meanwhile would inherit ignored signals.
        atexit.register(signal.signal, number, signal.SIG_IGN)


@collective
def prepare_process(grid: ProcessGrid, requested: int) -> int:
    """Prepare this process for computing; return the number of threads of each of its pools.

    The pools are those of torch, of OpenMP, which our kernels also use, and of NumPy's BLAS. Dense
    products use the fastest library, the same on all ranks (`hpcgnn.autograd.numerics.blas`). If
    `requested` is 0, OMP_NUM_THREADS decides if it is set; otherwise the ranks of this host share
    the cores that they may use.
    """
    own = os.sched_getaffinity(0)
    # A bit for each core: every rank gets this of all.
    masks: list[int] = grid.world.allgather(sum(1 << core for core in own))
    of_hosts: dict[str, list[set[int]]] = defaultdict(list)
    for host, mask in zip(grid.host_names, masks, strict=True):
        of_hosts[host].append(_cores_of(mask))
    if requested == 0:
        requested = threads_of(own, of_hosts[grid.host], os.environ.get("OMP_NUM_THREADS"))
    # Hosts of unequal cores give their ranks unequal threads.
    threads: list[int] = grid.world.allgather(requested)
    if grid.rank == 0:
        _tell_of_cores(of_hosts, [mask.bit_count() for mask in masks], threads)
    # Our kernels and torch both follow OpenMP's setting, which torch changes for the process.
    torch.set_num_threads(requested)
    # Each BLAS has a pool of its own; a plain start, without OMP_NUM_THREADS, gives it all cores.
    threadpoolctl.threadpool_limits(requested)
    multiply_alike(grid)
    return requested


def _tell_of_cores(
    of_hosts: Mapping[str, list[set[int]]], cores: Sequence[int], threads: Sequence[int]
) -> None:
    """Tell of ranks that share cores, and of `cores` and `threads` of ranks that do not match."""
    full = {host: shared for host, mates in of_hosts.items() if (shared := crowded(mates))}
    for host, (count, free) in itertools.islice(full.items(), 1):
        others = f", and so on {number(len(full) - 1, 'other host')}" if len(full) > 1 else ""
        report(
            f"{host}: {count} ranks share {number(free, 'core')}{others}; they wait for each "
            f"other: start fewer, or give the launcher {_REMEDY}"
        )
    if min(threads) < max(threads):
        report(f"ranks have {min(threads)} to {max(threads)} threads: their cores differ")
    few = [count for count, own in zip(threads, cores, strict=True) if own < count]
    if few:
        warn(
            f"{len(few)} of {len(threads)} ranks may use fewer cores than their {max(few)} "
            f"threads: give the launcher {_REMEDY}"
        )


@functools.cache
def _cores_of(mask: int) -> set[int]:
    return {core for core in range(mask.bit_length()) if mask >> core & 1}


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return _pages()[1] * os.sysconf("SC_PAGE_SIZE")


class HeapBound:
    """Limits the fragmentation of the C library's heap over the epochs of a process.

    Steps of varying size free blocks that later allocations do not fit into, with longer-lived
    blocks, such as kernels compiled by oneDNN, between them. Once the process holds 1 % more than
    in its first epochs, free pages go back to the system. That should be rare, as each page used
    again must be cleared first. It needs glibc; with other libraries nothing happens.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._epochs = self._usual = 0

    def end_epoch(self) -> None:
        """Check the memory of the process, and return free pages if it has grown."""
        _, resident, mapped, *_ = _pages()
        # Without mapped files: pages of a store are resident as long as the system likes.
        anonymous = resident - mapped
        self._epochs += 1
        if self._epochs <= _SETTLING:
            self._usual = max(self._usual, anonymous)
        elif anonymous > _GROWTH * self._usual and self._trim is not None:
            self._trim(0)


def _pages() -> list[int]:
    """Return the page counts of this process in ``/proc/self/statm``, see proc(5)."""
    # Read once or twice an epoch, and opened once: a new file object takes ten times as long.
    return [int(number) for number in os.pread(_page_counts(os.getpid()), 256, 0).split()]


@functools.cache
def _page_counts(_process: int) -> int:
    """Return an open descriptor of the page counts; a forked process opens its own."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def describe_binding() -> str:
    """Return the cores that this process may use, as ``cores 0-3,8``."""
    cores = sorted(os.sched_getaffinity(0))
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "cores " + ",".join(
        f"{cores[0]}-{cores[-1]}" if len(cores) > 1 else str(cores[0]) for cores in runs
    )
