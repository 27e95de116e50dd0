"""The training command, on every rank."""

import argparse
from pathlib import Path

from hpcgnn import watchdog
from hpcgnn.comm import Communicator, agree
from hpcgnn.config.file import describe_keys, load_config
from hpcgnn.config.programs import sample_overrides
from hpcgnn.console import print_json, print_table
from hpcgnn.errors import InputError
from hpcgnn.graph.device import require_device
from hpcgnn.launch import RankArgumentParser
from hpcgnn.spmd import collective
from hpcgnn.train.over_splits import train_over_splits
from hpcgnn.train.process import stop_on_signals
from hpcgnn.train.run.report import print_results

_DESCRIPTION = """Train a node model on a partitioned store. Start it on every rank:
  srun python -m hpcgnn.train CONFIG.toml graph.store=G.h5 run.dir=DIR
The number of ranks is at most the number of parts of the store."""

_EPILOG = """exit status: 0 trained; 2 a fault of the input, one line tells which; 75 stopped by
SIGTERM or SIGUSR1 after an epoch, with a checkpoint: start the same command again to go on; 76 a
machine failed the run (a rank made no progress for run.stall_s, or holds other weights than the
others): start it again, too. SIGUSR2 makes a rank write the stacks of its threads.
srun hands both signals to the ranks; Open MPI's mpiexec hands on SIGUSR1, and kills the ranks at
SIGTERM: a killed run goes on from its last checkpoint."""


@collective
def main(comm: Communicator) -> int:
    """Run the command with the arguments of the process; return its exit status."""
    arguments = _parse()
    if arguments.keys is not None:
        with agree(comm):
            sections = _keys_about(arguments.keys)
        if comm.rank == 0:
            for section, rows in sections.items():
                print_table(f"[{section}]", ("key", "default", "meaning"), rows, prose=True)
        return 0
    with stop_on_signals() as stop:
        with agree(comm):
            drawn = _drawn(arguments)
            # What the command line says counts most.
            config = load_config(arguments.config, [*drawn, *arguments.overrides])
            # The others may wait for this rank at the end of the block already.
            watchdog.set_limit(config.run.stall_s)
            require_device(config)
        summary, status = train_over_splits(comm, config, stop)
    if comm.rank == 0 and summary is not None:
        if arguments.json:
            print_json(summary)
        else:
            print_results(summary, Path(config.run.dir))
    return status


def _parse() -> argparse.Namespace:
    parser = RankArgumentParser("train", _DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG.toml | section.key=value",
        help="a configuration file, and overrides of it (TOML values)",
    )
    parser.add_argument(
        "--keys",
        nargs="?",
        const="",
        metavar="WORD",
        help="list the keys with their defaults; with a word, those that are about it",
    )
    parser.add_argument(
        "--sample-config",
        type=int,
        dest="seed",
        metavar="SEED",
        help="draw the optimiser's settings of program graphs, for a search by an array of jobs",
    )
    parser.add_argument(
        "--large-batch",
        action="store_true",
        help="with --sample-config: the ranges for many supergraphs a step",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_intermixed_args()
    files = [word for word in arguments.words if "=" not in word]
    if len(files) > 1:
        parser.error(f"more than one configuration file: {' '.join(files)}")
    arguments.config = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments


def _keys_about(word: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return the keys that name a word, or whose meanings do, by section."""
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for row in describe_keys():
        if word.lower() in " ".join(row).lower():
            sections.setdefault(row[0].partition(".")[0], []).append(row)
    if not sections:
        raise InputError(f"--keys {word}: no key is about it; --keys alone lists all")
    return sections


def _drawn(arguments: argparse.Namespace) -> list[str]:
    if arguments.seed is not None:
        return sample_overrides(arguments.seed, large_batch=arguments.large_batch)
    if arguments.large_batch:
        raise InputError("--large-batch says what --sample-config SEED draws from: give both")
    return []
