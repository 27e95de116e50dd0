"""Reproducible runs over ranks, exchanges, schedules and replications: are their bits equal?

    mpiexec -n P python -m tests.faults.bits FOLDER [--models gcn sage gat]

Start it with one rank first, whose runs all others are compared with: metrics but times and
traffic, the tensors of the last checkpoint, and predictions, byte by byte. All train on 8 parts of
one graph, with batch normalisation and dropout, for 20 epochs; two ranks are a host each time.
"""

import argparse
import platform
import shutil
from itertools import product
from pathlib import Path

from mpi4py import MPI

import numpy as np

from tests.support.training import MOVED, Run, lasting, make_config, make_graph, train, write_store

PARTS, NODES, EPOCHS, PER_HOST = 8, 997, 20, 2
EXCHANGES = ("aware", "push", "joint", "hierarchical")
SCHEDULES = ("resident", "sequential")
MODELS = {
    "gcn": (),
    "sage": (),
    "gat": ("model.heads=2",),
    "gatv2": ("model.heads=2",),
    "transformer": ("model.heads=2",),
    "rgcn": ("model.num_bases=2",),
}
SETTINGS = (
    "train.reproducible=true",
    f"train.epochs={EPOCHS}",
    "model.num_layers=3",
    "model.hidden=8",
    "model.norm=batch",
    "model.dropout=0.3",
)


def main() -> int:
    """Print a line for each model; return 1 where any bits differ."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    cli.add_argument("--changed", action="append", default=[], metavar="KEY=VALUE")
    options = cli.parse_args()
    world, folder = MPI.COMM_WORLD, options.folder
    platform.node = lambda: f"host{world.rank // PER_HOST}"
    copies = [each for each in (1, 2) if world.size % each == 0]
    all_equal = True
    for model in options.models:
        store = made_store(folder, model)
        settings = (f"model.name={model}", *SETTINGS, *MODELS[model], *options.changed)
        whole = Run(folder / f"{model}-whole", 0)
        if world.size == 1 and not (whole.path / "summary.json").exists():
            train(world, make_config(store, whole.path, *settings))
        different, count = [], 0
        for replication, exchange, schedule in product(copies, EXCHANGES, SCHEDULES):
            way = (
                f"exchange.replication={replication}",
                f"exchange.method={exchange}",
                f"exchange.schedule={schedule}",
            )
            run = train(world, make_config(store, folder / f"{model}-run", *settings, *way))
            assert run.status == 0
            world.Barrier()
            if world.rank == 0:
                if found := compare(run, whole):
                    different.append(f"{' '.join(way)}: {found}")
                shutil.rmtree(run.path)
            world.Barrier()
            count += 1
        different = world.bcast(different)
        all_equal &= not different
        if world.rank == 0:
            cell = "; ".join(different) or "all equal"
            print(f"| {model} | {world.size} | {count} | {cell} |", flush=True)
    return not all_equal


def made_store(folder: Path, model: str) -> Path:
    """Return the store of a model, made by a run of one rank."""
    inputs = folder / f"{model}-store"
    store = inputs / f"metis{PARTS}.h5"
    if MPI.COMM_WORLD.size == 1 and not store.exists():
        inputs.mkdir(parents=True)
        graph = make_graph(num_nodes=NODES, directed=model != "sage")
        graph = graph.with_relations() if model == "rgcn" else graph
        write_store(MPI.COMM_SELF, inputs, graph, method="metis", parts=PARTS)
    return store


def compare(run: Run, other: Run) -> str:
    """Return what differs between two runs, in a few words; nothing where all bits are equal."""
    found = []
    for name, mine, theirs in (
        ("tensors", run.tensors(), other.tensors()),
        ("predictions", run.predictions(), other.predictions()),
    ):
        assert mine
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
    same = (one.dtype, one.shape) == (other.dtype, other.shape)
    return same and one.tobytes() == other.tobytes()


def _told(row: dict[str, object]) -> dict[str, object]:
    """Return a line of metrics without what ranks and exchanges decide: times and traffic."""
    return {k: v for k, v in lasting(row).items() if k not in MOVED}


if __name__ == "__main__":
    raise SystemExit(main())
