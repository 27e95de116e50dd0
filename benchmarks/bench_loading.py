"""Memory and processor seconds of reading a store's edges, by step.

    python -m benchmarks.bench_loading STORE [--undirected] [--json]

One process reads the rows (`read`), splits them into own and ghost columns (`split`), and scales
them as a GCN does (`scale`). `peak` is the high-water mark of the resident set (VmHWM, reset before
each step) above the resident set before the first step, `kept` what stays after a step; both in
bytes per non-zero. Glibc is set to return freed arrays at once, so the mark measures arrays in use.
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np

from benchmarks.report import circumstances
from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.console import print_json, print_table
from hpcgnn.sparse import DistCSR, read_adjacency, scale
from hpcgnn.storage import GraphStore

# Parameters of mallopt in glibc's malloc.h.
M_MMAP_THRESHOLD, LARGE = -3, 2**16


def main() -> None:
    """Measure and print."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("store", type=Path)
    cli.add_argument("--undirected", action="store_true", help="with the reverse of every edge")
    cli.add_argument("--json", action="store_true")
    options = cli.parse_args()
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
    with ProcessGrid(MPI.COMM_SELF) as grid, GraphStore.open(options.store) as store:
        found = measure(grid, store, undirected=options.undirected)
    if options.json:
        print_json(found)
        return
    rows = [
        [step, *(f"{value:.2f}" for value in each.values())]
        for step, each in found["steps"].items()
    ]
    print_table(
        f"{options.store}: {found['nnz']:,} non-zeros",
        ("step", "peak B/nnz", "kept B/nnz", "CPU s"),
        rows,
    )


def measure(grid: ProcessGrid, store: GraphStore, *, undirected: bool) -> dict[str, Any]:
    """Return the steps, and the machine."""
    row_map = RowMap(np.array([0, store.num_nodes], np.int64), 0)
    held: dict[str, Any] = {}

    def read() -> None:
        held["rows"] = read_adjacency(grid, store, row_map, undirected=undirected, self_loops=True)

    def split() -> None:
        rows = held["rows"]
        held["matrix"] = DistCSR.from_rows(row_map, rows.indptr, rows.columns, rows.weights)
        held.pop("rows")

    def scaled() -> None:
        matrix = held["matrix"]
        plan = CommPlan.from_ghosts(grid, row_map, matrix.ghosts)
        held["matrix"] = scale(matrix, (0.5, 0.5), np.float32, plan)

    # Warm up: libraries load code at first use, which must not count.
    store.read_adjacency(0, min(store.num_nodes, 1000), store.relations[0])
    before = status("VmRSS")
    steps = {
        name: step(action, before)
        for name, action in (("read", read), ("split", split), ("scale", scaled))
    }
    nnz = held["matrix"].nnz
    for each in steps.values():
        each["peak"] /= nnz
        each["kept"] /= nnz
    return {"nnz": nnz, "undirected": undirected, "steps": steps, **circumstances()}


def step(action: Callable[[], None], before: int) -> dict[str, float]:
    """Run a step; return bytes above `before` at its peak and after it, and processor seconds."""
    Path("/proc/self/clear_refs").write_text("5")
    start = time.process_time()
    action()
    seconds = time.process_time() - start
    peak = status("VmHWM") - before
    gc.collect()
    return {"peak": peak, "kept": status("VmRSS") - before, "cpu_s": seconds}


def status(key: str) -> int:
    """Return a size of this process from /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


if __name__ == "__main__":
    main()
