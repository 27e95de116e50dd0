"""The hosts of an allocation, and how many ranks each is given."""

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
    """Names of hosts, none twice, and the ranks that each is given."""

    hosts: tuple[str, ...]
    ranks_per_host: int


def find_allocation(
    file: Path | None, ranks_per_host: int | None, environment: Mapping[str, str] = os.environ
) -> Allocation:
    """Return the hosts that a file names, or the batch system; without both this host.

    `file` has a host in a line, as Open MPI, MPICH and PBS write them. `ranks_per_host` None: what
    the file or the batch system says, 1 where they do not.

    Raises `InputError` when a file cannot be read, or names no host.
    """
    named = next((environment[name] for name in _FILES if name in environment), None)
    if file is None and "SLURM_JOB_NODELIST" in environment:
        hosts = tuple(expand(environment["SLURM_JOB_NODELIST"]))
        tasks = re.findall(r"(?<!x)\d+", environment.get("SLURM_TASKS_PER_NODE", ""))
        return Allocation(hosts, ranks_per_host or min(map(int, tasks), default=1))
    if file is None and named is None:
        return Allocation((platform.node(),), ranks_per_host or 1)
    source = file or Path(named or "")
    try:
        slots = count_slots(source.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"hosts {source}: {error}; name a file with a host in a line") from error
    if not slots:
        raise InputError(f"hosts {source}: names none; write a host in a line")
    # Parts are of equal work: every host gets as many ranks.
    return Allocation(tuple(slots), ranks_per_host or min(slots.values()))


def count_slots(lines: Iterable[str]) -> Mapping[str, int]:
    """Return the ranks of each host: ``slots=4`` or ``:4`` behind its name, or a line for each."""
    slots: Counter[str] = Counter()
    for line in lines:
        text = line.partition("#")[0].strip()
        if text:
            given = _SLOTS.search(text)
            slots[re.split(r"[\s:]", text)[0]] += int(given[1]) if given else 1
    return slots


def expand(names: str) -> Iterator[str]:
    """Yield the hosts of a list as Slurm writes it, such as ``gpu[01-03,7],login``."""
    for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", names):
        parts = _RANGES.split(word)
        numbers = [
            list(_numbers(part)) if place % 2 else [part] for place, part in enumerate(parts)
        ]
        yield from map("".join, itertools.product(*numbers))


def _numbers(ranges: str) -> Iterator[str]:
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"
