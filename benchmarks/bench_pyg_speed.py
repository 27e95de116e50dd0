"""CPU time and memory of torch-geometric modules over ranks, compared with one process on a share.

    python -m benchmarks.bench_pyg_speed [--modules GCN,GAT] [--json]
    mpi_run 2 python -m benchmarks.bench_pyg_speed

A step is a forward and a backward pass of two layers on a random graph. Ways: ``plain`` is
torch-geometric alone on this rank's edges and the rows that they read, all in memory;
``distributed`` is the same module with `hpcgnn.distribute`, ``kernels`` with layers on our
operators. They take turns. CPU seconds are the minimum over rounds, of the slowest rank; those of
``distributed`` exclude the exchange, which has a column of its own. Memory is the peak that a step
adds, in MB, the largest over ranks.
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from mpi4py import MPI

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, models

import hpcgnn
from benchmarks.columns import Columns, megabytes, print_columns, ratio, seconds, text
from benchmarks.epoch_memory import LARGE, M_MMAP_THRESHOLD, status
from benchmarks.harness import surroundings
from hpcgnn import messages
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json
from hpcgnn.pyg.builtin_layers import OWN

WIDTH, CLASSES = 64, 8
# Parameters of mallopt in glibc's malloc.h.
M_TRIM_THRESHOLD = -1
MODULES: Mapping[str, Callable[[float], nn.Module]] = {
    "GCN": lambda p: GCN(WIDTH, WIDTH, 2, CLASSES, p),
    "GraphSAGE": lambda p: GraphSAGE(WIDTH, WIDTH, 2, CLASSES, p),
    "GIN": lambda p: GIN(WIDTH, WIDTH, 2, CLASSES, p),
    "GAT": lambda p: GAT(WIDTH, WIDTH, 2, CLASSES, p, heads=4),
    "GATv2": lambda p: GAT(WIDTH, WIDTH, 2, CLASSES, p, v2=True, heads=4),
    "EdgeCNN": lambda p: models.EdgeCNN(WIDTH, WIDTH, 2, CLASSES, p),
}

Steps: TypeAlias = dict[str, Callable[[], None]]
"""Way -> function that takes a step."""

COLUMNS: Columns = {
    "module": ("module", text),
    "plain s": ("plain_s", seconds),
    "distributed s": ("distributed_s", seconds),
    "over plain": ("overhead", ratio),
    "exchange s": ("exchange_s", seconds),
    "kernels s": ("kernels_s", seconds),
    "times faster": ("speedup", ratio),
    "plain MB": ("plain_bytes", megabytes),
    "distributed MB": ("distributed_bytes", megabytes),
    "kernels MB": ("kernels_bytes", megabytes),
}


class Exchanged:
    """Counts the CPU seconds of exchanges."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count while the block runs."""
        before = {name: getattr(messages, name) for name in ("with_ghosts", "take_home")}
        for name, function in before.items():
            setattr(messages, name, self._timed(function))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(messages, name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.process_time()
            found = function(*args)
            self.seconds += time.process_time() - start
            return found

        return call


def make_data(options: argparse.Namespace) -> Data:
    """Return a random graph with edges sorted by target."""
    rng = np.random.default_rng(1)
    ends = rng.integers(0, options.nodes, (2, options.nodes * options.degree))
    ends = torch.from_numpy(ends[:, np.argsort(ends[1], kind="stable")])
    x = torch.from_numpy(rng.normal(size=(options.nodes, WIDTH)).astype(np.float32))
    return Data(x, ends, y=torch.from_numpy(rng.integers(0, CLASSES, options.nodes)))


def steps(name: str, data: Data, own: Data, dropout: float) -> Steps:
    """Return the ways to take a step."""
    share = own.edge_index.share
    fetched = torch.from_numpy(share.ids).long()
    # Own rows come first, then ghost rows.
    plain = Data(data.x[fetched], share.numbers, y=own.y)
    made: Steps = {}
    for way in ("plain", "distributed", "kernels"):
        torch.manual_seed(1)
        module = MODULES[name](dropout)
        if way == "kernels" and not {type(each).__name__ for each in module.modules()} & set(OWN):
            continue
        if way != "plain":
            module = hpcgnn.distribute(module, kernels=way == "kernels")

        def step(
            module: nn.Module = module, given: Data = plain if way == "plain" else own
        ) -> None:
            module.zero_grad()
            out: Tensor = module(given.x, given.edge_index)
            functional.cross_entropy(out[: len(own.y)], own.y).backward()

        made[way] = step
    return made


def set_allocator(mapped: int, trimmed: int) -> None:
    """Set the sizes from which arrays are mapped and the free end of the heap is returned."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, mapped)
    libc.mallopt(M_TRIM_THRESHOLD, trimmed)


def added_bytes(step: Callable[[], None]) -> int:
    """Return the peak bytes that a step adds to the resident set; see `benchmarks.epoch_memory`."""
    # The first step builds operators.
    step()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    step()
    return status("VmHWM") - before


def measure_times(made: Steps, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a row of the table."""
    comm, exchanged = MPI.COMM_WORLD, Exchanged()
    spent: dict[str, list[float]] = {way: [] for way in (*made, "exchange")}
    with exchanged.watched():
        for number in range(options.rounds + 1):
            # The order rotates, so that each finds the heap as different ways left it.
            first = number % len(made)
            for way in (*made, *made)[first : first + len(made)]:
                comm.Barrier()
                exchanged.seconds, start = 0.0, time.process_time()
                made[way]()
                took = time.process_time() - start
                if number:
                    spent[way].append(took - exchanged.seconds)
                    if way == "distributed":
                        spent["exchange"].append(exchanged.seconds)
    line: dict[str, Any] = {"ranks": comm.size, "nodes": options.nodes, "degree": options.degree}
    for way, each in spent.items():
        line[f"{way}_s"] = comm.allreduce(min(each), MPI.MAX)
    line["overhead"] = line["distributed_s"] / line["plain_s"]
    if "kernels" in made:
        line["speedup"] = line["plain_s"] / line["kernels_s"]
    return line


def main() -> None:
    """Print the table."""
    options, results = parse_arguments(), []
    torch.set_num_threads(1)
    data = make_data(options)
    own = hpcgnn.divide(data, MPI.COMM_WORLD)
    ways = {name: steps(name, data, own, options.dropout) for name in options.modules.split(",")}
    # Arrays in holes of the heap would count as memory from before.
    set_allocator(LARGE, LARGE)
    added = {
        name: {f"{way}_bytes": added_bytes(step) for way, step in made.items()}
        for name, made in ways.items()
    }
    # The thresholds that glibc itself reaches after a while.
    set_allocator(2**25, 2**26)
    for name, made in ways.items():
        most = {key: MPI.COMM_WORLD.allreduce(each, MPI.MAX) for key, each in added[name].items()}
        results.append({"module": name, **measure_times(made, options), **most})
        if options.json and MPI.COMM_WORLD.rank == 0:
            print_json(results[-1] | surroundings("torch", "torch_geometric"))
    if not options.json and MPI.COMM_WORLD.rank == 0:
        print_columns(COLUMNS, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_pyg_speed", description=__doc__)
    parser.add_argument("--modules", default=",".join(MODULES), help="names, separated by commas")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object per module")
    return parser.parse_args()


if __name__ == "__main__":
    run_command("bench_pyg_speed", main)
