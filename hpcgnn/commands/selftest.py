"""The arguments of ``hpcgnn selftest``."""

from pathlib import Path

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes

DESCRIPTION = """Test an installation: what doctor looks at, and then kernels, messages, exchanges,
gradients, an epoch of each objective, checkpoints, and rates. Less than a minute; start it as a run
is started:
  srun hpcgnn selftest --dir /scratch/me      (or mpiexec -n 8 hpcgnn selftest)
It needs no files, and leaves none."""

EPILOG = """exit status: 0 all passed (there may be remarks); 1 something is broken, one line tells
what; 76 a rank made no progress."""


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("selftest", DESCRIPTION, epilog=EPILOG)
    cli.add_argument(
        "--dir", type=Path, default=Path(), help="where all ranks may write (default: here)"
    )
    cli.add_argument(
        "--stall",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="end the test where a rank makes no progress for so long (default: 60)",
    )
    cli.add_argument("--json", action="store_true", help="print findings as JSON")
    return cli


COMMAND = Command("selftest", parser, "hpcgnn.selftest.command:main", Processes.RANKS)

if __name__ == "__main__":
    COMMAND.start()
