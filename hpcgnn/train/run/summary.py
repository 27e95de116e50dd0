"""summary.json: final metrics, and the resources that each rank used."""

import platform
import resource
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hpcgnn import __version__
from hpcgnn.config.config import Config
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder, describe_epochs
from hpcgnn.train.tasks import Task

FORMAT_VERSION = 1
_KIBIBYTE = 1024


@collective
def gather_rank_details(
    task: Task[Any], trace: TraceRecorder, setup_s: dict[str, float], usage: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return an entry for each rank on rank 0; others get an empty list.

    `setup_s` are this rank's seconds before the first epoch, by phase; `usage` is the operating
    system's account of its epochs, see `Usage`.
    """
    moved, grid = trace.traffic(), task.objective.grid
    local = {
        "rank": grid.rank,
        "host": platform.node(),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE,
        "setup_s": setup_s,
        "usage": usage,
        "energy": {"source": trace.meter.source, "joules": trace.meter.joules()},
        "seconds_by_phase": trace.seconds_by_phase(),
        "rows_sent": int(sum(moved_by["rows"] for moved_by in moved.values())),
        "bytes_sent": int(sum(moved_by["bytes"] for moved_by in moved.values())),
        "exchanges": moved,
        **task.details(),
    }
    return grid.world.gather(local, root=0) or []


def summarise(
    config: Config,
    task: Task[Any],
    results: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    ranks: list[dict[str, Any]],
    sessions: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the summary.

    `results` has an entry for each seed, see `SeedRun.result`. The times and counts of `ranks`, see
    `gather_rank_details`, cover the epochs of this session; `rows`, the lines of metrics.jsonl,
    also cover those before a resume. `sessions` describes all sessions of the run, this one last.
    """
    facts = task.objective.facts
    smoothed = [result["smoothed"] for result in results if "smoothed" in result]
    return {
        "format_version": FORMAT_VERSION,
        "version": __version__,
        "name": facts.name,
        "fingerprint": facts.fingerprint,
        "model": config.model_name,
        "task": config.train.task,
        "ranks": task.objective.grid.size,
        **task.summary(ranks),
        "metric": config.train.metric or task.objective.metric,
        "seeds": results,
        **averages(results),
        "smoothed": averages(smoothed) if smoothed else None,
        "epochs": sum(result["epochs"] for result in results),
        "session_epochs": sessions[-1]["epochs"],
        **describe_epochs(rows),
        "energy": sessions[-1]["energy"],
        "sessions": sessions,
        "ranks_detail": ranks,
    }


def averages(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return ``mean`` and ``std``, the sample deviation, of the seeds' valid and test values.

    Values of None are left out. The mean of none is None, and so is the deviation of fewer than 2.
    """
    names = ("valid", "test")
    values = {
        name: [result[name] for result in results if result[name] is not None] for name in names
    }
    return {
        "mean": {name: statistics.fmean(v) if v else None for name, v in values.items()},
        "std": {name: statistics.stdev(v) if len(v) > 1 else None for name, v in values.items()},
    }
