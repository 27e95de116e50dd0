"""Measured memory of each rank, with a plan's prediction and the sequential schedule's bound.

The bound counts partitions of the node rows: a rank that processes its peers one by one holds its
own rows and those of one peer, 2/N of all rows on N ranks; with one stage of prefetch 3/N. Resident
runs may hold up to all rows.
"""

from dataclasses import dataclass
from typing import Any

from hpcgnn.analysis.forms import PLANNED
from hpcgnn.analysis.load import Run, read_checked
from hpcgnn.analysis.sessions import Trace


@dataclass(frozen=True)
class RankMemory:
    """Bytes of memory of one rank.

    `peak` is the peak resident memory of the process, `ghosts` the most bytes of ghost rows at one
    time. `own` are its own rows, as wide as the widest rows sent; None without a trace.
    """

    rank: int
    peak: int
    ghosts: int
    own: int | None


@dataclass(frozen=True)
class RunMemory:
    """Memory of all ranks; `plan` is the plan's entry for this run, or None.

    `whole` is the bytes of all nodes' rows, as wide as the widest rows sent.
    """

    ranks: list[RankMemory]
    whole: int | None
    plan: dict[str, Any] | None


def measure_memory(run: Run, trace: Trace | None) -> RunMemory | None:
    """Return the memory of a finished run; None for a run without a summary."""
    details = run.summary.get("ranks_detail", [])
    if not details:
        return None
    width = None if trace is None else _widest_row(trace)
    nodes = run.summary.get("graph", {}).get("num_nodes")
    ranks = [
        RankMemory(
            rank=each["rank"],
            peak=each["peak_rss_bytes"],
            ghosts=each.get("ghost_bytes_max", 0),
            own=None if width is None or "local_nodes" not in each else each["local_nodes"] * width,
        )
        for each in details
    ]
    whole = None if width is None or nodes is None else nodes * width
    return RunMemory(ranks, whole, read_plan(run))


def _widest_row(trace: Trace) -> int | None:
    """Return the bytes of the widest row that was sent in an epoch."""
    widths = (
        span.bytes // span.rows
        for rank in trace.ranks
        for span in trace.spans(rank)
        if span.phase == "exchange" and span.rows and span.epoch is not None
    )
    return max(widths, default=None)


def read_plan(run: Run) -> dict[str, Any] | None:
    """Return this run's entry of ``plan.json`` in its directory, from ``hpcgnn plan --json``.

    It is the entry with the run's ranks, replication, exchange and schedule; None without one.

    Raises `InputError` if the file cannot be read.
    """
    file = run.path / "plan.json"
    if not file.is_file():
        return None
    remedy = "write it again with `hpcgnn plan --json`, or remove it"
    entries = read_checked(file, [PLANNED], remedy)
    keys = ("ranks", "replication", "exchange", "schedule")
    matching = (
        entry for entry in entries if all(entry[key] == run.summary.get(key) for key in keys)
    )
    return next(matching, None)
