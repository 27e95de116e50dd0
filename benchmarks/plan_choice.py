"""Compare the recommendation of ``hpcgnn plan`` with the fastest measured choice.

    python -m benchmarks.plan_choice [--graphs a,b] [--epochs 30] [--json]

There are four questions for each graph: which exchange on two and on four ranks, which schedule on
two, and how many copies of block rows on four. Each is planned. Then one launch trains all choices,
an epoch of each in turn, so that load affects them alike. The seconds of an epoch are those of the
slowest rank, without the time in which its thread waited for a busy core. The lower quartile
counts, and a recommendation is right within 5 % of the minimum. MPIEXEC or mpiexec starts ranks.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

import hpcgnn
from hpcgnn.console import print_json, print_table
from hpcgnn.kernels import reused_memory
from hpcgnn.plan.clock import waited_for_core
from hpcgnn.spmd import world_of_ranks

GRAPHS = MappingProxyType(
    {
        "planted-20000": ("planted", "--nodes", "20000", "--features", "64"),
        "rmat-14": ("rmat", "--scale", "14", "--undirected"),
        "grid3d-30": ("grid3d", "--shape", "30,30,30"),
        "grid3d-40": ("grid3d", "--shape", "40,40,40", "--features", "32"),
        "rmat-16": ("rmat", "--scale", "16", "--edge-factor", "12", "--features", "32"),
        "communities-50000": ("communities", "--nodes", "50000", "--features", "128"),
    }
)
ALL = ("--exchange", "oblivious,aware,push,joint")
QUESTIONS = MappingProxyType(
    {
        "exchange on 2": ("--ranks", "2", *ALL),
        "exchange on 4": ("--ranks", "4", *ALL),
        "schedule on 2": ("--ranks", "2", "--exchange", "joint", "--schedule=resident,sequential"),
        "copies on 4": ("--ranks", "4", "--exchange", "joint", "--replication", "1,2"),
    }
)
EQUAL = 0.05


def run(module: str, *words: str, ranks: int = 0) -> str:
    """Return the output of a module."""
    start = [*shlex.split(os.environ.get("MPIEXEC", "mpiexec")), "-n", str(ranks)] if ranks else []
    command = [*start, sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}: {done.stderr}")
    return done.stdout


def epoch_of(graph: hpcgnn.Graph) -> Callable[[int], None]:
    """Return a function that trains an epoch, given its number."""
    model = graph.make_model(seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def epoch(number: int) -> None:
        for loss_of in graph.steps(seed=1, epoch=number):
            optimizer.zero_grad()
            loss_of(model).backward()
            hpcgnn.sum_gradients(graph, model)
            optimizer.step()

    return epoch


def measure(store: str, choices: Sequence[dict[str, Any]], epochs: int) -> None:
    """Train choices of an exchange in turn, and print the seconds of each on rank 0."""
    comm = world_of_ranks()
    with ExitStack() as stack:
        stack.enter_context(reused_memory())
        opened = [
            stack.enter_context(hpcgnn.open_graph(comm, store, exchange=choice, run={"threads": 1}))
            for choice in choices
        ]
        trained = [epoch_of(graph) for graph in opened]
        seconds = np.zeros((epochs, len(choices)))
        for number in range(epochs):
            for place, epoch in enumerate(trained):
                comm.Barrier()
                began = time.perf_counter() - waited_for_core()
                epoch(number)
                seconds[number, place] = time.perf_counter() - waited_for_core() - began
        # The first epochs allocate buffers.
        slowest = np.max(comm.allgather(seconds[2:]), axis=0)
    if comm.rank == 0:
        print_json(np.quantile(slowest, 0.25, axis=0).tolist())


def answer(store: Path, question: Sequence[str], epochs: int) -> dict[str, Any]:
    """Return the planned and measured results of the choices of a question."""
    settings = (f"graph.store={store}", "run.threads=1")
    planned = json.loads(run("hpcgnn", "plan", *settings, *question, "--json", "-q"))
    keys = ("exchange", "schedule", "replication")
    choices = [{key: each[key] for key in keys} for each in planned]
    exchanges = [{"method": each.pop("exchange"), **each} for each in map(dict, choices)]
    words = ("--store", str(store), "--epochs", str(epochs), "--measure", json.dumps(exchanges))
    seconds = json.loads(run("benchmarks.plan_choice", *words, ranks=planned[0]["ranks"]))
    (best,) = (place for place, each in enumerate(planned) if each["best"])
    return {
        "choices": [" ".join(map(str, each.values())) for each in choices],
        "planned_s": [each["epoch_s"] for each in planned],
        "measured_s": seconds,
        "recommended": best,
        "above_least": seconds[best] / min(seconds) - 1,
        "right": seconds[best] <= (1 + EQUAL) * min(seconds),
    }


def main() -> None:
    """Plan, measure, compare and print."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.plan_choice")
    cli.add_argument("--graphs", default=",".join(GRAPHS), help="(default: %(default)s)")
    cli.add_argument("--epochs", type=int, default=30, help="epochs of each choice (default: 30)")
    cli.add_argument("--json", action="store_true")
    cli.add_argument("--store", help=argparse.SUPPRESS)
    cli.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    options = cli.parse_args()
    if options.measure:
        measure(options.store, options.measure, options.epochs)
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder, "whole.h5"), Path(folder, "parts.h5")
        for graph in options.graphs.split(","):
            run("hpcgnn", "generate", *GRAPHS[graph], "-o", str(whole), "-q")
            run("hpcgnn", "partition", str(whole), "--parts", "4", "-o", str(parts), "-q")
            for name, question in QUESTIONS.items():
                told = answer(parts, question, options.epochs)
                found.append({"graph": graph, "question": name, **told})
    if options.json:
        print_json(found)
        return
    rows = [
        (
            each["graph"],
            each["question"],
            each["choices"][each["recommended"]],
            f"{100 * each['above_least']:.1f} %",
            each["right"],
        )
        for each in found
    ]
    columns = ("graph", "question", "recommended", "above the least", "right")
    print_table(f"{sum(each['right'] for each in found)} of {len(found)} right", columns, rows)


if __name__ == "__main__":
    main()
