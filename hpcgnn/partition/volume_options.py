"""The options of ``--method volume`` on the command line."""

import argparse
from pathlib import Path

import numpy as np

from hpcgnn.console import report
from hpcgnn.errors import InputError
from hpcgnn.partition.methods import Partitioner
from hpcgnn.partition.volume_balanced import CANDIDATES, OBJECTIVES, PRESETS, volume_balanced
from hpcgnn.typing import LocalIndices

__all__ = ["DEFAULT_IMBALANCE", "add_volume_options", "refuse_volume_options", "volume_partitioner"]

DEFAULT_IMBALANCE = 0.05
OPTIONS = ("objective", "preset", "candidates", "threads", "time_limit", "refine")


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
        type=lambda text: tuple(text.split(",")),
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
        metavar="FILE",
        help="start from this partition, not from METIS's: the part of every node in the store's "
        "order, as .npy or as text with one number a line",
    )


def refuse_volume_options(options: argparse.Namespace) -> None:
    """Raise InputError if an option of ``--method volume`` was given to another method."""
    for name in OPTIONS:
        if getattr(options, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} belongs to --method volume, not to {options.method}")


def volume_partitioner(options: argparse.Namespace) -> Partitioner:
    """Return the volume-balanced partitioner that the options describe; it reports to stderr."""
    return volume_balanced(
        objective=options.objective or "max_both",
        imbalance=DEFAULT_IMBALANCE if options.imbalance is None else options.imbalance,
        seed=options.seed,
        threads=1 if options.threads is None else options.threads,
        time_limit=options.time_limit,
        preset=options.preset or "default",
        candidates=options.candidates or ("metis",),
        initial=None if options.refine is None else read_parts(options.refine),
        report=lambda text, seconds: report(f"{seconds:8.1f} s  {text}"),
    )


def read_parts(path: Path) -> LocalIndices:
    """Read part numbers from a .npy file, or from text with one number a line, int32[n].

    Raises InputError for a file that cannot be read or holds anything else.
    """
    try:
        text = path.suffix != ".npy"
        found = np.array(path.read_text().split(), np.int64) if text else np.load(path)
    except (OSError, EOFError, OverflowError, ValueError) as error:
        raise InputError(f"{path}: no part numbers could be read: {error}") from error
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu":
        raise InputError(f"{path}: a vector of integers is needed")
    limits = np.iinfo(np.int32)
    if found.size and not limits.min <= int(found.min()) <= int(found.max()) <= limits.max:
        raise InputError(f"{path}: a part number does not fit into 32 bits")
    return found.astype(np.int32)
