"""Forks of an idle process that has imported the training code, and the memory of that process."""

import contextlib
import mmap
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.spmd import LAUNCHER_PREFIXES
from hpcgnn.typing import Mask

FORK = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, eq=False)
class Imported:
    """The memory of a process that has imported the training code.

    `idle_bytes` is its resident set, `files` are the first page and the end of each range of pages
    where files are mapped, and `resident` masks those of these pages that it has read.
    """

    idle_bytes: int
    files: list[tuple[int, int]]
    resident: Mask

    @classmethod
    def now(cls) -> "Imported":
        """Return the memory of this process."""
        files = mapped_files()
        return cls(status_bytes("VmRSS"), files, resident(files))


_of_server: list[Imported] = []
"""The memory of the process that forks descend from; empty if each process imports for itself."""


def serve() -> None:
    """Make all later forks descend from this process as it is now.

    It must have imported what they need and have no threads.
    """
    _of_server[:] = [Imported.now()]
    resource_tracker.ensure_running()
    spawn = util.spawnv_passfds
    # multiprocessing would start a new Python, which would have to import everything again.
    util.spawnv_passfds = _fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = spawn


def imported() -> Imported:
    """Return the memory at the fork of this process's ancestor, or that of this process."""
    return _of_server[0] if _of_server else Imported.now()


def _fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # noqa: ARG001
    """Run the code of ``python -c ARGS[-1]`` in a fork, with all other files closed."""
    process = os.fork()
    if process:
        return process
    try:
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor not in passfds:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        # A launcher waits for the one process that it started, and MPI in a fork for the launcher.
        for name in [name for name in os.environ if name.startswith(LAUNCHER_PREFIXES)]:
            del os.environ[name]
        exec(args[-1], {})
    finally:
        os._exit(0)


def status_bytes(name: str) -> int:
    """Return the bytes of a line of /proc/self/status, such as VmHWM, the peak resident set.

    The rusage of a process would include the memory of its parent before the fork.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def mapped_files() -> list[tuple[int, int]]:
    """Return the first page and the end of each range of pages where files are mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.split()[4] != "0"]
    return [(int(low, 16) // mmap.PAGESIZE, int(end, 16) // mmap.PAGESIZE) for low, end in ranges]


def resident(pages: list[tuple[int, int]], table: str = "/proc/self/pagemap") -> Mask:
    """Return a mask of the pages that are in memory; all False if Linux does not tell."""
    try:
        with Path(table).open("rb", buffering=0) as file:
            entries = b"".join(os.pread(file.fileno(), 8 * (b - a), 8 * a) for a, b in pages)
    except OSError:
        entries = bytes(8 * sum(b - a for a, b in pages))
    return np.frombuffer(entries, np.uint64) >> np.uint64(63) == 1
