"""The arguments of ``hpcgnn doctor``."""

from pathlib import Path

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes

DESCRIPTION = """Look at the machine as a run would find it, and say what to fix.
Start it as a run is started:
  srun hpcgnn doctor --dir /scratch/me      (or mpiexec -n 8 hpcgnn doctor)
Alone it looks at this host only."""

EPILOG = """exit status: 0 a run will work (there may be remarks); 1 it will not."""


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("doctor", DESCRIPTION, epilog=EPILOG)
    cli.add_argument(
        "--dir", type=Path, default=Path(), help="where stores and runs will be (default: here)"
    )
    cli.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="for measuring the links between ranks; 0: do not (default: 5)",
    )
    cli.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    return cli


COMMAND = Command("doctor", parser, "hpcgnn.doctor.command:main", Processes.RANKS)

if __name__ == "__main__":
    COMMAND.start()
