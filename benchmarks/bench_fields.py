"""The cost of samples larger than memory, and of losses over many steps.

    python -m benchmarks.bench_fields reading [--side 50] [--columns 16] [--steps 600,60]
    python -m benchmarks.bench_fields unrolled [--shape 20,20,20] [--unroll 1,8]

Each run is a process of its own, on one rank and one thread. `reading` writes series of random
fields on a grid and trains on them, while this process repeatedly drops the pages of the store from
the page cache, so that every sample comes from disk. It prints the share of an epoch spent waiting
for samples and the peak memory of the process, by the number of steps. `unrolled` trains on
`hpcgnn generate heat`, and prints the peak memory by the number of steps in a loss.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns import Columns, count, megabytes, print_columns, ratio, text
from benchmarks.report import circumstances
from hpcgnn.gallery import grid_graph
from hpcgnn.storage import FieldInfo, SortedRows, StoreHeader, StoreWriter

DROP_S = 0.5
"""Seconds between two drops of the store from the page cache."""
COMMON = (
    "train.task=fields",
    "model.dropout=0",
    "run.threads=1",
    "run.save_predictions=false",
    "fields.horizons=[]",
    "trace.enabled=false",
)
MODELS = {
    "gcn": ("model.name=gcn", "model.num_layers=1", "model.hidden=16"),
    "sage": ("model.name=sage", "model.num_layers=3", "model.hidden=64"),
    "meshgraphnet": (
        "model.name=meshgraphnet",
        "model.num_layers=4",
        "model.hidden=32",
        "graph.positions=relative",
    ),
}
COLUMNS: Columns = {
    "model": ("model", text),
    "steps": ("steps", count),
    "unrolled": ("unrolled", count),
    "store MB": ("store_bytes", megabytes),
    "peak MB": ("peak_rss_bytes", megabytes),
    "store / peak": ("times_memory", ratio),
    "epoch s": ("epoch_s", ratio),
    "waiting": ("sample_wait_share", ratio),
}


def main() -> None:
    """Print a line for each run."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("what", choices=("reading", "unrolled"))
    cli.add_argument("--model", default="meshgraphnet", choices=MODELS)
    cli.add_argument("--side", type=int, default=50, help="nodes of the grid along an axis")
    cli.add_argument("--columns", type=int, default=16, help="of the field")
    cli.add_argument("--steps", default="600,60", help="of the series")
    cli.add_argument("--shape", default="20,20,20", help="shape of the heat box")
    cli.add_argument("--unroll", default="1,8", help="steps of a loss")
    cli.add_argument("--epochs", type=int, default=2, help="of each run")
    cli.add_argument("--json", action="store_true", help="print one JSON object per run")
    options = cli.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in (reading if options.what == "reading" else unrolled)(options, Path(folder)):
            rows.append({"model": options.model, **row})
            if options.json:
                print(json.dumps(rows[-1] | circumstances()), flush=True)
    if not options.json:
        print_columns(COLUMNS, rows)


def reading(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the results on series of different lengths."""
    found = []
    for steps in map(int, options.steps.split(",")):
        store = folder / f"{steps}.h5"
        write_grid(store, options.side, options.columns, steps)
        words = ["fields.targets=u", "fields.evaluated=1", f"train.epochs={options.epochs}"]
        row = trained(store, folder / f"run{steps}", [*words, *MODELS[options.model]], drops=True)
        found.append({"steps": steps, "unrolled": 1, **row})
        store.unlink()
    return found


def unrolled(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the results for different numbers of steps in a loss."""
    store, found = folder / "heat.h5", []
    generate = [sys.executable, "-m", "hpcgnn.generate", "heat", "--shape", options.shape]
    subprocess.run([*generate, "--steps", "20", "-o", str(store)], check=True)
    for steps in map(int, options.unroll.split(",")):
        words = ["fields.targets=T", f"fields.unroll={steps}", f"train.epochs={options.epochs}"]
        # Half as many steps are enough for the longest loss.
        words += ["fields.valid=0.25", "fields.test=0.25", "fields.evaluated=1"]
        row = trained(store, folder / f"run{steps}", [*words, *MODELS[options.model]], drops=False)
        found.append({"steps": 20, "unrolled": steps, **row})
    return found


def write_grid(path: Path, side: int, columns: int, steps: int) -> None:
    """Write a grid with a field of random numbers."""
    graph, rng = grid_graph((side, side, side)), np.random.default_rng(1)
    matrix = graph.to_scipy().tocsr()
    matrix.sort_indices()
    header = StoreHeader(name="grid", num_nodes=graph.num_nodes, undirected=True)
    info = FieldInfo("u", columns, np.dtype(np.float32))
    with StoreWriter(path, header) as writer:
        writer.append_rows(SortedRows(matrix.indptr, matrix.indices))
        places = np.unravel_index(np.arange(graph.num_nodes), (side, side, side))
        writer.append_positions(np.stack(places, axis=1).astype(np.float64), [0.0] * 3)
        writer.begin_fields(np.arange(steps, dtype=np.float64), [0, steps])
        for step in range(steps):
            rows = rng.standard_normal((graph.num_nodes, columns), np.float32)
            writer.append_field("u", step, rows, info)


def trained(store: Path, run: Path, words: list[str], *, drops: bool) -> dict[str, Any]:
    """Train and return the run's summary; with `drops` the store never stays in the page cache."""
    command = [sys.executable, "-m", "hpcgnn.train", f"graph.store={store}", f"run.dir={run}"]
    with (run.parent / "out").open("w+") as out:
        process = subprocess.Popen([*command, *COMMON, *words], stdout=out, stderr=out)
        descriptor = os.open(store, os.O_RDONLY)
        os.fsync(descriptor)
        while True:
            if drops:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                process.wait(DROP_S)
            except subprocess.TimeoutExpired:
                continue
            break
        os.close(descriptor)
        if process.returncode:
            out.seek(0)
            raise RuntimeError(out.read()[-2000:])
    summary = json.loads((run / "summary.json").read_text())
    (rank,) = summary["ranks_detail"]
    size, peak = store.stat().st_size, rank["peak_rss_bytes"]
    return {
        "store_bytes": size,
        "peak_rss_bytes": peak,
        "times_memory": size / peak,
        "epoch_s": summary["epoch_s"]["median"],
        "sample_wait_share": summary["sample_wait_share"],
    }


if __name__ == "__main__":
    main()
