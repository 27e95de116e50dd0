"""The command of a run, with placeholders for the hosts and ranks of each start."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.errors import InputError

ANSWER = "hpcgnn-answers"
"""The word that a host prints in answer to a ping."""

_NAMES = ("hosts", "slots", "nodes", "ranks", "per_host")
_PLACEHOLDER = re.compile(rf"\{{({'|'.join(_NAMES)})\}}")
_PROGRAM = re.compile(r"hpcgnn|python[\d.]*")
_SAYS_HOSTS = ("{hosts}", "{slots}")


@dataclass(frozen=True)
class LaunchShape:
    """Hosts and ranks of one start; the last host may get fewer ranks than the others."""

    hosts: Sequence[str]
    ranks: int
    ranks_per_host: int

    @property
    def values(self) -> dict[str, str]:
        """Return the text for each placeholder of a template."""
        per_host = self.ranks_per_host
        counts = [min(per_host, self.ranks - n * per_host) for n in range(len(self.hosts))]
        return {
            "hosts": ",".join(self.hosts),
            "slots": ",".join(f"{h}:{count}" for h, count in zip(self.hosts, counts, strict=True)),
            "nodes": str(len(self.hosts)),
            "ranks": str(self.ranks),
            "per_host": str(per_host),
        }


@dataclass(frozen=True)
class Template:
    """The words of a launcher, and those of the program that it starts.

    ``{hosts}`` stands for ``a,b``, ``{slots}`` for ``a:4,b:4``, and ``{nodes}``, ``{ranks}`` and
    ``{per_host}`` for numbers.
    """

    launcher: Sequence[str]
    program: Sequence[str]

    @classmethod
    def of(cls, words: Sequence[str], num_hosts: int) -> "Template":
        """Return the template from the words of a command.

        Raises `InputError` if no word starts hpcgnn, if a placeholder is unknown, or if there are
        several hosts without a placeholder for them.
        """
        starts = (n for n, word in enumerate(words) if _PROGRAM.fullmatch(Path(word).name))
        if (first := next(starts, None)) is None:
            raise InputError(
                f"{' '.join(words) or 'nothing'} does not start hpcgnn; give the whole command "
                "after --, for example -- mpiexec --host {slots} -n {ranks} hpcgnn train run.toml"
            )
        launcher = words[:first]
        for name in re.findall(r"\{([a-z_]+)\}", " ".join(launcher)):
            if name not in _NAMES:
                known = ", ".join(f"{{{each}}}" for each in _NAMES)
                raise InputError(f"{{{name}}} is no placeholder; take one of {known}")
        if num_hosts > 1 and not any(option in word for word in launcher for option in _SAYS_HOSTS):
            raise InputError(
                f"{num_hosts} hosts, but no placeholder for them: give the launcher {{hosts}} or "
                "{slots}, for example srun --nodelist={hosts} -N {nodes} -n {ranks}"
            )
        return cls(launcher, words[first:])

    def command(self, start: LaunchShape) -> list[str]:
        """Return the command of a start."""
        return _filled(self.launcher, start) + _filled(self.program, start)

    def ping(self, host: str) -> list[str]:
        """Return the command that runs only `echo` on a host."""
        return [*_filled(self.launcher, LaunchShape([host], 1, 1)), "echo", ANSWER]


def _filled(words: Sequence[str], start: LaunchShape) -> list[str]:
    values = start.values
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in words]
