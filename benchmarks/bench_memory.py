"""Peak memory and seconds of training, by model and schedule of the exchange.

    mpiexec -n 4 python -m benchmarks.bench_memory --model sage --schedule sequential --prefetch 1

One launch measures one schedule, because memory kept by the allocator after a first schedule would
hide the growth of a second one. `idle_rss_bytes` is measured in the same process, after it has read
the graph, planned, and trained an epoch of the model with 4 columns per head: everything permanent
has been touched (libraries, features, matrices and their transposes, plans, buffers of MPI), but no
row of the measured width. Then the high-water mark of the resident set (VmHWM) is reset, and read
after two epochs. Both are from the rank where they differ most. Glibc is set to return every freed
array at once, so the mark measures arrays in use, not holes in the heap. `epoch_s` is the median
over further epochs, with glibc's defaults, of the slowest rank's time; `epoch_cpu_s` is that of the
processor time of all ranks, which other work on the machine affects less. With --compare the given
and a resident schedule take turns, epoch by epoch. Results reuse memory, as in training.
"""

import argparse
import ctypes
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.columns import Columns, megabytes, print_columns, ratio, seconds, text
from benchmarks.exchange_graphs import open_graph
from benchmarks.report import circumstances
from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import Communicator, ProcessGrid
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_mpi_command
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.console import print_json
from hpcgnn.graph.operators import Adjacency, make_operators
from hpcgnn.kernels import reused_memory
from hpcgnn.nn import MODELS, ModelShape, make_model
from hpcgnn.operator import on_graph
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import EXCHANGES, SCHEDULES
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.gradients import sum_gradients

NUM_FEATURES, NUM_CLASSES = 100, 47
IDLE_WIDTH, MEMORY_EPOCHS = 4, 2
# Parameters of mallopt in glibc's malloc.h; the threshold is the one that glibc itself reaches.
M_MMAP_THRESHOLD, LARGE, LARGEST = -3, 2**16, 2**25
SHAPES = {
    "sage": {"hidden": 256},
    "gcn": {"hidden": 256},
    "gat": {"hidden": 128, "heads": 4},
    "rgcn": {"hidden": 256, "num_relations": 8},
}
COLUMNS: Columns = {
    "model": ("model", text),
    "ranks": ("ranks", text),
    "exchange": ("exchange", text),
    "schedule": ("schedule", text),
    "prefetch": ("prefetch", text),
    "idle MB": ("idle_rss_bytes", megabytes),
    "peak MB": ("peak_rss_bytes", megabytes),
    "growth MB": ("growth_rss_bytes", megabytes),
    "ghost MB": ("ghost_bytes_max", megabytes),
    "bound MB": ("ghost_bytes_bound", megabytes),
    "epoch s": ("epoch_s", seconds),
    "to resident": ("epoch_ratio", ratio),
    "cpu s": ("epoch_cpu_s", seconds),
    "cpu to resident": ("epoch_cpu_ratio", ratio),
}


def main(comm: Communicator) -> int:
    options = parse()
    torch.set_num_threads(1)
    # Before the first array: an array freed in the heap leaves a hole, which later arrays fill and
    # which never returns to the system.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
    # Equal parts without locality: the worst case for ghost rows.
    graph = open_graph(comm, options.graph, method="random")
    with ProcessGrid(comm, options.replication) as grid:
        pattern = graph.block_row(grid)
        if options.model == "rgcn":
            pattern = by_relation(pattern, SHAPES["rgcn"]["num_relations"])
        config = ExchangeConfig(
            method=options.exchange,
            replication=options.replication,
            schedule=options.schedule,
            prefetch=options.prefetch,
        )
        result = {
            "model": options.model,
            "graph": graph.name,
            "ranks": comm.size,
            "replication": options.replication,
            "exchange": options.exchange,
            "schedule": options.schedule,
            "prefetch": options.prefetch,
            **measure(grid, pattern, config, options),
            **circumstances(),
        }
    if comm.rank == 0 and options.json:
        print_json(result)
    elif comm.rank == 0:
        print_columns(COLUMNS, [result])
    return 0


