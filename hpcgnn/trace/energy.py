"""Joules of a run: what the processors of its hosts counted, or core seconds at a power a core.

Linux's powercap counts what each processor package has used (RAPL), whoever used it: on a host that
others share, theirs is in it. Memory, network and the rest of a host are not. Where counters cannot
be read on every host, seconds of cores count at the power that was given; without it there are no
joules.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.spmd import collective

POWERCAP = Path("/sys/class/powercap")
"""Of each package a folder ``intel-rapl:N``, with processors of AMD too."""

_EVERY_S = 60.0
"""Between two readings: a counter of 262 kJ is full after ten minutes at 400 W."""
_MICRO = 1e-6


class Counters:
    """The counters of this host's packages; `joules` is to be asked before one goes round twice.

    `folder` is where Linux shows them. Raises `OSError` where there are none, or none that this
    user may read.
    """

    def __init__(self, folder: Path = POWERCAP) -> None:
        zones = sorted(folder.glob("intel-rapl:*"))
        packages = [each for each in zones if _text(each / "name").startswith("package")]
        if not packages:
            raise FileNotFoundError(f"{folder} has no counters of processors")
        self._ranges = {e / "energy_uj": int(_text(e / "max_energy_range_uj")) for e in packages}
        self._last = {file: int(_text(file)) for file in self._ranges}
        self._used, self._lock = 0, threading.Lock()

    def joules(self) -> float:
        """Return what the packages have used since this object was made."""
        with self._lock:
            for file, before in self._last.items():
                self._last[file] = now = int(_text(file))
                self._used += now - before + (self._ranges[file] if now < before else 0)
            return self._used * _MICRO

    @contextlib.contextmanager
    def watched(self) -> Iterator["Counters"]:
        """Read the counters in time while the block runs, however long its epochs are."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_EVERY_S):
                self.joules()

        thread = threading.Thread(target=watch, name="energy", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class Meter:
    """The joules of a rank's share since it was made; the shares add up.

    `source` says whose joules they are; where it is empty nothing is known, and `joules` gives 0.
    """

    source: str = ""
    joules: Callable[[], float] = float


def core_seconds(watts: float) -> Meter:
    """Return the meter of this process, of all its threads, at so many watts a core."""
    began = time.process_time()
    return Meter(f"core seconds at {watts:g} W", lambda: (time.process_time() - began) * watts)


@contextlib.contextmanager
@collective
def open_meter(
    gather: Callable[[bool], list[bool]], is_first: bool, watts: float, folder: Path = POWERCAP
) -> Iterator[Meter]:
    """Give the meter of this rank while the block runs, of the same source on all ranks.

    The first rank of each host reads its counters. `gather` returns the values of all ranks;
    `watts` 0: no power is given.
    """
    with contextlib.ExitStack() as stack:
        joules: Callable[[], float] = float
        with contextlib.suppress(OSError):
            if is_first:
                joules = stack.enter_context(Counters(folder).watched()).joules
        if all(gather(not is_first or joules is not float)):
            yield Meter(POWERCAP.name, joules)
        else:
            yield core_seconds(watts) if watts else Meter()


def energy_of(
    ranks: Sequence[Mapping[str, Any]], hosts: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return what a start of a run used, of the lines of its ranks and its hosts; None: not known.

    ``joules`` from its first epoch to its end, their ``source``, and ``core_share``: of the cores
    of its hosts those that it might use.
    """
    if not ranks[0]["energy"]["source"]:
        return None
    cores, of_hosts = (sum(host[key] for host in hosts) for key in ("cores", "host_cores"))
    joules = sum(rank["energy"]["joules"] for rank in ranks)
    return {**ranks[0]["energy"], "joules": joules, "core_share": cores / of_hosts}


def energy_line(energy: Mapping[str, Any], epoch_j: float) -> str:
    """Return what a run says of its energy."""
    line = f"energy {energy['joules']:,.0f} J, {epoch_j:,.3g} J an epoch, by {energy['source']}"
    if energy["source"] != POWERCAP.name:
        return line
    return f"{line}: whole processors, {energy['core_share']:.0%} of whose cores are this run's"
