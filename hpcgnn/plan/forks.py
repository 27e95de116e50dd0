"""Forks of a process that has imported training and does nothing else, and what it holds."""

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

from hpcgnn.typing import Mask

FORK = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, eq=False)
class Imported:
    """What a process has in memory that has imported training.

    `idle_bytes` is its resident set, `files` are first and end of each range of pages where files
    are mapped, `resident` tells which of these pages it has read.
    """

    idle_bytes: int
    files: list[tuple[int, int]]
    resident: Mask

    @classmethod
    def now(cls) -> "Imported":
        """Return what this process has."""
        files = mapped_files()
        return cls(status_bytes("VmRSS"), files, resident(files))


_of_server: list[Imported] = []
"""What the process had that forks are of; empty where each imports for itself."""


def serve() -> None:
    """Make all later forks those of this process as it is now.

    It has imported what they need, and has no threads.
    """
    _of_server[:] = [Imported.now()]
    resource_tracker.ensure_running()
    spawn = util.spawnv_passfds
    # multiprocessing would start Python again, which would import everything a second time.
    util.spawnv_passfds = _fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = spawn


def imported() -> Imported:
    """Return what the process has, or had, that this one is a fork of."""
    return _of_server[0] if _of_server else Imported.now()


def _fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # noqa: ARG001
    """Start what ``python -c ARGS[-1]`` would run as a fork, with no other files open."""
    process = os.fork()
    if process:
        return process
    try:
        for each in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if each > 2 and each not in passfds:
                with contextlib.suppress(OSError):
                    os.close(each)
        exec(args[-1], {})
    finally:
        os._exit(0)


def status_bytes(name: str) -> int:
    """Return a line of /proc/self/status that is in kB: VmHWM, the most resident at one time.

    The rusage of a process counts what its parent held before it, too.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def mapped_files() -> list[tuple[int, int]]:
    """Return the pages of this process where files are mapped: first and end of each mapping."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.split()[4] != "0"]
    return [(int(low, 16) // mmap.PAGESIZE, int(end, 16) // mmap.PAGESIZE) for low, end in ranges]


def resident(pages: list[tuple[int, int]], table: str = "/proc/self/pagemap") -> Mask:
    """Return which of some pages this process has in memory; none where Linux does not tell."""
    try:
        with Path(table).open("rb", buffering=0) as file:
            entries = b"".join(os.pread(file.fileno(), 8 * (b - a), 8 * a) for a, b in pages)
    except OSError:
        entries = bytes(8 * sum(b - a for a, b in pages))
    return np.frombuffer(entries, np.uint64) >> np.uint64(63) == 1
