"""The arguments of ``hpcgnn partition``."""

import argparse
from pathlib import Path

from hpcgnn.commands.arguments import CommandParser, comma_separated
from hpcgnn.commands.command import Command, Processes
from hpcgnn.partition.parts import FROM_FILE, METHODS
from hpcgnn.partition.volume_balanced import (
    CANDIDATES,
    DEFAULT_IMBALANCE,
    OBJECTIVES,
    PRESENT,
    PRESETS,
)


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser(
        "partition",
        description="Write a copy of a store whose nodes are ordered part after part. Parts are "
        "independent of ranks: a store in K parts trains on any number of ranks up to K. "
        "With --method volume many ranks, started with mpiexec or srun, keep a share of the graph "
        "each; other methods run on the first rank. All ranks write.",
    )
    cli.add_argument("store", type=Path, metavar="STORE", help="store to partition")
    cli.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.h5")
    cli.add_argument(
        "--parts",
        type=int,
        metavar="K",
        help="number of parts; not needed with file: and --refine present, which have a number",
    )
    cli.add_argument(
        "--method",
        type=method,
        default="metis",
        metavar="{" + ",".join((*METHODS, f"{FROM_FILE}FILE")) + "}",
        help="metis: least edge cut; volume: least rows at the busiest part; random: shuffled; "
        "block: present order; each balances non-zeros. file: takes the parts that FILE has for "
        "the nodes in the order of their original ids, as .npy or as text with one number a line, "
        "as partitioners write it (default: metis)",
    )
    cli.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    cli.add_argument(
        "--imbalance",
        type=float,
        help="metis and volume: allowed work of a part over the average, minus one (default: "
        f"{DEFAULT_IMBALANCE})",
    )
    cli.add_argument(
        "--relations",
        type=comma_separated,
        default=(),
        metavar="A,B",
        help="relations whose union is partitioned and measured (default: all); the output "
        "keeps every relation",
    )
    cli.add_argument(
        "--undirected", action="store_true", help="partition and measure with reverse edges too"
    )
    cli.add_argument("--json", action="store_true", help="print the metrics as JSON")
    add_volume_options(cli)
    return cli


def add_volume_options(cli: argparse.ArgumentParser) -> None:
    """Add the options that only ``--method volume`` knows; each is None where it is not given."""
    group = cli.add_argument_group("options of --method volume")
    group.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="what is minimised: total rows; rows of the busiest sender, of the busiest receiver, "
        "of the busier of both; or that under the joint exchange (default: max_both)",
    )
    group.add_argument("--preset", choices=PRESETS, help="fast: less refinement (default: default)")
    group.add_argument(
        "--candidates",
        type=comma_separated,
        metavar="A,B",
        help="partitions that are refined, of which the best is kept, from "
        f"{', '.join(CANDIDATES)} (default: metis)",
    )
    group.add_argument(
        "--threads",
        type=int,
        metavar="T",
        help="refinements side by side, of which the best is kept (default: 1)",
    )
    group.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="seconds after which the best partition so far is taken (default: none)",
    )
    group.add_argument(
        "--refine",
        type=Path,
        metavar=f"FILE|{PRESENT}",
        help="start from this partition, not from METIS's: the part of every node in the store's "
        f"order, as .npy or as text with one number a line; {PRESENT}: the parts of the store",
    )


def method(text: str) -> str:
    """Return the name of a method, for argparse."""
    if text in METHODS or (text.startswith(FROM_FILE) and text != FROM_FILE):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r}: choose one of {', '.join(METHODS)} or {FROM_FILE}FILE"
    )


COMMAND = Command("partition", parser, "hpcgnn.partition.command:main", Processes.ANY)

if __name__ == "__main__":
    COMMAND.start()
