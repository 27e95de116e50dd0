"""Energy of a run in joules, from the hosts' processor counters or from core seconds.

Linux's powercap counts the energy of each processor package (RAPL), including that of other users'
processes on a shared host, but not that of memory, network and other devices. Where the counters
cannot be read on every host, the energy is core seconds times the given watts per core; without
such a figure it is unknown.
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
"""Holds a folder ``intel-rapl:N`` for each package, on AMD processors too."""

_EVERY_S = 60.0
"""Seconds between readings: a counter of 262 kJ wraps around after ten minutes at 400 W."""
_MICRO = 1e-6


class Counters:
    """The energy counters of this host; call `joules` before any of them wraps around twice.

    `folder` is where Linux exposes them. Raises `OSError` if there are none, or if this user may
    not read them.
    """

    def __init__(self, folder: Path = POWERCAP) -> None:
        zones = sorted(folder.glob("intel-rapl:*"))
        packages = [zone for zone in zones if _text(zone / "name").startswith("package")]
        if not packages:
            raise FileNotFoundError(f"{folder} has no energy counters of processors")
        self._ranges = {p / "energy_uj": int(_text(p / "max_energy_range_uj")) for p in packages}
        self._last = {file: int(_text(file)) for file in self._ranges}
        self._used, self._lock = 0, threading.Lock()

    def joules(self) -> float:
        """Return the joules that the packages have used since this object was made."""
        with self._lock:
            for file, before in self._last.items():
                self._last[file] = now = int(_text(file))
                self._used += now - before + (self._ranges[file] if now < before else 0)
            return self._used * _MICRO

    @contextlib.contextmanager
    def watched(self) -> Iterator["Counters"]:
        """Read the counters often enough while the block runs, however long its epochs are."""
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
    """The joules of a rank since the meter was made; the total is the sum over ranks.

    `source` says how they are measured. If it is empty the energy is unknown and `joules` gives 0.
    """

    source: str = ""
    joules: Callable[[], float] = float


def core_seconds(watts: float) -> Meter:
    """Return a meter of the CPU time of all threads of this process, at `watts` per core."""
    began = time.process_time()
    return Meter(f"core seconds at {watts:g} W", lambda: (time.process_time() - began) * watts)


@contextlib.contextmanager
@collective
def open_meter(
    gather: Callable[[bool], list[bool]], is_first: bool, watts: float, folder: Path = POWERCAP
) -> Iterator[Meter]:
    """Yield this rank's meter for the duration of the block; all ranks use the same source.

    The first rank of each host reads the host's counters. `gather` returns the values of all ranks.
    `watts` is the power of a core, 0 if unknown.
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
    """Sum the energy of one start of a run over the records of its ranks; None if unknown.

    Returns ``joules`` from its first epoch to its end, their ``source``, and ``core_share``, the
    fraction of its hosts' cores that it could use.
    """
    if not ranks[0]["energy"]["source"]:
        return None
    cores, of_hosts = (sum(host[key] for host in hosts) for key in ("cores", "host_cores"))
    joules = sum(rank["energy"]["joules"] for rank in ranks)
    return {**ranks[0]["energy"], "joules": joules, "core_share": cores / of_hosts}


def energy_line(energy: Mapping[str, Any], epoch_j: float) -> str:
    """Return the line about energy that a run prints."""
    line = f"energy {energy['joules']:,.0f} J, {epoch_j:,.3g} J an epoch, by {energy['source']}"
    if energy["source"] != POWERCAP.name:
        return line
    return f"{line}: whole processors, {energy['core_share']:.0%} of whose cores are this run's"
