"""``hpcgnn inspect``: print what a store, a checkpoint or a run directory holds."""

import argparse
from pathlib import Path

from hpcgnn.commands.arguments import CommandParser, comma_separated
from hpcgnn.commands.command import Command, Processes
from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.inspect import exchange_volume, inspect_path
from hpcgnn.inspect.show import show
from hpcgnn.partition import EXCHANGES


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("inspect", "Print what a store, a checkpoint or a run directory holds.")
    cli.add_argument("path", type=Path, metavar="PATH", help="store, checkpoint or run directory")
    cli.add_argument("--json", action="store_true", help="print one JSON object, in full")
    cli.add_argument(
        "--verify", action="store_true", help="read all data and compare them with their checksums"
    )
    cli.add_argument(
        "--exchange",
        choices=EXCHANGES,
        help="of a store: print only the rows that one aggregation with this exchange moves",
    )
    cli.add_argument(
        "--ranks",
        type=int,
        metavar="P",
        help="with --exchange: number of ranks, up to the number of parts (default: one a part)",
    )
    cli.add_argument(
        "--relations",
        type=comma_separated,
        default=(),
        metavar="A,B",
        help="with --exchange: the relations that training uses (default: all)",
    )
    cli.add_argument(
        "--undirected", action="store_true", help="with --exchange: with reverse edges too"
    )
    return cli


def main(options: argparse.Namespace) -> None:
    """Inspect and print."""
    if options.exchange is None:
        if options.ranks is not None or options.relations or options.undirected:
            raise InputError("--ranks, --relations and --undirected belong to --exchange; add it")
        found = inspect_path(options.path, verify=options.verify, quiet=options.json)
    else:
        if options.verify:
            raise InputError("--verify and --exchange are two questions; ask them one by one")
        found = {"kind": "exchange", "path": str(options.path), "exchange": options.exchange}
        found |= exchange_volume(
            options.path,
            options.ranks,
            options.relations,
            undirected=options.undirected,
            exchange=options.exchange,
        )
    if options.json:
        print_json(found)
    else:
        show(found)


COMMAND = Command("inspect", parser, "hpcgnn.commands.inspect:main", Processes.ONE)

if __name__ == "__main__":
    COMMAND.start()
