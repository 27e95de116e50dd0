"""Four sentences about a run, computed from its records, with their figures.

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

_WORTH = 0.1
_PHASES: Mapping[str, str] = {
    "exchange": "packing and starting messages",
    "wait": "waiting for rows",
    "reduce": "sums over ranks",
    "interior": "products with own rows",
    "boundary": "products with rows of others",
    "dense": "dense products and activations",
    "optimiser": "the optimiser",
    "other": "what no span names",
}


@dataclass(frozen=True)
class Answers:
    """The sentences, and what the last one would have one paste; `causes` are by weight."""

    learning: str
    time: str
    ranks: str
    next: str
    command: str
    causes: list[Cause]

    @property
    def sentences(self) -> Sequence[tuple[str, str]]:
        """The four, each with what it answers."""
        words = ("Learning", "Time", "Ranks", "Next")
        return tuple(zip(words, (self.learning, self.time, self.ranks, self.next), strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return them for programs."""
        told = {word.lower(): text for word, text in self.sentences}
        return {**told, "command": self.command, "causes": [each.name for each in self.causes]}


def answer(subject: Subject) -> Answers:
    """Return the answers about a run."""
    verdict, found = convergence.judge(subject), causes(subject)
    changes, texts = [], []
    learn = _learn(subject, verdict)
    if learn is not None:
        changes.append(learn)
        texts.append(learn.why)
    worst = next((each for each in found if each.change and _weighs(each)), None)
    if worst is not None and worst.change is not None:
        changes.append(worst.change)
        texts.append(f"{worst.change.why} ({worst.name})")
    if changes:
        text = "; ".join([texts[0], *(each[0].lower() + each[1:] for each in texts[1:])]) + ":"
        runs = any(each.settings or each.ranks for each in changes)
        looks = "\n".join(" ".join(change.first) for change in changes)
        command = command_of(subject, changes) if runs else looks
    else:
        text = "Nothing that was recorded asks for a change; what the model says:"
        command = f"hpcgnn predict {subject.shown_path} -o answers.csv"
    return Answers(
        verdict.text, _time(subject, found), _ranks(subject, found), text, command, found
    )


def _weighs(cause: Cause) -> bool:
    return cause.share >= _WORTH or cause.name in ("swap", "bad parts", "slow rank")


def _learn(subject: Subject, verdict: convergence.Verdict) -> Change | None:
    """Return what would let it learn better."""
    epochs = subject.settings.get("train.epochs", len(subject.rows))
    rate, dropout = (
        subject.settings.get(f"{key}", 0.0) for key in ("train.learning_rate", "model.dropout")
    )
    match verdict.state:
        case convergence.DIVERGED:
            settings = {"train.learning_rate": float(f"{rate / 5:.2g}"), "train.clip_norm": 1.0}
            choices = [("Lower the rate, and clip gradients", settings)]
        case convergence.RISING:
            choices = [("Train longer", {"train.epochs": 2 * epochs})]
        case convergence.OVERFITS:
            stronger = {"model.dropout": min(round(dropout + 0.3, 2), 0.7)}
            choices = [("Drop out more", stronger)] if dropout < 0.6 else []
            choices.append(("Let weights decay", {"train.weight_decay": 5e-4}))
        case convergence.UNKNOWN if subject.rows:
            choices = [
                ("Judge each epoch", {"train.evaluate_every": 1}),
                ("Train longer", {"train.epochs": 10 * epochs}),
            ]
        case _:
            choices = []
    return first_accepted(subject, choices)


def _time(subject: Subject, found: list[Cause]) -> str:
    epoch_s = subject.epoch["epoch_s"]["median"]
    if epoch_s is None:
        return "No epoch has told its seconds."
    counted = max(len(subject.rows) - 1, 1)
    head = f"An epoch takes {seconds_text(epoch_s)} (median of {counted:,})"
    if (wait := subject.epoch["sample_wait_share"]) is not None:
        head += f", of which {share_text(wait)} passes without samples"
    judged = next((each for each in found if each.name == "evaluations"), None)
    tail = f" Besides, {judged.text}." if judged else ""
    phases = phases_of(subject)
    if not phases:
        return f"{head}; without a trace no more is known.{tail}"
    names = {name for each in phases.values() for name in each}
    means = {name: mean(each.get(name, 0.0) for each in phases.values()) for name in names}
    largest = max(means, key=lambda name: means[name])
    talk = sum(means.get(name, 0.0) for name in ("exchange", "wait", "reduce"))
    share, seconds = share_text(means[largest] / epoch_s), seconds_text(means[largest])
    most = f"most of it {_PHASES.get(largest, largest)}: {share}, {seconds}"
    small = next((each for each in found if each.name in ("small steps", "slow link")), None)
    more = f"; {small.text}" if small else ""
    return f"{head}, {most}; all communication takes {share_text(talk / epoch_s)}{more}.{tail}"


def _ranks(subject: Subject, found: list[Cause]) -> str:
    """Return which rank is slow and why, and what all ranks suffer from."""
    own = [each for each in found if each.name in _OF_RANKS]
    if own:
        text = "; ".join(each.text for each in own)
        return f"{text[0].upper()}{text[1:]}."
    phases = phases_of(subject)
    if subject.ranks == 1:
        return "There is one rank, which waits for no other."
    if not phases or not subject.epochs:
        return "Without a trace it is not known which rank is slow."
    seconds = {rank: busy(each) for rank, each in phases.items()}
    rank = max(seconds, key=lambda each: seconds[each])
    usual = median(seconds.values())
    late = mean(sum(each["late_s"].values()) for each in subject.epochs["per_rank"])
    return (
        f"No rank is slow: rank {rank} computes longest, {seconds_text(seconds[rank])} of an epoch "
        f"(median {seconds_text(usual)}); a rank waits {seconds_text(late)} for late ones."
    )


_OF_RANKS = ("swap", "shared cores", "busy cores", "bad parts", "slow rank")