def parse() -> argparse.Namespace:
    cli = CommandParser(
        prog="python -m benchmarks.bench_memory", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("--model", choices=SHAPES, default="sage", help="3 layers (default: sage)")
    text = "rmat:SCALE:FACTOR, grid3d:N or debian (default: rmat:16:32)"
    cli.add_argument("--graph", default="rmat:16:32", help=text)
    cli.add_argument("--exchange", choices=EXCHANGES, default="aware", help="(default: aware)")
    cli.add_argument("--replication", type=int, default=1, help="copies of every block row")
    cli.add_argument("--schedule", choices=SCHEDULES, default="resident")
    cli.add_argument("--prefetch", type=int, default=0, help="stages of the sequential schedule")
    cli.add_argument("--epochs", type=int, default=5, help="timed epochs (default: 5)")
    cli.add_argument("--compare", action="store_true", help="time a resident schedule too")
    cli.add_argument("--json", action="store_true", help="print one JSON object")
    return cli.parse_args()


def by_relation(pattern: DistCSR, num_relations: int) -> DistCSR:
    """Return the edges distributed over relations, as a function of their two ends."""
    row_map, rows = pattern.row_map, pattern.diagonal.entry_rows()
    columns = pattern.diagonal.indices.astype(np.int64) + row_map.start
    rows = np.concatenate([rows, pattern.remote.entry_rows()])
    columns = np.concatenate([columns, pattern.ghosts[pattern.remote.indices]])
    # Rows of the stacked matrix are numbered relation by relation.
    tall = (rows + row_map.start + columns) % num_relations * row_map.num_local + rows
    order = np.lexsort((columns, tall))
    counts = np.bincount(tall, minlength=num_relations * row_map.num_local)
    indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return DistCSR.from_rows(row_map, indptr, columns[order], num_relations=num_relations)


def measure(
    grid: ProcessGrid, pattern: DistCSR, config: ExchangeConfig, options: argparse.Namespace
) -> dict[str, Any]:
    """Return memory and seconds of one schedule; collective."""
    shape = ModelShape(
        num_features=NUM_FEATURES,
        num_classes=NUM_CLASSES,
        num_layers=3,
        dropout=0.5,
        **SHAPES[options.model],
    )
    training = Training(grid, pattern, config, options.model)
    with reused_memory():
        memory = peak_memory(grid, training, shape)
    widest = 4 * max(shape.hidden, NUM_FEATURES, NUM_CLASSES * shape.heads)
    block_bytes = pattern.row_map.num_rows * widest // grid.num_blocks
    result: dict[str, Any] = {**memory, "ghost_bytes_bound": block_bytes * (1 + options.prefetch)}
    rivals = [training]
    if options.compare:
        resident = replace(config, schedule="resident", prefetch=0)
        rivals.append(Training(grid, pattern, resident, options.model))
        rivals[1].begin(shape)
    with reused_memory():
        rounds = [[each.epoch() for each in rivals] for _ in range(1 + options.epochs)]
    # The first round also builds transposes and buffers.
    for column, key in enumerate(("epoch_s", "epoch_cpu_s")):
        ours, *theirs = (
            statistics.median(epoch[column] for epoch in each)
            for each in zip(*rounds[1:], strict=True)
        )
        result[key] = ours
        for other in theirs:
            result |= {f"resident_{key}": other, f"{key[:-2]}_ratio": ours / other}
    return result


def peak_memory(grid: ProcessGrid, training: "Training", shape: ModelShape) -> dict[str, int]:
    """Return the peak memory of two epochs above that of an idle rank; collective."""
    libc = ctypes.CDLL(None)
    training.begin(replace(shape, hidden=IDLE_WIDTH * shape.heads, num_classes=IDLE_WIDTH))
    training.epoch()
    training.begin(shape)
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    idle = status_bytes("VmRSS")
    grid.buffers.ghosts.peak = 0
    for _ in range(MEMORY_EPOCHS):
        training.epoch()
    sizes = grid.world.allgather((status_bytes("VmHWM"), idle, grid.buffers.ghosts.peak))
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
    peak, idle, _ = max(sizes, key=lambda each: each[0] - each[1])
    return {
        "peak_rss_bytes": peak,
        "idle_rss_bytes": idle,
        "growth_rss_bytes": peak - idle,
        "ghost_bytes_max": max(each[2] for each in sizes),
    }


class Training:
    """Full-graph training steps of one model on one schedule; collective."""

    def __init__(
        self, grid: ProcessGrid, pattern: DistCSR, config: ExchangeConfig, name: str
    ) -> None:
        rng = np.random.default_rng(grid.block)
        num_nodes = pattern.row_map.num_local
        ids = np.arange(num_nodes, dtype=np.int64) + pattern.row_map.start
        products = Adjacency(
            make_operators(grid, config, TraceRecorder.off()),
            pattern,
            on_graph(MODELS[name].aggregations, directed=False),
            np.float32,
            ids,
        ).products()
        self._grid, self._name = grid, name
        self._view = products.view
        self._features = torch.from_numpy(rng.random((num_nodes, NUM_FEATURES), np.float32))
        self._labels = torch.from_numpy(rng.integers(0, NUM_CLASSES, num_nodes))

    def begin(self, shape: ModelShape) -> None:
        """Start with a new model."""
        self._number = 0
        self._model = make_model(self._name, shape, directed=False, seed=1, dtype=torch.float32)
        self._optimiser = torch.optim.Adam(self._model.parameters())

    def epoch(self) -> tuple[float, float]:
        """Train one epoch; return the slowest rank's seconds, and all ranks' processor seconds."""
        self._grid.world.Barrier()
        began = time.perf_counter(), time.process_time()
        self._number += 1
        self._optimiser.zero_grad(set_to_none=True)
        logits = self._model(self._view, self._features, DropoutKey(1, self._number))
        labels = self._labels % logits.shape[1]
        cross_entropy(logits, labels, reduction="sum").backward()
        sum_gradients(self._grid, self._model.parameters())
        self._optimiser.step()
        spent = time.perf_counter() - began[0], time.process_time() - began[1]
        slowest, processor = zip(*self._grid.world.allgather(spent), strict=True)
        return max(slowest), sum(processor)


def status_bytes(key: str) -> int:
    """Return a size of this process from /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


if __name__ == "__main__":
    run_mpi_command("bench_memory", main)
