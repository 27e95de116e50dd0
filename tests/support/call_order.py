"""The mark `collective` of `hpcgnn.spmd`, made to record: calls come in one order on all ranks.

Installed before anything of hpcgnn is imported, it records the calls of the main thread. A call
concerns the communicator or process grid among its arguments, or that of its object. A call without
either is recorded with the first call inside it that has one, and not at all if there is none: the
work of a layer on a subgraph of one rank does not concern other ranks. Two rules determine which
calls are compared:

* Only those that concern as many ranks as the test has: hosts, layers and grids of one rank have
  their own order.
* Those of a grid with replicas only among the ranks of one layer: replicas share the work, and one
  may need an exchange that another does not.
"""

import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

from mpi4py import MPI

import numpy as np

from hpcgnn import spmd
from hpcgnn.typing import Array

Concerned: TypeAlias = tuple[int, int]
"""Number of ranks, and number of replicas of each block row."""

Calls: TypeAlias = dict[int, list[str]]
"""Names in order, by the number of replicas of their grid."""


@dataclass
class Waiting:
    """A running call that does not tell which ranks it concerns."""

    name: str
    noted: bool = False


class CallOrder:
    """The collective calls of this rank since the last `start`."""

    def __init__(self) -> None:
        self.calls: Calls = defaultdict(list)
        self._ranks = 0
        self._around: list[Waiting] = []

    def install(self) -> None:
        """Replace the mark of collective functions; modules imported before keep the old one."""
        spmd.collective = self.noted

    def start(self, ranks: int) -> None:
        """Forget all calls, at the start of a test on `ranks` ranks."""
        self.calls.clear()
        self._ranks = ranks

    def digests(self, most: int) -> Array:
        """Return (most + 1,) int64 by number of replicas; equal calls have equal numbers."""
        digests = np.zeros(most + 1, np.int64)
        for replicas, names in self.calls.items():
            digests[replicas] = zlib.crc32("\n".join(names).encode())
        return digests

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` wrapped to record its calls."""
        name = f"{function.__module__}.{function.__qualname__}"
        main_thread = threading.main_thread().ident

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if threading.get_ident() != main_thread:
                return function(*args, **named)
            concerned = concerned_by(args, named)
            self._around.append(Waiting(name))
            if concerned is not None:
                self._note(*concerned)
            try:
                return function(*args, **named)
            finally:
                self._around.pop()

        return call

    def _note(self, ranks: int, replicas: int) -> None:
        """Record the innermost call, and the enclosing ones whose ranks were not known yet."""
        if ranks != self._ranks:
            # It concerns other ranks: nothing inside may record it again.
            self._around[-1].noted = True
            return
        for each in self._around:
            if not each.noted:
                self.calls[replicas].append(each.name)
                each.noted = True


def concerned_by(args: tuple[Any, ...], named: dict[str, Any]) -> Concerned | None:
    """Return the ranks that a call concerns, from its arguments or the attributes of its object."""
    if not args:
        return first_of(named.values())
    # The object may be an unfinished grid, which has no communicator yet: its type is not added.
    own = args[0]
    concerned = None if type(own) in WITHOUT_RANKS else of_value(own)
    if concerned is None and len(args) > 1:
        concerned = first_of(args[1:])
    if concerned is None and named:
        concerned = first_of(named.values())
    if concerned is None and hasattr(own, "__dict__"):
        concerned = first_of(vars(own).values())
    return concerned


WITHOUT_RANKS: set[type] = set()
"""Types of values without ranks, which are most and are checked most often."""


def first_of(values: Iterable[Any]) -> Concerned | None:
    """Return the ranks of the first communicator or process grid among `values`."""
    for value in values:
        if type(value) in WITHOUT_RANKS:
            continue
        concerned = of_value(value)
        if concerned is not None:
            return concerned
        if not isinstance(value, MPI.Comm) and not hasattr(value, "world"):
            WITHOUT_RANKS.add(type(value))
    return None


def of_value(value: object) -> Concerned | None:
    """Return the ranks of a communicator or a process grid; None if `value` is neither."""
    if isinstance(value, MPI.Comm):
        return None if value == MPI.COMM_NULL else (value.size, 1)
    world = getattr(value, "world", None)
    return (world.size, value.replication) if isinstance(world, MPI.Comm) else None  # type: ignore[attr-defined]


def in_one_order(digests: Array) -> bool:
    """Return whether, by (ranks, replicas) `digests`, the ranks of each layer made equal calls."""
    return all(
        len(np.unique(digests[replica::replicas, replicas])) <= 1
        for replicas in range(1, digests.shape[1])
        for replica in range(replicas)
    )


def difference(everywhere: Sequence[Calls]) -> str:
    """Describe the first difference among the ranks of a layer; each rank has an entry of calls."""
    for replicas in sorted({key for calls in everywhere for key in calls}):
        for replica in range(replicas):
            ranks = range(replica, len(everywhere), replicas)
            calls = [everywhere[rank].get(replicas, []) for rank in ranks]
            for place in range(max(map(len, calls), default=0)):
                names = [mine[place] if place < len(mine) else "no further call" for mine in calls]
                if len(set(names)) > 1:
                    before = f"after {calls[0][place - 1]}" if place else "the first"
                    lines = [
                        f"rank {rank}: {name}" for rank, name in zip(ranks, names, strict=True)
                    ]
                    return "\n".join([f"collective call {place + 1}, {before}, differs:", *lines])
    return "the ranks made equal calls"
