"""Advice for the next run: changed settings, and a command line to paste."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcgnn.analysis.subject import Subject
from hpcgnn.commands.arguments import find_object
from hpcgnn.errors import InputError


@dataclass(frozen=True)
class Change:
    """A change for the next run.

    `why` is an imperative phrase that says what the change does; `settings` are values by
    ``section.key``; `first` is a command to run beforehand. `ranks` None keeps the number of ranks.
    """

    why: str
    settings: Mapping[str, object] = field(default_factory=dict)
    ranks: int | None = None
    first: Sequence[str] = ()


def accepted(subject: Subject, settings: Mapping[str, object]) -> bool:
    """Return whether a run's configuration is still valid with these settings changed."""
    # Imported late: these modules import torch, which ``--help`` does not need.
    load_config = find_object("hpcgnn.config.file:load_config")
    check_run = find_object("hpcgnn.train.tasks:check_run")
    try:
        words = [f"{key}={value}" for key, value in settings.items()]
        # Do not import modules named in the configuration of a run by somebody else.
        check_run(load_config(subject.run.path / "config.toml", words, trusted=()))
    except InputError:
        return False
    return True


def first_accepted(
    subject: Subject, choices: Sequence[tuple[str, Mapping[str, object]]]
) -> Change | None:
    """Return the first of the (why, settings) pairs that is a valid change of the configuration."""
    for why, settings in choices:
        differs = any(subject.settings.get(key) != value for key, value in settings.items())
        if differs and accepted(subject, settings):
            return Change(why, settings)
    return None


def command_of(subject: Subject, changes: Sequence[Change]) -> str:
    """Return the command lines of a new run with these changes, in a directory of its own."""
    path = subject.shown_path
    settings: dict[str, object] = {"run.dir": f"{path}-next"}
    ranks, preparations = subject.ranks, []
    for change in changes:
        settings |= change.settings
        ranks = change.ranks or ranks
        if change.first:
            preparations.append(shlex.join(change.first) + (" &&\n" if change.settings else "\n"))
    srun = subject.session.get("launcher") == "srun"
    launch = ["srun" if srun else "mpiexec", "-n", str(ranks)] if ranks > 1 else []
    words = [*launch, "hpcgnn", "train", f"{path}/config.toml"]
    lines = [shlex.join(words), *(shlex.quote(f"{key}={_text(settings[key])}") for key in settings)]
    return "".join(preparations) + " \\\n    ".join(lines)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
