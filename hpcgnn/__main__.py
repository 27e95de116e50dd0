"""``python -m hpcgnn``, or ``hpcgnn``: list all commands, or run one (``hpcgnn train ...``)."""

import sys
from collections.abc import Mapping

from hpcgnn import __version__
from hpcgnn.commands.launch import faults_told, start
from hpcgnn.commands.streams import guard_streams
from hpcgnn.errors import USAGE_ERROR, instead_of, meant_by

COMMANDS: Mapping[str, str] = {
    "doctor": "check the machine as a run would find it, and say what to fix (MPI)",
    "selftest": "test an installation on the ranks that a run will have (MPI)",
    "convert": "convert a graph from one of many file formats into a store (.h5)",
    "generate": "make a synthetic or bundled graph as a store",
    "split": "add splits to a store: drawn at random, or from files",
    "partition": "cut a store into parts, for as many ranks or fewer",
    "init": "write a configuration for a store, with all keys explained",
    "plan": "predict rows, memory and seconds of a run, and choose its exchange",
    "train": "train a model on a store: nodes, links or graphs (MPI)",
    "supervise": "keep a run going: restart it without the hosts that were lost",
    "predict": "write the predictions or embeddings of a trained model (MPI)",
    "export": "write a trained model as a module of torch, torch_geometric or DGL",
    "inspect": "print the contents of a store, a checkpoint or a run directory",
    "clean": "remove temporary files that killed commands have left",
    "version": "print versions and how this was built",
    "completion": "write a script for completing commands, options and keys in a shell",
    "analyse": "show where the time and the rows of a run went, and how it learned",
}

USAGE = """usage: hpcgnn COMMAND [arguments]      (the same as python -m hpcgnn.COMMAND)
       srun hpcgnn train CONFIG.toml   (MPI commands start on every rank)
"""

_OPTIONS = ("--help", "--version")


def main() -> None:
    """Run the command that the first argument names, or list all commands."""
    guard_streams()
    match sys.argv[1:]:
        case [] | ["-h" | "--help", *_]:
            _answer(f"{USAGE}\n{listing()}")
        case ["--version", *_]:
            _answer(f"hpcgnn {__version__}\n")
        case [name, *_] if name in COMMANDS:
            del sys.argv[1]
            start(name)
        case [name, *_]:
            known = _OPTIONS if meant_by(name, _OPTIONS) else COMMANDS
            remedy = instead_of(name, known)
            if name.startswith("-") and known is COMMANDS:
                remedy = f"options come after the command: hpcgnn COMMAND {name}"
            sys.stderr.write(f"hpcgnn: error: no command {name!r}; {remedy}\n")
            raise SystemExit(USAGE_ERROR)


def _answer(text: str) -> None:
    with faults_told(""):
        sys.stdout.write(text)


def listing() -> str:
    """Return a line for each command."""
    return "".join(f"  {name:<11}{purpose}\n" for name, purpose in COMMANDS.items())


if __name__ == "__main__":
    main()
