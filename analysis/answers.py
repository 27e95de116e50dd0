"""Four sentences with figures about a run, computed from its records.

Did it converge, where does the time go, which rank is slow and why, and what to change next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from hpcgnn.analysis import convergence
from hpcgnn.analysis.advice import Change, command_of, first_accepted
from hpcgnn.analysis.causes import Cause, busy, causes, phases_of, seconds_text, share_text
from hpcgnn.analysis.subject import Subject

_SERIOUS = 0.1
_PHASES: Mapping[str, str] = {
    "exchange": "packing and starting messages",
    "wait": "waiting for rows",
    "reduce": "sums over ranks",
    "interior": "products with own rows",
    "boundary": "products with ghost rows",
    "dense": "dense products and activations",
    "optimiser": "the optimiser",
    "other": "time outside any span",
}


@dataclass(frozen=True)
class Answers:
    """The sentences, and a command that does what `next` advises; worst of `causes` first."""

    learning: str
    time: str
    ranks: str
    next: str
    command: str
    causes: list[Cause]

    @property
    def sentences(self) -> Sequence[tuple[str, str]]:
        """The four sentences, each with the name of its subject."""
        words = ("Learning", "Time", "Ranks", "Next")
        return tuple(zip(words, (self.learning, self.time, self.ranks, self.next), strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return the answers as a JSON object."""
        texts = {word.lower(): text for word, text in self.sentences}
        return {**texts, "command": self.command, "causes": [cause.name for cause in self.causes]}


def answer(subject: Subject) -> Answers:
    """Return the answers about a run."""
    verdict, found = convergence.judge(subject), causes(subject)
    changes, texts = [], []
    learn = _learn(subject, verdict)
    if learn is not None:
        changes.append(learn)
        texts.append(learn.why)
    worst = next((cause for cause in found if cause.change and _is_serious(cause)), None)
    if worst is not None and worst.change is not None:
        changes.append(worst.change)
        texts.append(f"{worst.change.why} ({worst.name})")
    if changes:
        text = "; ".join([texts[0], *(text[0].lower() + text[1:] for text in texts[1:])]) + ":"
        trains = any(change.settings or change.ranks for change in changes)
        inspections = "\n".join(" ".join(change.first) for change in changes)
        command = command_of(subject, changes) if trains else inspections
    else:
        text = "The records suggest no change; to use the model:"
        command = f"hpcgnn predict {subject.shown_path} -o answers.csv"
    return Answers(
        verdict.text, _time(subject, found), _ranks(subject, found), text, command, found
    )


def _is_serious(cause: Cause) -> bool:
    return cause.share >= _SERIOUS or cause.name in ("swap", "bad parts", "slow rank")


def _learn(subject: Subject, verdict: convergence.Verdict) -> Change | None:
    """Return a change that should improve learning."""
    epochs = subject.settings.get("train.epochs", len(subject.rows))
    rate, dropout = (
        subject.settings.get(key, 0.0) for key in ("train.learning_rate", "model.dropout")
    )
    match verdict.state:
        case convergence.DIVERGED:
            settings = {"train.learning_rate": float(f"{rate / 5:.2g}"), "train.clip_norm": 1.0}
            choices = [("Lower the learning rate, and clip gradients", settings)]
        case convergence.RISING:
            choices = [("Train longer", {"train.epochs": 2 * epochs})]
        case convergence.OVERFITS:
            stronger = {"model.dropout": min(round(dropout + 0.3, 2), 0.7)}
            choices = [("Increase dropout", stronger)] if dropout < 0.6 else []
            choices.append(("Add weight decay", {"train.weight_decay": 5e-4}))
        case convergence.UNKNOWN if subject.rows:
            choices = [
                ("Evaluate after each epoch", {"train.evaluate_every": 1}),
                ("Train longer", {"train.epochs": 10 * epochs}),
            ]
        case _:
            choices = []
    return first_accepted(subject, choices)


def _time(subject: Subject, found: list[Cause]) -> str:
    epoch_s = subject.epoch["epoch_s"]["median"]
    if epoch_s is None:
        return "No epoch has recorded its seconds."
    counted = max(len(subject.rows) - 1, 1)
    head = f"An epoch takes {seconds_text(epoch_s)} (median of {counted:,})"
    if (wait := subject.epoch["sample_wait_share"]) is not None:
        head += f", of which {share_text(wait)} is spent waiting for samples"
    evaluations = next((cause for cause in found if cause.name == "evaluations"), None)
    tail = f" Besides, {evaluations.text}." if evaluations else ""
    phases = phases_of(subject)
    if not phases:
        return f"{head}; without a trace no more is known.{tail}"
    names = {name for seconds_by_phase in phases.values() for name in seconds_by_phase}
    means = {name: mean(rank.get(name, 0.0) for rank in phases.values()) for name in names}
    largest = max(means, key=lambda name: means[name])
    communication = sum(means.get(name, 0.0) for name in ("exchange", "wait", "reduce"))
    share, seconds = share_text(means[largest] / epoch_s), seconds_text(means[largest])
    most = f"most of it {_PHASES.get(largest, largest)}: {share}, {seconds}"
    small = next((cause for cause in found if cause.name in ("small steps", "slow link")), None)
    more = f"; {small.text}" if small else ""
    spent = share_text(communication / epoch_s)
    return f"{head}, {most}; all communication takes {spent}{more}.{tail}"


def _ranks(subject: Subject, found: list[Cause]) -> str:
    """Return a sentence about slow ranks and their causes, or problems common to all ranks."""
    of_ranks = [cause for cause in found if cause.name in _OF_RANKS]
    if of_ranks:
        text = "; ".join(cause.text for cause in of_ranks)
        return f"{text[0].upper()}{text[1:]}."
    phases = phases_of(subject)
    if subject.ranks == 1:
        return "There is only one rank, so none waits for another."
    if not phases or not subject.epochs:
        return "Without a trace it is not known which rank is slow."
    seconds = {rank: busy(by_phase) for rank, by_phase in phases.items()}
    slowest = max(seconds, key=lambda rank: seconds[rank])
    longest, usual = seconds_text(seconds[slowest]), seconds_text(median(seconds.values()))
    late = mean(sum(entry["late_s"].values()) for entry in subject.epochs["per_rank"])
    return (
        f"No rank is slow: rank {slowest} computes longest, {longest} of an epoch (median {usual});"
        f" on average a rank waits {seconds_text(late)} for late ranks."
    )


_OF_RANKS = ("swap", "shared cores", "busy cores", "bad parts", "slow rank")
