"""Ranks are killed at random moments of a run that is restarted each time.

    python -m tests.faults.kills FOLDER [--ranks 2] [--kills 3] [--only PART]

There is a chain of kills for each objective and source, including rows of sixteen and eight bits on
the wire. The losses and weights at the end of a chain must equal those of an uninterrupted run.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.training_growth import FIELDS, NEIGHBOURS, make_inputs
from tests.support.faults import (
    ROOT,
    command,
    describe_processes,
    end_those_of,
    losses,
    ranks_of,
    run_with_fault,
    weights,
)

SETTINGS = ("train.epochs=150", "run.threads=1", "run.checkpoint_every=1")
NODES = ("planted", "model.hidden=64", "model.dropout=0.3")
SAMPLED = (*NODES, "train.task=sampled", "sampling.budget=300")
LINKS = (*NODES, "train.task=links")
GRAPHS = ("planted-graphs", "train.task=graphs", "model.name=gin")
INT8 = "exchange.wire=int8"
BFLOAT16 = "train.precision=bfloat16"
CASES: Mapping[str, tuple[str, ...]] = {
    "classes, whole graph": NODES,
    "numbers, whole graph, bfloat16": (*NODES, "graph.targets={nodes}", BFLOAT16),
    "classes, whole graph, int8 wire": (*NODES, "exchange.method=joint", INT8),
    "classes, whole graph, bfloat16 wire": (*NODES, "exchange.wire=bfloat16"),
    "classes, frontier": SAMPLED,
    "classes, neighbours, bfloat16": (*SAMPLED, *NEIGHBOURS, BFLOAT16),
    "classes of edges, int8 wire": ("edges", "train.task=edges", "model.embeddings=true", INT8),
    "links, whole graph, int8 wire": (*LINKS, INT8),
    "links, neighbours": (*LINKS, "links.sampled=true", "sampling.budget=300", *NEIGHBOURS),
    "classes of graphs, batches, bfloat16": (*GRAPHS, BFLOAT16),
    "numbers of graphs, all at once, int8 wire": (
        *GRAPHS,
        "graph.targets={graphs}",
        "graphs.batch=0",
        INT8,
    ),
    "fields, bfloat16": (*FIELDS, "train.epochs=20", BFLOAT16),
    "fields, unrolled, int8 wire": (
        *FIELDS,
        "fields.batch=8",
        "train.epochs=12",
        "fields.unroll=3",
        INT8,
    ),
    "programs": ("programs", "train.task=programs", "programs.epoch_graphs=10", "train.epochs=40"),
}
"""For each chain, the store that it trains on, as named by `make_inputs`, and its settings."""


def main() -> None:
    """Print a line for each chain, and fail at the first that differs."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--ranks", type=int, default=2)
    cli.add_argument("--kills", type=int, default=3, help="of each case (default: 3)")
    cli.add_argument("--only", default="", metavar="PART", help="cases with this in their name")
    options = cli.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    for number, case in enumerate(CASES):
        if options.only in case:
            reached = chain(case, options.folder, options.ranks, options.kills, number)
            sys.stdout.write(f"{case}: killed after epochs {reached}, equal\n")
            sys.stdout.flush()


def chain(case: str, folder: Path, ranks: int, kills: int, seed: int) -> list[int]:
    """Kill a run repeatedly; return the epochs of the kills. Its result must be the same."""
    name_of_store, *words = CASES[case]
    inputs = make_inputs(folder, name_of_store)
    store = parts = Path(inputs[name_of_store])
    if name_of_store != "programs":
        parts = store.with_suffix(f".{ranks}.h5")
        if not parts.exists():
            partition = ["partition", str(store), "--parts", str(ranks), "-o", str(parts)]
            subprocess.run([sys.executable, "-m", "hpcgnn", *partition], check=True, cwd=ROOT)
    settings = [*SETTINGS, *(word.format(**inputs) for word in words)]
    name, moments = case.replace(", ", "-").replace(" ", "-"), random.Random(seed)
    whole, run = folder / f"{name}.whole", folder / name
    assert run_with_fault(ranks, parts, whole, settings).status == 0
    reached = [killed(ranks, parts, run, settings, moments) for _ in range(kills)]
    again = run_with_fault(ranks, parts, run, settings)
    assert again.status == 0, again.errors
    assert losses(run) == losses(whole)
    assert weights(run) == weights(whole)
    assert not [*run.rglob(".*.tmp"), *run.rglob(".*partial*")]
    return reached


def killed(
    ranks: int, store: Path, run: Path, settings: Sequence[str], moments: random.Random
) -> int:
    """Kill one rank at a moment of the start or of the epochs; return the number of lines."""
    words, environment = command(ranks, store, run, settings)
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
            # From the first epoch on, when a checkpoint is written or read every few milliseconds.
            while process.poll() is None and (
                not metrics.exists() or metrics.read_text().count("\n") <= before
            ):
                time.sleep(0.005)
            time.sleep(moments.random())
        with suppress(ProcessLookupError):
            os.kill(moments.choice(found), signal.SIGKILL)
        try:
            status = process.wait(60)
        except subprocess.TimeoutExpired as error:
            error.add_note(describe_processes(run))
            raise
        # The run may have ended just before.
        assert status in (128 + signal.SIGKILL, 0), status
    assert end_those_of(run) == 0
    return metrics.read_text().count("\n") if metrics.exists() else 0


if __name__ == "__main__":
    main()
