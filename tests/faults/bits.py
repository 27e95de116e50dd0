"""Reproducible runs over ranks, exchanges, schedules and replications: are their bits equal?

    python -m tests.faults.bits FOLDER [--models gcn sage gat rgcn] [--ranks 1 2 3 4 8] >> table.md

Every run is a command of its own on one store of 8 parts, with batch normalisation and dropout, for
20 epochs. Its metrics but times and traffic, the tensors of its last checkpoint and its predictions
are compared, number by number, with those of one rank, which FOLDER keeps for a later call.
"""

import argparse
import shutil
import sys
from itertools import product
from pathlib import Path

from mpi4py import MPI

import numpy as np

from tests.support.faults import run_with_fault
from tests.support.training import Run, lasting, make_graph, write_store

PARTS, NODES, EPOCHS = 8, 997, 20
EXCHANGES = ("aware", "push", "joint", "hierarchical")
SCHEDULES = ("resident", "sequential")
MODELS = {
    "gcn": (),
    "sage": (),
    "gat": ("model.heads=2", "model.hidden=8"),
    "rgcn": ("model.num_bases=2",),
}
SETTINGS = (
    "train.reproducible=true",
    f"train.epochs={EPOCHS}",
    "model.num_layers=3",
    "model.hidden=8",
    "model.norm=batch",
    "model.dropout=0.3",
    "run.threads=1",
)


def main() -> None:
    """Print a line for each model and number of ranks; end with 1 where any bits differ."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    cli.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 3, 4, 8])
    cli.add_argument("--replications", nargs="+", type=int, default=[1, 2])
    options = cli.parse_args()
    all_equal = True
    for model, ranks in product(options.models, options.ranks):
        whole = reference(options.folder, model)
        different, count = [], 0
        for replication, exchange, schedule in product(options.replications, EXCHANGES, SCHEDULES):
            if ranks % replication:
                continue
            way = (
                f"exchange.replication={replication}",
                f"exchange.method={exchange}",
                f"exchange.schedule={schedule}",
            )
            run = options.folder / f"{model}-{ranks}-{replication}-{exchange}-{schedule}"
            found = compare(trained(options.folder, model, ranks, run, way), whole)
            count += 1
            if found:
                different.append(f"{' '.join(way)}: {found}")
                sys.stderr.write(f"{model} on {ranks} ranks, {different[-1]}\n")
            shutil.rmtree(run)
        all_equal &= not different
        cell = "all equal" if not different else "; ".join(different)
        print(f"| {model} | {ranks} | {count} | {cell} |", flush=True)
    raise SystemExit(not all_equal)


def reference(folder: Path, model: str) -> Run:
    """Return the run of one rank, made where an earlier call has not."""
    run = folder / f"{model}-whole"
    if (run / "summary.json").exists():
        return Run(run, 0)
    return trained(folder, model, 1, run, ())


def trained(folder: Path, model: str, ranks: int, run: Path, way: tuple[str, ...]) -> Run:
    """Return a run that has ended well."""
    graph = make_graph(num_nodes=NODES, directed=model != "sage")
    inputs = folder / f"{model}-store"
    store = inputs / f"metis{PARTS}.h5"
    if not store.exists():
        inputs.mkdir(parents=True)
        whole = graph.with_relations() if model == "rgcn" else graph
        write_store(MPI.COMM_SELF, inputs, whole, method="metis", parts=PARTS)
    more = ("graph.weights=ignore",) if model == "gat" else ()
    settings = (f"model.name={model}", *SETTINGS, *MODELS[model], *more, *way)
    found = run_with_fault(ranks, store, run, settings)
    assert found.status == 0, found.errors
    return Run(run, 0)


def compare(run: Run, other: Run) -> str:
    """Return what differs between two runs, in a few words; nothing where all bits are equal."""
    found = []
    for name, mine, theirs in (
        ("tensors", run.tensors(), other.tensors()),
        ("predictions", run.predictions(), other.predictions()),
    ):
        found += [
            f"{name} {each}"
            for each in sorted(mine.keys() | theirs.keys())
            if each not in mine or each not in theirs or not equal_bits(mine[each], theirs[each])
        ]
    rows = [[_told(row) for row in each.metrics] for each in (run, other)]
    assert len(rows[0]) == EPOCHS
    found += [f"epoch {n}" for n, pair in enumerate(zip(*rows, strict=True)) if pair[0] != pair[1]]
    return ", ".join(found)


def equal_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Tell whether two arrays hold the same bytes, signs of zeros and kinds of NaN among them."""
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def _told(row: dict[str, object]) -> dict[str, object]:
    """Return a line of metrics without what ranks and exchanges decide: times and traffic."""
    return {k: v for k, v in lasting(row).items() if k not in ("rows_sent", "bytes_sent")}


if __name__ == "__main__":
    main()
