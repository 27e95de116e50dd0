"""Timing that is robust on a busy machine: warm-up, functions in turn, medians and spread.

`interleave` times several functions in one process, one call each in every round and in a rotating
order, so that load, clock and caches affect them alike: ratios within a run can be trusted, seconds
of different runs cannot. `surroundings` describes the machine.
"""

import math
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hpcgnn.trace.energy import POWERCAP, Counters

__all__ = ["Timing", "children_cpu_s", "commit", "interleave", "joules_of_host", "surroundings"]


@dataclass(frozen=True)
class Timing:
    """Elapsed seconds of the calls of one function, and processor seconds of all threads.

    `joules` are those of all processors of the host; empty if their counters cannot be read.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()
    joules: tuple[float, ...] = ()

    @property
    def median_s(self) -> float:
        """Return the median."""
        return statistics.median(self.seconds)

    @property
    def median_cpu_s(self) -> float:
        """Return the median of the processor seconds."""
        return statistics.median(self.cpu_seconds)

    @property
    def median_j(self) -> float | None:
        """Return the median of the joules; None if they were not measured."""
        return statistics.median(self.joules) if self.joules else None

    @property
    def spread(self) -> float:
        """Return the interquartile distance divided by the median; 0 for a single call."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median_s


def interleave(
    functions: Mapping[str, Callable[[], object]],
    *,
    warmup: int,
    repeat: int,
    least_s: float = 0.0,
    most: int = 200,
    most_s: float = math.inf,
    folder: Path = POWERCAP,
) -> dict[str, Timing]:
    """Time `functions` in turn.

    Parameters
    ----------
    warmup
        Rounds that are not counted.
    repeat
        Least number of counted rounds; more, up to `most`, until they have taken `least_s` seconds.
    most_s
        A function that has taken this many seconds in two or more counted rounds skips the rest.
    folder
        Folder of the joule counters.
    """
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    used: dict[str, list[float]] = {name: [] for name in names}
    joules = joules_of_host(folder)
    spent, done = 0.0, -warmup
    while done < repeat or (spent < least_s and done < most):
        # The order rotates, so that each call finds the caches as different functions left them.
        first = done % len(names)
        for name in names[first:] + names[:first]:
            if len(seconds[name]) > 1 and sum(seconds[name]) >= most_s:
                continue
            start_j, start, start_cpu = joules(), time.perf_counter(), time.process_time()
            functions[name]()
            elapsed, elapsed_cpu = time.perf_counter() - start, time.process_time() - start_cpu
            if done >= 0:
                used[name] += [now - before for now in joules() for before in start_j]
                seconds[name].append(elapsed)
                cpu[name].append(elapsed_cpu)
                spent += elapsed
        done += 1
    return {
        name: Timing(tuple(seconds[name]), tuple(cpu[name]), tuple(used[name])) for name in names
    }


def joules_of_host(folder: Path = POWERCAP) -> Callable[[], tuple[float, ...]]:
    """Return a function that reads the joules used by the host's processors, or an empty tuple."""
    try:
        counters = Counters(folder)
    except OSError:
        return tuple
    return lambda: (counters.joules(),)


def surroundings(*libraries: str) -> dict[str, Any]:
    """Return commit, machine, load and the versions of the installed ones of `libraries`."""
    return {
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "versions": {name: found for name in libraries if (found := _version(name))},
    }


def children_cpu_s() -> float:
    """Return the processor seconds of all ended child processes and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commit() -> str:
    """Return the commit of the working tree, marked if it has changes; `unknown` without git."""
    # Files written by benchmarks do not change the code that they run.
    but_results = (":/", ":(top,exclude)benchmarks/results")
    try:
        named = _git("describe", "--always")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *but_results)
    except FileNotFoundError:
        return "unknown"
    return f"{named}-dirty" if named and changed else named or "unknown"


def _git(*words: str) -> str:
    where = Path(__file__).parent
    command = ["git", *words]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
