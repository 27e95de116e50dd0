"""``hpcgnn inspect``: print the contents of a store, a checkpoint or a run directory."""

import argparse

from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.inspect import exchange_volume, inspect_path
from hpcgnn.inspect.show import show


def main(options: argparse.Namespace) -> None:
    """Inspect and print."""
    if options.exchange is None:
        if options.ranks is not None or options.relations or options.undirected:
            raise InputError("--ranks, --relations and --undirected belong to --exchange; add it")
        content = inspect_path(options.path, verify=options.verify, quiet=options.json)
    else:
        if options.verify:
            raise InputError("--verify and --exchange cannot be combined; give one at a time")
        content = {"kind": "exchange", "path": str(options.path), "exchange": options.exchange}
        content |= exchange_volume(
            options.path,
            options.ranks,
            options.relations,
            undirected=options.undirected,
            exchange=options.exchange,
        )
    if options.json:
        print_json(content)
    else:
        show(content)
