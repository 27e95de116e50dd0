"""Judge whether training has converged: one verdict with its figures."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcgnn.analysis.curves import figure_text
from hpcgnn.analysis.subject import Subject
from hpcgnn.console import is_error

DIVERGED, RISING, OVERFITS, PATIENCE, SETTLED, UNKNOWN = (
    *("diverged", "rising", "over-fits", "patience", "settled"),
    "unknown",
)

_GROWTH = 10.0
_LEAST = 0.003
"""Smaller changes of a metric between 0 and 1 do not count."""
_FALL = 0.01
_TAIL = 0.25
_LOSS_RISE = 1.3
_SETTLES = 4
"""Least number of evaluations: two may be equal by chance."""
_DIVERGES = re.compile(r"training diverges in epoch (\d+)")
_LAST_BYTES = 20_000

Score = tuple[int, float]
"""Epoch, value."""


@dataclass(frozen=True)
class Verdict:
    """How training went; `text` is a sentence with figures."""

    state: str
    text: str


def judge(subject: Subject) -> Verdict:
    """Return the most frequent verdict over seeds, with the figures of the best such seed."""
    stopped = _fault(subject)
    if stopped is not None:
        rows = subject.rows
        last = f"; the last loss before was {rows[-1]['train_loss']:.3g}" if rows else ""
        return Verdict(DIVERGED, f"The run diverged: its loss was not finite in {stopped}{last}.")
    if not subject.rows or subject.curves is None:
        return Verdict(UNKNOWN, "No epoch has ended yet.")
    seeds = [_judge_seed(subject, seed) for seed in subject.curves.seeds]
    state, count = Counter(verdict.state for _, verdict in seeds).most_common(1)[0]
    _, chosen = max((pair for pair in seeds if pair[1].state == state), key=lambda pair: pair[0])
    if len(seeds) == 1:
        return chosen
    return Verdict(state, f"{chosen.text[:-1]} ({count} of {len(seeds)} seeds alike).")


def _fault(subject: Subject) -> str | None:
    """Return the epoch in which the last start diverged, from its log; None if it did not."""
    log = subject.run.path / "log.txt"
    if subject.run.summary or not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _LAST_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
    match = _DIVERGES.search(lines[-1]) if lines else None
    return f"epoch {match[1]}" if match else None


def _judge_seed(subject: Subject, seed: object) -> tuple[float, Verdict]:
    curves, rows = subject.curves, [row for row in subject.rows if row.get("seed") == seed]
    assert curves is not None
    known = curves.has(f"valid_{curves.metric}") and not is_error(curves.metric)
    metric = curves.metric if known else next(iter(curves.metrics), "")
    scores = _scores(rows, f"valid_{metric}")
    best = max(scores, key=lambda score: score[1], default=(0, -math.inf))
    return best[1], _verdict(subject, rows, metric, scores)


def _scores(rows: Sequence[dict[str, Any]], key: str) -> list[Score]:
    return [(row["epoch"], float(row[key])) for row in rows if row.get(key) is not None]


def _verdict(
    subject: Subject, rows: Sequence[dict[str, Any]], metric: str, scores: Sequence[Score]
) -> Verdict:
    losses = [row["train_loss"] for row in rows if row.get("train_loss") is not None]
    if losses and losses[-1] > _GROWTH * max(losses[0], 1e-12):
        ends = f"The loss grew from {losses[0]:.3g} to {losses[-1]:.3g}: training diverged."
        return Verdict(DIVERGED, ends)
    counted = f"{_count(len(scores), 'evaluation')} in {_count(len(rows), 'epoch')}"
    too_few = Verdict(UNKNOWN, f"{counted}: too few to tell whether it has converged.")
    if len(scores) < 2:
        return too_few
    name, shown = f"validation {metric.replace('_', ' ')}", figure_text(metric)
    epoch, best = max(scores, key=lambda score: score[1])
    before, tail = _quarters(scores, len(rows))
    kept = f"the best was {shown(best)} in epoch {epoch} of {len(rows)}"
    rise = tail - before
    learned = losses and losses[-1] < losses[min(epoch, len(losses) - 1)]
    if best - tail > _FALL and epoch < (1 - _TAIL) * len(rows) and learned:
        fell = f"{name} fell from {shown(best)} in epoch {epoch} to {shown(tail)} at the end"
        return Verdict(
            OVERFITS,
            f"It over-fits: {fell}, while the training loss fell further to {losses[-1]:.3g}.",
        )
    patience = subject.settings.get("train.patience", 0)
    wanted = subject.settings.get("train.epochs", len(rows))
    if subject.run.summary and patience and len(rows) < wanted:
        ended = f"Patience ended it after {len(rows)} of {wanted} epochs"
        by_loss = subject.settings.get("train.select") == "best_loss"
        chosen = "loss" if by_loss or subject.curves is None else subject.curves.metric
        idle = f"{name} had not risen"
        if chosen != metric:
            idle = f"validation {chosen.replace('_', ' ')} had not fallen"
            kept = kept.replace("best", f"best {name}", 1)
        return Verdict(PATIENCE, f"{ended}: {idle} for {patience} evaluations; {kept}.")
    if rise > _LEAST and epoch >= (1 - _TAIL) * len(rows) - 1:
        rose = f"from {shown(before)} to {shown(tail)} over the last quarters"
        return Verdict(RISING, f"Not converged: {name} was still rising, {rose}; {kept}.")
    if len(scores) < _SETTLES:
        return too_few
    valid = _scores(rows, "valid_loss")
    lowest, least = min(valid, key=lambda score: score[1], default=(len(rows), math.inf))
    # Growing confidence in wrong predictions raises the loss but keeps the accuracy.
    if valid and valid[-1][1] > _LOSS_RISE * least and lowest < (1 - _TAIL) * len(rows):
        rose = f"the validation loss rose from {least:.3g} in epoch {lowest} to {valid[-1][1]:.3g}"
        fell = f"while the training loss fell further to {losses[-1]:.3g}"
        return Verdict(OVERFITS, f"It over-fits: {rose} at the end, {fell}; {kept}.")
    change = f"{shown(before)} and {shown(tail)} in the last two quarters"
    return Verdict(SETTLED, f"Converged: {name} has settled, {change}; {kept}.")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _quarters(scores: Sequence[Score], epochs: int) -> tuple[float, float]:
    """Return the mean scores of the last two quarters of the epochs."""
    last = [value for epoch, value in scores if epoch >= (1 - _TAIL) * epochs]
    before = [
        value for epoch, value in scores if (1 - 2 * _TAIL) * epochs <= epoch < (1 - _TAIL) * epochs
    ]
    if not last or not before:
        return scores[-2][1], scores[-1][1]
    return sum(before) / len(before), sum(last) / len(last)
