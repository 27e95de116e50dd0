"""Summary figures of a run's epochs, the same in ``summary.json``, tables and pages.

- *Seconds of an epoch*: training time on rank 0, median over epochs.
- *Seconds of an evaluation*: median over evaluations.
- *Rows and bytes of an epoch*: what all ranks send in training, with the bytes of gradient
  reductions; the mean over epochs, because means add up over ranks and pairs of ranks.
- *Joules of an epoch*: training energy of all ranks or hosts, median over epochs.
- *Share that waits for samples*: the fraction of an epoch in which a rank waits for its next
  sample, mean over ranks, median over epochs.

The first epoch is left out unless it is the only one, because it also builds transposes and
buffers.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""A line of ``metrics.jsonl``."""


def steady(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the epochs that the figures are taken from: all but the first, if there are more."""
    return rows[1:] or rows


def describe_epochs(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of a run's epochs under their names in ``summary.json``.

    Times have ``median``, ``min`` and ``max``, and ``epoch_s`` also has ``first``. A figure is None
    if no epoch recorded it.
    """
    first = rows[0].get("epoch_s") if rows else None
    waits = [row["sample_wait_share"] for row in steady(rows) if "sample_wait_share" in row]
    joules = [row["epoch_j"] for row in steady(rows) if "epoch_j" in row]
    evaluations = [row["evaluate_s"] for row in rows if row.get("evaluate_s")]
    return {
        "epoch_s": _spread([row["epoch_s"] for row in steady(rows) if "epoch_s" in row])
        | {"first": first},
        "evaluate_s": _spread(evaluations),
        "sample_wait_share": statistics.median(waits) if waits else None,
        "epoch_j": statistics.median(joules) if joules else None,
        "epoch_rows": _mean(rows, "rows_sent", "evaluate_rows"),
        "epoch_bytes": _mean(rows, "bytes_sent", "evaluate_bytes"),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds or not all(map(math.isfinite, seconds)):
        return {"median": None, "min": None, "max": None}
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


def _mean(rows: Sequence[Row], whole: str, evaluation: str) -> int | None:
    trained = [row[whole] - row.get(evaluation, 0) for row in steady(rows) if whole in row]
    return round(statistics.fmean(trained)) if trained else None
