"""Compare the losses of training on a GPU with those on the CPU, in float32.

``mpiexec -n 2 python -m benchmarks.gpu_losses`` trains every model that supports GPUs, and GCN and
GAT with every exchange and schedule, for five epochs on both devices, with dropout, on a random
graph of 400 nodes whose edges have features. It prints one JSON object per case: the largest
relative difference of a loss, or the reason why the case does not train.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np

from hpcgnn.commands.launch import run_command
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS
from hpcgnn.storage import EdgeData, GraphArrays, Split, store_from_arrays
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import StopRequest

NODES, EDGES, CLASSES, SEED = 400, 2400, 4, 20261128
EXCHANGES = ("aware", "push", "joint", "oblivious", "hierarchical")
SCHEDULES: tuple[tuple[str, ...], ...] = (
    (),
    ("exchange.schedule=sequential",),
    ("exchange.schedule=sequential", "exchange.prefetch=1"),
)
SETTINGS = (
    "train.epochs=5",
    "train.dtype=float32",
    "model.hidden=8",
    "model.dropout=0.3",
    "run.threads=1",
    "run.save_predictions=false",
    "graph.weights=ignore",
)


def main() -> None:
    comm = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as made:
        folder = Path(comm.bcast(made))
        if comm.rank == 0:
            write_graph(folder / "graph.h5")
        comm.Barrier()
        for number, words in enumerate(cases()):
            case = {"ranks": comm.size, "settings": words}
            case |= compare(comm, folder / "graph.h5", folder / str(number), words)
            if comm.rank == 0:
                print_json(case)
        comm.Barrier()


def cases() -> Iterator[tuple[str, ...]]:
    """Yield the settings of each case."""
    for model in MODELS:
        yield (f"model.name={model}",)
    for model in ("gcn", "gat"):
        for exchange in EXCHANGES:
            for schedule in SCHEDULES:
                yield (f"model.name={model}", f"exchange.method={exchange}", *schedule)
    for norm in ("batch", "layer", "graph"):
        yield ("model.name=sage", f"model.norm={norm}")


def write_graph(path: Path) -> None:
    """Write a random graph whose edges have features, both ways."""
    rng = np.random.default_rng(SEED)
    ends = rng.integers(0, NODES, (2, EDGES))
    labels = rng.integers(0, CLASSES, NODES).astype(np.int32)
    features = rng.normal(size=(NODES, 6)) + labels[:, None]
    split = rng.choice([Split.TRAIN, Split.VALID, Split.TEST], NODES).astype(np.uint8)
    of_edges = rng.normal(size=(EDGES, 3)).astype(np.float32)
    store_from_arrays(
        path,
        GraphArrays(
            name="random",
            num_nodes=NODES,
            edges={"": (ends[0], ends[1])},
            edge_data={"": EdgeData(of_edges)},
            features=features.astype(np.float32),
            labels=labels,
            split=split,
            num_classes=CLASSES,
        ),
    )


def compare(comm: MPI.Intracomm, store: Path, run: Path, words: tuple[str, ...]) -> dict[str, Any]:
    """Return the largest relative difference of a loss, or the reason why there is none."""
    losses = []
    try:
        for device in ("cpu", "cuda"):
            place = run / device
            given = [f"graph.store={store}", f"run.dir={place}", *SETTINGS, *words]
            run_training(comm, load_config(None, [*given, f"train.device={device}"]), StopRequest())
            rows = (place / "metrics.jsonl").read_text().splitlines()
            losses.append([json.loads(row)["train_loss"] for row in rows])
    except InputError as error:
        return {"refused": str(error)}
    return {"relative_difference": max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))}


if __name__ == "__main__":
    run_command("gpu_losses", main)
