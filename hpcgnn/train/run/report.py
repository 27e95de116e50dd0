"""The console output of a run on rank 0: its progress, and its final results."""

import logging
import shlex
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpcgnn import console
from hpcgnn.console import metric_text, print_table, report, report_next
from hpcgnn.trace import energy_line

_QUIET_SECONDS = 10.0
_SHOWN = ("_accuracy", "_micro_f1", "_mrr", "_r2")
"""Suffixes of the metrics that models are chosen by."""


# Warn if the loss grows by this factor: even a model that learns nothing stays below it.
_GROWTH = 10.0


class EpochDisplay:
    """Shows epoch, loss, metrics and time left if this rank is `active`; a context manager."""

    def __init__(self, title: str, total: int, *, active: bool) -> None:
        self._title, self._total, self._active = title, total, active
        self._bar: Any = None
        self._started = time.monotonic()
        self._next_report = 0.0
        self._first_epoch: int | None = None

    def __enter__(self) -> "EpochDisplay":
        # With -v each epoch prints a line, which would break a progress bar.
        bar = console.shows(logging.INFO) and not console.shows(logging.DEBUG)
        if self._active and bar and sys.stderr.isatty():
            self._bar = console.start_bar("{task.fields[figures]}")
            self._task = self._bar.add_task(self._title, total=self._total, figures="")
        return self

    def update(self, row: dict[str, Any]) -> None:
        """Show the metrics of an epoch."""
        if not self._active:
            return
        done = int(row["epoch"]) + 1
        if self._first_epoch is None:
            self._first_epoch = done - 1
        figures = "  ".join(f"{key} {value:.4f}" for key, value in _shown(row).items())
        elapsed = time.monotonic() - self._started
        left = elapsed / (done - self._first_epoch) * (self._total - done)
        line = (
            f"{self._title}  {done} of {self._total} epochs  {figures}  "
            f"{row['epoch_s']:.3f} s/epoch  {left:.0f} s left"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=done, figures=figures)
            console.detail(line)
        elif elapsed >= self._next_report or done == self._total:
            report(line)
            self._next_report = elapsed + _QUIET_SECONDS
        else:
            console.detail(line)

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _shown(row: dict[str, Any]) -> dict[str, float]:
    splits = ("train", "valid", "test")
    metrics = (key for key in row if key.startswith(splits) and key.endswith(_SHOWN))
    # With several tasks, show the metric of the first.
    metric = next(metrics, "").partition("_")[2]
    names = {"loss": "train_loss"} | {split: f"{split}_{metric}" for split in splits}
    return {short: float(row[key]) for short, key in names.items() if row.get(key) is not None}


def print_results(summary: dict[str, Any], path: Path) -> None:
    """Print the table of seeds, and where to find everything else."""
    metric, shown = summary["metric"].replace("_", " "), partial(metric_text, summary["metric"])
    rows = [
        (
            (f"split {result['split']} " if "split" in result else "") + f"seed {result['seed']}",
            result["epochs"],
            result["best_epoch"],
            shown(result["valid"]),
            shown(result["test"]),
            f"{result['final_train_loss']:.4f}",
        )
        for result in summary["seeds"]
    ]
    of_splits = [(f"split {split['name']} ", split) for split in summary.get("splits", ())]
    for title, averages in (*of_splits, ("", summary)):
        for name in ("mean", "std"):
            values = averages[name]
            rows.append((title + name, "", "", shown(values["valid"]), shown(values["test"]), ""))
    columns = (
        "",
        "epochs",
        "kept epoch (from 0)",
        f"valid {metric}",
        f"test {metric}",
        "train loss",
    )
    print_table(f"{summary['model']} on {summary['name']}", columns, rows, made=True)
    if "splits" in summary:
        report(f"results in {path}: summary.json, and split-NAME/ with the run of each split")
        return
    if summary["smoothed"] is not None:
        mean, std = summary["smoothed"]["mean"], shown(summary["smoothed"]["std"]["test"])
        report(
            f"corrected and smoothed: valid {shown(mean['valid'])}, test {shown(mean['test'])}"
            + (f" (std {std})" if std else "")
        )
    epoch = summary["epoch_s"]["median"]
    if epoch is not None:
        peak = max(rank["peak_rss_bytes"] for rank in summary["ranks_detail"])
        wait = summary["sample_wait_share"]
        waits = "" if wait is None else f", {wait:.1%} of it waiting for samples"
        report(f"median epoch {epoch:.3f} s{waits}, largest rank {peak / 2**20:.0f} MiB")
    if summary["energy"] is not None and summary["epoch_j"] is not None:
        report(energy_line(summary["energy"], summary["epoch_j"]))
    for result in summary["seeds"]:
        for part, errors in result.get("rollout", {}).items():
            report(f"seed {result['seed']}, rollout of the {part} part: {rollout_line(errors)}")
    steps = 50 if any(result.get("rollout") for result in summary["seeds"]) else 1
    words = f"--rollout {steps} -o rollout.h5" if summary["task"] == "fields" else "-o answers.csv"
    report(f"results in {path}; answers: hpcgnn predict {shlex.quote(str(path))} {words}")
    report_next("analyse", "report", path)


def rollout_line(rollout: Mapping[str, Any]) -> str:
    """Return a line with the errors of a rollout."""
    last = rollout["steps"] - 1
    after = sorted({0, *(step for step in (9, 49, 99) if step < last), last})
    texts = [
        f"{name} {errors[step]:.4g} after {step + 1}{_baseline(still[step])}"
        for name, errors in rollout["rmse"].items()
        for still in (rollout["unchanged_rmse"][name],)
        for step in after
        if errors[step] is not None
    ]
    return f"RMSE: {', '.join(texts)}"


def _baseline(rmse: float | None) -> str:
    return "" if rmse is None else f" (no change: {rmse:.4g})"


def remark_on_growth(metrics: list[dict[str, Any]]) -> None:
    """Warn of seeds whose loss has grown strongly, though it is still finite."""
    losses: dict[int, list[float]] = {}
    for row in metrics:
        losses.setdefault(row["seed"], []).append(row["train_loss"])
    for seed, curve in losses.items():
        if curve[-1] > _GROWTH * curve[0]:
            console.warn(
                f"seed {seed} ends with a loss of {curve[-1]:.3g}, after {curve[0]:.3g} in its "
                "first epoch: lower train.learning_rate or set train.clip_norm"
            )


def remark_on_constants(results: list[dict[str, Any]]) -> None:
    """Warn, in one line, of seeds whose kept model gives all evaluated nodes the same output."""
    seeds: dict[str, list[str]] = {}
    for result in results:
        if result.get("constant"):
            seeds.setdefault(result["constant"], []).append(str(result["seed"]))
    if seeds:
        notes = "; ".join(f"seed {', '.join(numbers)}: {note}" for note, numbers in seeds.items())
        console.warn(
            f"{notes}: the model may give all rows the same output; try another "
            "train.learning_rate, more train.epochs, or model.norm=layer, and check that all "
            "features have a similar scale"
        )
