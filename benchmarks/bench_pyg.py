"""Training of torch-geometric modules over ranks, compared with plain torch-geometric.

    mpi_run 4 python -m benchmarks.bench_pyg [--modules GCN,GAT] [--seeds 5] [--json]

Each module of `benchmarks.pyg_modules` is trained as by ``hpcgnn train model.name=pyg:...``, in
float64 on a planted graph, on all ranks and on one. ``difference`` is the largest relative
difference of their losses over all epochs and seeds. A plain torch-geometric loop trains the same
class. Accuracies on the test nodes are from the epoch that is best on the validation nodes:
minimum, mean and maximum over the seeds. Learning rates and sizes are equal; each side draws its
own weights and dropout.
"""

import argparse
import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.utils import to_undirected

from benchmarks.bench_outputs import spread
from benchmarks.columns import BESIDE_PYG, Columns, print_columns, text
from benchmarks.harness import surroundings
from benchmarks.pyg_modules import MODULES
from hpcgnn.commands.launch import run_command
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.gallery import planted
from hpcgnn.partition import random, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphStore, Split
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import StopRequest

NUM_NODES, NUM_CLASSES, NUM_FEATURES, SIGNAL = 600, 4, 16, 0.15
HIDDEN, LAYERS, RATE, DROPOUT = 32, 2, 0.01, 0.3

COLUMNS: Columns = {
    "module": ("module", text),
    **BESIDE_PYG,
    "difference": ("difference", "{:.1e}".format),
}


def ours(
    comm: MPI.Intracomm, name: str, folder: Path, seeds: list[int], epochs: int
) -> tuple[list[float], np.ndarray]:
    """Return the accuracies, one per seed, and the losses (seeds, epochs), on the first rank."""
    run = folder / f"{name}-{comm.size}-{MPI.COMM_WORLD.rank if comm.size == 1 else 'all'}"
    kind = MODULES[name]
    words = [
        f"graph.store={folder / 'planted.h5'}",
        f"run.dir={run}",
        "run.threads=1",
        f"model.name=pyg:{kind.__module__}:{kind.__name__}",
        f"model.hidden={HIDDEN}",
        f"model.num_layers={LAYERS}",
        f"model.dropout={DROPOUT}",
        f"train.epochs={epochs}",
        f"train.learning_rate={RATE}",
        "train.weight_decay=0",
        "train.dtype=float64",
        f"train.seeds={seeds}",
    ]
    run_training(comm, load_config(None, words), StopRequest())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [[line for line in lines if line["seed"] == seed] for seed in seeds]
    best = [max(each, key=lambda line: line["valid_accuracy"]) for each in rows]
    losses = [[line["train_loss"] for line in each] for each in rows]
    return [line["test_accuracy"] for line in best], np.array(losses)


def theirs(name: str, store: Path, seed: int, epochs: int) -> float:
    """Return the accuracy of a module trained as in torch-geometric's examples."""
    with GraphStore.open(store) as opened:
        nodes = opened.read_nodes(0, NUM_NODES)
        rows = opened.read_adjacency(0, NUM_NODES)
    targets = np.repeat(np.arange(NUM_NODES), np.diff(rows.indptr))
    ends = torch.from_numpy(np.stack([rows.indices.astype(np.int64), targets]))
    edge_index = to_undirected(ends, num_nodes=NUM_NODES)
    x, y = torch.from_numpy(nodes.features).double(), torch.from_numpy(nodes.labels).long()
    train, valid, test = (
        torch.from_numpy(nodes.split == each) for each in (Split.TRAIN, Split.VALID, Split.TEST)
    )
    torch.manual_seed(seed)
    sizes = {
        "in_channels": NUM_FEATURES,
        "hidden_channels": HIDDEN,
        "num_layers": LAYERS,
        "out_channels": NUM_CLASSES,
        "dropout": DROPOUT,
    }
    taken = inspect.signature(MODULES[name]).parameters
    model = MODULES[name](**{key: value for key, value in sizes.items() if key in taken}).double()
    optimizer = torch.optim.Adam(model.parameters(), RATE)

    def accuracy(out: Tensor, rows: Tensor) -> float:
        return float((out.argmax(1) == y)[rows].double().mean())

    best, kept = -1.0, 0.0
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(x, edge_index)[train], y[train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            out = model(x, edge_index)
        if accuracy(out, valid) > best:
            best, kept = accuracy(out, valid), accuracy(out, test)
    return kept


def measure(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return a row of the table; ranks share the seeds of the single-process trainings."""
    comm, seeds = MPI.COMM_WORLD, list(range(1, options.seeds + 1))
    mine = seeds[comm.rank :: comm.size]
    accuracies, losses = comm.bcast(ours(comm, name, folder, seeds, options.epochs))
    difference = 0.0
    if mine:
        _, alone = ours(MPI.COMM_SELF, name, folder, mine, options.epochs)
        every = losses[comm.rank :: comm.size]
        difference = float(np.abs(alone / every - 1).max())
    peer = [theirs(name, folder / "planted.h5", seed, options.epochs) for seed in mine]
    others = [each for part in comm.allgather(peer) for each in part]
    line = {"module": name, "ranks": comm.size, **spread(accuracies), **spread(others, "peer_")}
    return line | {"difference": comm.allreduce(difference, MPI.MAX)}


def main() -> None:
    """Print the table."""
    options = parse_arguments()
    comm, results = MPI.COMM_WORLD, []
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(comm.bcast(name))
        if comm.rank == 0:
            graph = planted(NUM_NODES, NUM_CLASSES, NUM_FEATURES, 5, signal=SIGNAL)
            graph.write(folder / "whole.h5")
            with GraphStore.open(folder / "whole.h5") as opened:
                partition = random(1)(read_pattern(opened), comm.size)
                write_partitioned(opened, folder / "planted.h5", partition, method="random", seed=1)
        comm.Barrier()
        for module in options.modules.split(","):
            results.append(measure(module, folder, options))
            if options.json and comm.rank == 0:
                print_json(results[-1] | surroundings("torch", "torch_geometric"))
        comm.Barrier()
    if not options.json and comm.rank == 0:
        print_columns(COLUMNS, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_pyg", description=__doc__)
    parser.add_argument("--modules", default=",".join(MODULES), help="names, separated by commas")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5, help="1, 2, ...")
    parser.add_argument("--json", action="store_true", help="print one JSON object per module")
    return parser.parse_args()


if __name__ == "__main__":
    run_command("bench_pyg", main)
