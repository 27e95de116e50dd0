"""Find the hosts of an allocation, and the number of ranks for each."""

import itertools
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.errors import InputError

_RANGES = re.compile(r"\[([\d,-]+)\]")
_SLOTS = re.compile(r"(?:\s+(?:slots|max[-_]slots)\s*=\s*|:)(\d+)")
_FILES = ("PBS_NODEFILE", "PJM_O_NODEINF", "LSB_DJOB_HOSTFILE")


@dataclass(frozen=True)
class Allocation:
    """The distinct names of hosts, and the number of ranks for each."""

    hosts: tuple[str, ...]
    ranks_per_host: int


def find_allocation(
    file: Path | None, ranks_per_host: int | None, environment: Mapping[str, str] = os.environ
) -> Allocation:
    """Return the hosts from a file or the batch system; without either, this host.

    `file` has one host per line, as written by Open MPI, MPICH and PBS. If `ranks_per_host` is
    None, it is taken from the file or the batch system, or 1.

    Raises `InputError` if a file cannot be read, or names no host.
    """
    named = next((environment[name] for name in _FILES if name in environment), None)
    if file is None and "SLURM_JOB_NODELIST" in environment:
        hosts = tuple(expand(environment["SLURM_JOB_NODELIST"]))
        tasks = re.findall(r"(?<![x\d])\d+", environment.get("SLURM_TASKS_PER_NODE", ""))
        return Allocation(hosts, ranks_per_host or min(map(int, tasks), default=1))
    if file is None and named is None:
        return Allocation((platform.node(),), ranks_per_host or 1)
    source = file or Path(named or "")
    try:
        slots = count_slots(source.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"hosts {source}: {error}; name a file with one host per line") from error
    if not slots:
        raise InputError(f"hosts {source}: names no host; write one host per line")
    # Parts have equal work, so every host gets the same number of ranks.
    return Allocation(tuple(slots), ranks_per_host or min(slots.values()))


def count_slots(lines: Iterable[str]) -> Mapping[str, int]:
    """Return the ranks of each host: ``slots=4`` or ``:4`` after its name, or a line for each."""
    slots: Counter[str] = Counter()
    for line in lines:
        text = line.partition("#")[0].strip()
        if text:
            match = _SLOTS.search(text)
            slots[re.split(r"[\s:]", text)[0]] += int(match[1]) if match else 1
    return slots


def expand(names: str) -> Iterator[str]:
    """Yield the hosts of a list in Slurm's notation, such as ``gpu[01-03,7],login``."""
    for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", names):
        parts = _RANGES.split(word)
        numbers = [
            list(_numbers(part)) if index % 2 else [part] for index, part in enumerate(parts)
        ]
        yield from map("".join, itertools.product(*numbers))


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"
