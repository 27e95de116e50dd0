"""Progress of a run on rank 0: a live line on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any

from rich import progress
from rich.console import Console

from hpcgnn.console import report

__all__ = ["EpochDisplay"]

_QUIET_SECONDS = 10.0


class EpochDisplay:
    """Shows epoch, loss, metrics and time left; use as a context manager.

    Not collective.

    Parameters
    ----------
    title
        What is trained.
    total
        Epochs in all.
    active
        Whether this rank shows anything.
    """

    def __init__(self, title: str, total: int, *, active: bool) -> None:
        self._title, self._total, self._active = title, total, active
        self._bar: progress.Progress | None = None
        self._started = time.monotonic()
        self._next_report = 0.0
        self._first_epoch: int | None = None

    def __enter__(self) -> "EpochDisplay":
        if self._active and sys.stderr.isatty():
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[figures]}"),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
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
        if self._bar is not None:
            self._bar.update(self._task, completed=done, figures=figures)
            return
        elapsed = time.monotonic() - self._started
        if elapsed >= self._next_report or done == self._total:
            left = elapsed / (done - self._first_epoch) * (self._total - done)
            report(
                f"{self._title}  epoch {done}/{self._total}  {figures}  "
                f"{row['epoch_s']:.3f} s/epoch  {left:.0f} s left"
            )
            self._next_report = elapsed + _QUIET_SECONDS

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _shown(row: dict[str, Any]) -> dict[str, float]:
    names = {"loss": "train_loss"}
    for short, prefix in (("train", "train"), ("valid", "valid"), ("test", "test")):
        for metric in ("accuracy", "micro_f1"):
            if f"{prefix}_{metric}" in row:
                names[short] = f"{prefix}_{metric}"
    return {short: float(row[key]) for short, key in names.items() if row.get(key) is not None}
