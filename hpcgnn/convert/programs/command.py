"""``python -m hpcgnn.convert programs``: convert folders of Python to a store of program graphs."""

import argparse
import os
import time
from dataclasses import fields
from pathlib import Path

from hpcgnn.console import print_json, print_values, report
from hpcgnn.convert.programs.conversion import convert_programs
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.release import convert_release
from hpcgnn.errors import InputError

_OF_RELEASE = ("steps", "max_nodes", "num_buckets", "seed")
"""Options that apply to the published data set, which has made the other choices."""


def main(args: argparse.Namespace) -> None:
    """Convert programs with the options `args`; raises `InputError` for faulty input."""
    options = _options(args)
    started = time.perf_counter()
    if args.release:
        result = convert_release([Path(folder) for folder in args.inputs], args.output, options)
    else:
        processes = args.processes or os.cpu_count() or 1
        result = convert_programs(args.inputs, args.output, options, processes=processes)
    summary = {
        "path": str(result.path),
        "num_files": result.num_files,
        "num_instances": sum(result.splits.values()),
        **{f"num_{name}": count for name, count in result.splits.items()},
        "unreadable_files": len(result.failures),
        "repeated_snippets": result.repeated,
        "too_large": result.too_large,
        "seconds": round(time.perf_counter() - started, 3),
    }
    for name, reason in result.failures.items():
        report(f"not read: {name}: {reason}")
    if args.json:
        print_json(summary)
    else:
        print_values(f"store {result.path}", summary, made=True)


def _options(args: argparse.Namespace) -> ProgramOptions:
    names = [option.name for option in fields(ProgramOptions)]
    of_sources = [name for name in (*names, "processes") if name not in _OF_RELEASE]
    for name in of_sources if args.release else ():
        if getattr(args, name) != getattr(ProgramOptions, name, None):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag}: has no effect on --release; leave it out")
    if args.num_buckets > 1 << 16:
        raise InputError(f"--num-buckets {args.num_buckets}: give at most 65536")
    shares = (args.valid_share, args.test_share, args.unseen_share)
    if min(shares) < 0 or args.valid_share + args.test_share >= 1:
        raise InputError("--valid-share and --test-share must sum to less than 1, to leave files")
    if not args.unseen_share < 1:
        raise InputError(f"--unseen-share {args.unseen_share}: give less than 1")
    return ProgramOptions(**{name: getattr(args, name) for name in names})
