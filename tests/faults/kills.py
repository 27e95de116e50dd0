"""Ranks killed at random moments of a run that is started again each time.

    python -m tests.faults.kills STORE.h5 FOLDER [--ranks 2] [--chains 10] [--kills 5]

The losses and weights at the end of each chain must equal those of a run that nothing interrupted.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.support.faults import (
    ROOT,
    command,
    end_those_of,
    losses,
    ranks_of,
    run_with_fault,
    weights,
)

SETTINGS = (
    "train.epochs=300",
    "model.hidden=64",
    "model.dropout=0.3",
    "run.threads=1",
    "run.checkpoint_every=1",
)


def main() -> None:
    """Print a line for each chain, and fail at the first that differs."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("store", type=Path)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--ranks", type=int, default=2)
    cli.add_argument("--chains", type=int, default=10)
    cli.add_argument("--kills", type=int, default=5)
    options = cli.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    whole = options.folder / "whole"
    assert run_with_fault(options.ranks, options.store, whole, SETTINGS).status == 0
    for chain in range(options.chains):
        moments = random.Random(chain)
        run = options.folder / str(chain)
        reached = [killed(options.ranks, options.store, run, moments) for _ in range(options.kills)]
        again = run_with_fault(options.ranks, options.store, run, SETTINGS)
        assert again.status == 0, again.errors
        assert losses(run) == losses(whole)
        assert weights(run) == weights(whole)
        assert not [*run.rglob(".*.tmp"), *run.rglob(".*partial*")]
        sys.stdout.write(f"chain {chain}: killed after epochs {reached}, equal\n")
        sys.stdout.flush()


def killed(ranks: int, store: Path, run: Path, moments: random.Random) -> int:
    """Kill one rank at a moment of the start or of the epochs; return how many lines there are."""
    words, environment = command(ranks, store, run, SETTINGS)
    metrics = run / "metrics.jsonl"
    before = metrics.read_text().count("\n") if metrics.exists() else 0
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    ) as process:
        while len(found := ranks_of(run)) < ranks:
            time.sleep(0.01)
        if moments.random() < 0.2:
            time.sleep(5 * moments.random())
        else:
            # From its first epoch on, when a checkpoint is written or read every few milliseconds.
            while process.poll() is None and (
                not metrics.exists() or metrics.read_text().count("\n") <= before
            ):
                time.sleep(0.005)
            time.sleep(moments.random())
        with suppress(ProcessLookupError):
            os.kill(moments.choice(found), signal.SIGKILL)
        process.wait(60)
    assert end_those_of(run) == 0
    return metrics.read_text().count("\n") if metrics.exists() else 0


if __name__ == "__main__":
    main()
