"""The arguments of ``hpcgnn plan``."""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes
from hpcgnn.spmm import AUTO, EXCHANGES, SCHEDULES

DESCRIPTION = """Say what a run would need, without starting it: rows and bytes are counted for all
ranks, memory and seconds of computing are measured on those with the most non-zeros and the most
rows, which this process rehearses on this machine. Start it as one process:
  python -m hpcgnn.plan CONFIG.toml graph.store=G.h5 --ranks 4,8,16 --memory 4GiB"""

EPILOG = """Seconds of messages are those of the given bandwidth and latency, as if computing hid
none of them. Choices within half of the fastest are rehearsed twice; spread is by how many seconds
the two differ. exit status: 0 something fits; 1 nothing fits the memory; 2 a fault of the input."""

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("plan", DESCRIPTION, epilog=EPILOG, intermixed=True)
    add = cli.add_argument
    add("words", nargs="*", metavar="CONFIG.toml | section.key=value", help="as hpcgnn.train takes")
    add("--ranks", type=_numbers, required=True, metavar="P,...", help="numbers of ranks")
    add(
        "--shape",
        type=Path,
        metavar="FILE",
        help="plan for a graph that is not here, from its degrees (a .toml, see docs/planning.md)",
    )
    add(
        "--write-shape",
        type=Path,
        metavar="FILE",
        help="write the shape of the store, with the share of neighbours outside that its parts "
        "have on so many ranks, and its degrees beside it (.csv); plan nothing",
    )
    add(
        "--exchange",
        type=_names((*EXCHANGES, AUTO)),
        default=("aware", "joint"),
        metavar="X,...",
        help=f"of {', '.join(EXCHANGES)}, or auto: the cheapest by these links "
        "(default: aware,joint)",
    )
    add(
        "--schedule",
        type=_names(SCHEDULES),
        default=SCHEDULES,
        metavar="S,...",
        help=f"of {', '.join(SCHEDULES)} (default: both)",
    )
    add(
        "--replication",
        type=_numbers,
        metavar="C,...",
        help="copies of every block row (default: the configuration's)",
    )
    add("--prefetch", type=int, default=0, metavar="K", help="of the sequential schedule")
    add(
        "--memory",
        type=_bytes,
        metavar="SIZE",
        help="of a rank, as 4GiB or 3500M (units of 1024); default: no limit",
    )
    add(
        "--bandwidth",
        type=float,
        default=1.0,
        metavar="GB/s",
        help="that a rank sends while all ranks of its host send (default: 1)",
    )
    add(
        "--ranks-per-host",
        type=int,
        metavar="N",
        help="hosts have so many ranks, in order; matters to hierarchical (default: all ranks)",
    )
    add("--latency", type=float, default=5.0, metavar="US", help="of a message (default: 5)")
    add(
        "--epochs",
        type=int,
        default=4,
        metavar="N",
        help="to rehearse, at least 2 (default: 4)",
    )
    add(
        "--beside",
        type=int,
        default=1,
        metavar="N",
        help="rehearse so many copies of the rank at once, as ranks of a host share its memory's "
        "bandwidth; needs the memory of each (default: 1)",
    )
    add("--json", action="store_true", help="print a list of JSON objects")
    return cli


def check(cli: CommandParser, options: argparse.Namespace) -> None:
    """End the command where arguments contradict each other."""
    if options.epochs < 2:
        cli.error(f"--epochs {options.epochs}: at least 2, the first one also makes buffers")
    if options.shape and options.write_shape:
        cli.error("--shape and --write-shape: a shape is written of a store")
    if options.write_shape and len(options.ranks) > 1:
        cli.error("--write-shape: give one number of --ranks, whose block rows are measured")
    if options.beside < 1:
        cli.error(f"--beside {options.beside}: at least 1, the rank itself")
    if options.prefetch < 0:
        cli.error(f"--prefetch {options.prefetch}: must not be negative")


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(word) for word in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1 on")
    return numbers


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r}: choose of {', '.join(known)}")
        return words

    return names


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write a size such as 4GiB or 3500M")
    return int(float(match[1]) * UNITS[match[2].upper()])


COMMAND = Command("plan", parser, "hpcgnn.plan.command:main", Processes.ONE, check)

if __name__ == "__main__":
    COMMAND.start()
