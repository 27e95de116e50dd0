"""``hpcgnn analyse NAME RUN``: tables and figures from a run's records."""

import runpy
import sys
from collections.abc import Mapping
from typing import NoReturn

from hpcgnn.commands.launch import run_command
from hpcgnn.errors import InputError, instead_of

ANALYSES: Mapping[str, str] = {
    "report": "one page of HTML about a run or many, with all figures",
    "trace": "the timeline of all ranks, for Perfetto and Chrome",
    "scaling": "seconds, bytes and memory over ranks, compared with plans",
    "epoch_breakdown": "where the time of an epoch goes: seconds by phase and rank",
    "comm_matrix": "rows and bytes from rank to rank",
    "learning_curves": "loss and accuracy by epoch, over seeds",
    "search": "the runs of a search, best first, and how they differ",
    "rollout": "a rollout of fields: truth, prediction, difference",
}

USAGE = """usage: hpcgnn analyse NAME RUN [arguments]      (hpcgnn analyse NAME --help)

examples:
  hpcgnn analyse report runs/web
  hpcgnn analyse report runs/a runs/b -o both.html
"""


def main() -> None:
    """Run the analysis that the first argument names, or list all analyses."""
    match sys.argv[1:]:
        case [] | ["-h" | "--help", *_]:
            listing = "".join(f"  {name:<17}{purpose}\n" for name, purpose in ANALYSES.items())
            sys.stdout.write(f"{USAGE}\n{listing}")
        case [name, *_] if name in ANALYSES:
            del sys.argv[1]
            runpy.run_module(f"hpcgnn.analysis.{name}", run_name="__main__", alter_sys=True)
        case [name, *_]:
            raise InputError(f"no analysis {name!r}; {instead_of(name, ANALYSES)}")


class _Analyses:
    """Each analysis is a command of its own, with its own arguments."""

    def start(self) -> NoReturn:
        run_command("analyse", main)


COMMAND = _Analyses()

if __name__ == "__main__":
    COMMAND.start()
