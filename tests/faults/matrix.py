"""Every fault in every phase of a run: exit status, and seconds until every process has ended.

A time above the limit and ten seconds more is marked LATE.

    python -m tests.faults.matrix STORE.h5 FOLDER [--ranks 4] [--stall 10] [--faults ...] > table.md

Runs that a fault ended in an epoch or a checkpoint are restarted; their losses and weights must
equal those of an uninterrupted run.
"""

import argparse
import shutil
import sys
from pathlib import Path

from tests.support.faults import PHASES, STATUS, losses, run_with_fault, weights

MARGIN_S = 10


def main() -> None:
    """Print the table; a line for each fault goes to standard error on the way."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("store", type=Path)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--ranks", type=int, default=4)
    cli.add_argument("--stall", type=float, default=10)
    cli.add_argument("--faults", nargs="+", choices=STATUS, default=list(STATUS))
    options = cli.parse_args()
    # A finished run in the folder may have other settings.
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    settings = (
        "train.epochs=8",
        "model.hidden=8",
        "model.dropout=0.3",
        "run.threads=1",
        "run.checkpoint_every=2",
        f"run.stall_s={options.stall}",
    )
    whole = options.folder / "whole"
    assert run_with_fault(options.ranks, options.store, whole, settings).status == 0
    print(f"| fault | {' | '.join(PHASES)} |")
    print(f"|---|{'---|' * len(PHASES)}")
    for fault in options.faults:
        cells = []
        for phase, place in PHASES.items():
            run = options.folder / f"{fault}-{phase}"
            shutil.rmtree(run, ignore_errors=True)
            given = f"{options.ranks - 1} {fault} {place}"
            found = run_with_fault(options.ranks, options.store, run, settings, given)
            cell = f"{found.status}, {found.seconds:.1f} s"
            if not STATUS[fault](found.status, phase):
                cell += " UNEXPECTED"
            if found.orphans:
                cell += f" {found.orphans} ORPHANS"
            cell += " LATE" * (found.seconds > options.stall + MARGIN_S)
            if phase in ("epoch", "checkpoint"):
                again = run_with_fault(options.ranks, options.store, run, settings)
                same = again.status == 0 and losses(run) == losses(whole)
                same = same and weights(run) == weights(whole)
                cell += ", equal" if same else ", DIFFERS"
            cells.append(cell)
            sys.stderr.write(f"{fault} {phase}: {cell}\n")
            shutil.rmtree(run, ignore_errors=True)
        print(f"| {fault} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
