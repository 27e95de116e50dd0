"""The arguments of ``hpcgnn convert programs``."""

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes
from hpcgnn.convert.programs.options import GRANULARITIES, NUMBERS, ProgramOptions, flag


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser(
        "convert programs",
        description="Convert Python sources into a store of program graphs with VarMisuse holes.",
        epilog="If a call was stopped, repeat it: it continues where it was.\n\n"
        "examples:\n  hpcgnn convert programs /usr/lib/python3 -o programs.h5",
    )
    cli.add_argument("inputs", nargs="+", metavar="DIR", help="folders of Python sources")
    cli.add_argument("-o", "--output", metavar="OUT.h5", required=True, help="store to write")
    cli.add_argument(
        "--release",
        action="store_true",
        help="the folders hold the public VarMisuse release: gzipped JSON lists of graphs",
    )
    cli.add_argument(
        "--granularity",
        choices=GRANULARITIES,
        default=ProgramOptions.granularity,
        help="snippet around a hole (default: %(default)s, the outermost one)",
    )
    for field in NUMBERS:
        about, default = f"{field.metadata['about']} (default: {field.default})", field.default
        cli.add_argument(flag(field.name), type=type(default), default=default, help=about)
    cli.add_argument("--processes", type=int, help="parallel processes (default: one per core)")
    cli.add_argument("--json", action="store_true", help="print one JSON object")
    return cli


COMMAND = Command("convert programs", parser, "hpcgnn.convert.programs.command:main", Processes.ONE)

if __name__ == "__main__":
    COMMAND.start()
