"""Learning curves of one run: every seed's values by epoch, their mean, and the final figures."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.analysis.load import Json, Run
from hpcgnn.console import is_error, metric_text
from hpcgnn.errors import InputError

METRICS = ("accuracy", "micro_f1", "macro_f1", "mrr", "r2")
"""Figures of merit, at most 1; greater is better."""

PARTS = ("train", "valid", "test")

_ERRORS = ("rmse", "mae", "rel_l2")
"""Prefixes of the names of errors, which have units of their own; less is better."""


def figure_text(metric: str | None) -> Callable[[float], str]:
    """Return the function that formats a figure of merit: R² as a number, others in per cent."""
    return partial(metric_text, metric or "")


@dataclass(frozen=True)
class Curve:
    """Mean and sample standard deviation over the seeds that have a value at an epoch."""

    epochs: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    num_seeds: NDArray[np.int64]


class RunCurves:
    """The metrics of a run.

    `label` is the run's name. `metric` chooses epochs and tells results; "" if none is recorded.
    `metrics` are the recorded ones of `METRICS`, `metric` first. `seeds` are in order of
    appearance.

    Raises `InputError` if no epoch is recorded yet.
    """

    def __init__(self, run: Run) -> None:
        self.label = run.name
        self._records = run.metrics()
        if not self._records:
            raise InputError(
                f"{run.path}: metrics.jsonl holds no epoch yet; wait for the first one"
            )
        self._finished = {entry.get("seed"): entry for entry in run.summary.get("seeds", [])}
        self.seeds = list(dict.fromkeys(record.get("seed") for record in self._records))
        recorded = [name for name in METRICS if any(self.has(f"{part}_{name}") for part in PARTS)]
        self.metric: str = run.summary.get("metric") or next(iter(recorded), "")
        self.metrics = sorted(recorded, key=lambda name: name != self.metric)

    def __len__(self) -> int:
        """Epochs of all seeds."""
        return len(self._records)

    def has(self, key: str) -> bool:
        """Tell whether any epoch has a value of `key`."""
        return any(_value(record, key) is not None for record in self._records)

    def curve(self, key: str) -> Curve:
        """Return `key`, for instance ``valid_accuracy``, by epoch."""
        by_epoch: dict[int, list[float]] = {}
        for record in self._records:
            value = _value(record, key)
            if value is not None:
                by_epoch.setdefault(record["epoch"], []).append(value)
        epochs = sorted(by_epoch)
        return Curve(
            np.array(epochs, dtype=np.int64),
            np.array([np.mean(by_epoch[epoch]) for epoch in epochs]),
            np.array([_std(by_epoch[epoch]) for epoch in epochs]),
            np.array([len(by_epoch[epoch]) for epoch in epochs], dtype=np.int64),
        )

    def over_seconds(self, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return seconds since the start of a seed, and `key` then, as means over seeds by epoch.

        The seconds include evaluations; None if epochs have no recorded seconds.
        """
        times: dict[int, list[float]] = {}
        elapsed: dict[object, float] = {}
        for record in self._records:
            seconds = _value(record, "epoch_s")
            if seconds is None:
                return None
            seed = record.get("seed")
            elapsed[seed] = elapsed.get(seed, 0.0) + seconds + (_value(record, "evaluate_s") or 0.0)
            if _value(record, key) is not None:
                times.setdefault(record["epoch"], []).append(elapsed[seed])
        curve = self.curve(key)
        return np.array([np.mean(times[epoch]) for epoch in curve.epochs.tolist()]), curve.mean

    def epoch_seconds(self) -> list[float]:
        """Return the seconds of each epoch, seed after seed; empty if they are not recorded."""
        values = [_value(record, "epoch_s") for record in self._records]
        return [value for value in values if value is not None]

    def kept(self) -> list[int]:
        """Return the kept epoch of each seed that has one."""
        return [seed["best_epoch"] for seed in self.final() if seed["best_epoch"] is not None]

    def final(self) -> list[dict[str, Any]]:
        """Return the best epoch and the validation and test figures of each seed.

        Those of a finished seed come from ``summary.json``, those of a running seed from its best
        epoch by validation so far.
        """
        return [self._finished_seed(seed) or self._running_seed(seed) for seed in self.seeds]

    def summary(self) -> dict[str, Any]:
        """Return the final figures of all seeds, their mean and sample deviation (None for one)."""
        seeds = self.final()
        result: dict[str, Any] = {
            "run": self.label,
            "metric": self.metric or None,
            "seeds": seeds,
        }
        for key in ("valid", "test", "final_train_loss"):
            values = [entry[key] for entry in seeds if entry[key] is not None]
            result[key] = {
                "mean": float(np.mean(values)) if values else None,
                "std": _std(values) if len(values) > 1 else None,
            }
        return result

    def errors(self) -> dict[str, tuple[float | None, float | None]]:
        """Return validation and test errors of the kept models by name, as means over seeds."""
        kept = [
            self._finished.get(seed, {}).get("metrics") or self._best(self._of_seed(seed))
            for seed in self.seeds
        ]
        names = {key.partition("_")[2]: None for record in kept for key in record if "_" in key}
        means = {
            name: (mean_of(kept, f"valid_{name}"), mean_of(kept, f"test_{name}"))
            for name in names
            if name.startswith(_ERRORS)
        }
        return {name: pair for name, pair in means.items() if pair != (None, None)}

    def _of_seed(self, seed: object) -> list[Json]:
        return [record for record in self._records if record.get("seed") == seed]

    def _finished_seed(self, seed: object) -> dict[str, Any] | None:
        entry = self._finished.get(seed)
        if entry is None:
            return None
        figures = {key: _value(entry, key) for key in ("valid", "test", "final_train_loss")}
        best = entry.get("best_epoch")
        return {"seed": seed, "epochs": len(self._of_seed(seed)), "best_epoch": best, **figures}

    def _running_seed(self, seed: object) -> dict[str, Any]:
        records = self._of_seed(seed)
        best = self._best(records)
        return {
            "seed": seed,
            "epochs": len(records),
            "best_epoch": best["epoch"],
            "valid": _value(best, f"valid_{self.metric}"),
            "test": _value(best, f"test_{self.metric}"),
            "final_train_loss": _value(records[-1], "train_loss"),
        }

    def _best(self, records: list[Json]) -> Json:
        key = f"valid_{self.metric}"
        scored = [record for record in records if _value(record, key) is not None]
        if not scored:
            return records[-1]
        return (min if is_error(self.metric) else max)(scored, key=lambda record: record[key])


def _value(record: Json, key: str) -> float | None:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -1e300 < value < 1e300 else None


def mean_of(records: Iterable[Json], key: str) -> float | None:
    """Return the mean of the numbers `key` of some records; None without any."""
    values = [value for record in records if (value := _value(record, key)) is not None]
    return float(np.mean(values)) if values else None


def _std(values: Iterable[float]) -> float:
    numbers = list(values)
    return float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0
