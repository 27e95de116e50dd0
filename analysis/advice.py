"""What to change in the next run, as a command that can be pasted."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcgnn.analysis.subject import Subject
from hpcgnn.commands.arguments import find_object
from hpcgnn.errors import InputError


@dataclass(frozen=True)
class Change:
    """What another run should have.

    `why` says what it does, as the beginning of a sentence; `settings` are values by
    ``section.key``, `first` the words of a command to run before. `ranks` None: as many as now.
    """

    why: str
    settings: Mapping[str, object] = field(default_factory=dict)
    ranks: int | None = None
    first: Sequence[str] = ()


def accepted(subject: Subject, settings: Mapping[str, object]) -> bool:
    """Return whether the program takes a run's configuration with some values changed."""
    # They import torch, which the help of a report does without.
    load_config = find_object("hpcgnn.config.file:load_config")
    check_run = find_object("hpcgnn.train.tasks:check_run")
    try:
        words = [f"{key}={value}" for key, value in settings.items()]
        # What a run of somebody else names is not imported.
        check_run(load_config(subject.run.path / "config.toml", words, trusted=()))
    except InputError:
        return False
    return True


def first_accepted(
    subject: Subject, choices: Sequence[tuple[str, Mapping[str, object]]]
) -> Change | None:
    """Return the first change, of pairs of why and values, that changes something and is taken."""
    for why, settings in choices:
        differs = any(subject.settings.get(key) != value for key, value in settings.items())
        if differs and accepted(subject, settings):
            return Change(why, settings)
    return None


def command_of(subject: Subject, changes: Sequence[Change]) -> str:
    """Return the lines that train anew with all of some changes, in a directory of its own."""
    path = subject.shown_path
    settings: dict[str, object] = {"run.dir": f"{path}-next"}
    ranks, before = subject.ranks, []
    for change in changes:
        settings |= change.settings
        ranks = change.ranks or ranks
        if change.first:
            before.append(shlex.join(change.first) + (" &&\n" if change.settings else "\n"))
    srun = subject.session.get("launcher") == "srun"
    launch = ["srun" if srun else "mpiexec", "-n", str(ranks)] if ranks > 1 else []
    words = [*launch, "hpcgnn", "train", f"{path}/config.toml"]
    lines = [shlex.join(words), *(shlex.quote(f"{key}={_text(settings[key])}") for key in settings)]
    return "".join(before) + " \\\n    ".join(lines)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
