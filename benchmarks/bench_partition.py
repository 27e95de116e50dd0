"""Communication volume of partitioners: ours compared with METIS, KaMinPar and Mt-KaHyPar.

``python -m benchmarks.bench_partition --json`` prints one JSON object per finished case: graph,
parts, method, seed, total_rows, max_send_rows, max_recv_rows, max_pair_rows, imbalance,
send_imbalance, joint_rows, joint_busiest, seconds (CPU, one thread), peak_bytes,
bytes_per_nonzero, recv_bound. The peers' methods need their wheels (``pip install kaminpar
mtkahypar``). A case that fails has ``failure`` instead of the figures, and its method is not tried
with more parts. Without ``--json`` it prints a table of ratios to METIS.

A method with a prefix (``4*volume:max_send``; ``--ranks 4,8`` for all of ours) runs on that many
ranks, started by ``jobs/env.sh``; seconds are CPU seconds of all ranks, wall_s is elapsed time. So
do ``4*ptscotch`` and ``4*zoltan``; `partition_peers` says how to find their libraries.

recv_bound is a lower bound of the busiest receiver's rows in any partition: the maximum over nodes
of the node's neighbours less those that fit into its part.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.hyperbolic import hyperbolic
from benchmarks.partition_case import IMBALANCE
from benchmarks.partition_graphs import delaunay, lfr
from hpcgnn.console import print_json, print_table, report
from hpcgnn.gallery import GalleryGraph, dcsbm, debian_packages, grid_graph, rmat
from hpcgnn.partition import CSRGraph

SEED = 20261121


def blocks(num_nodes: int, num_blocks: int) -> GalleryGraph:
    labels = np.random.default_rng(SEED).integers(0, num_blocks, num_nodes, np.int32)
    return dcsbm(labels, SEED, mean_degree=20.0, mixing=0.3)


GRAPHS: dict[str, Callable[[], GalleryGraph]] = {
    "delaunay": lambda: delaunay(1 << 16, SEED),
    "grid3d": lambda: grid_graph((40, 40, 40)),
    "hyperbolic": lambda: hyperbolic(1 << 16, SEED, 16.0),
    "debian": debian_packages,
    "dcsbm": lambda: blocks(40_000, 40),
    "lfr": lambda: lfr(50_000, SEED),
    "rmat-16": lambda: rmat(16, 16, SEED),
    "rmat-17": lambda: rmat(17, 16, SEED),
    "rmat-18": lambda: rmat(18, 16, SEED),
}
METHODS = (
    "metis",
    "metis-volume",
    "kaminpar",
    "mtkahypar",
    "volume-fast:max_send",
    "volume:max_send",
    "volume:max_both",
    "volume:joint",
)
DEFAULT_GRAPHS = tuple(name for name in GRAPHS if name != "rmat-18")


def main() -> None:
    cli = argparse.ArgumentParser(prog="python -m benchmarks.bench_partition")
    cli.add_argument("--graphs", default=",".join(DEFAULT_GRAPHS), help="from " + ", ".join(GRAPHS))
    cli.add_argument("--parts", default="16,64,256", help="numbers of parts (default: 16,64,256)")
    cli.add_argument("--methods", default=",".join(METHODS), help="from " + ", ".join(METHODS))
    cli.add_argument("--limit", type=int, default=120, help="CPU seconds per case (default: 120)")
    cli.add_argument("--seeds", type=int, default=5, help="METIS partitions per case (default: 5)")
    cli.add_argument("--no-joint", action="store_true", help="do not count joint_* (slow)")
    cli.add_argument("--json", action="store_true", help="one JSON object per case, no table")
    cli.add_argument(
        "--ranks", metavar="P,...", help="also run our methods on these numbers of ranks"
    )
    cli.add_argument("--at-once", type=int, default=1, help="graphs at the same time (default: 1)")
    options = cli.parse_args()
    for ranks in filter(None, (options.ranks or "").split(",")):
        ours = [each for each in options.methods.split(",") if each.startswith("volume")]
        options.methods = ",".join([options.methods, *(f"{ranks}*{each}" for each in ours)])
    with (
        tempfile.TemporaryDirectory() as directory,
        ThreadPoolExecutor(options.at_once) as graphs,
    ):
        runs = graphs.map(
            lambda name: cases_of(name, Path(directory), options), options.graphs.split(",")
        )
        found = [case for cases in runs for case in cases]
    if not options.json:
        show([case for case in found if "failure" not in case])


def cases_of(name: str, directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the results of all methods on a graph; with `--json` print each when it is ready."""
    graph = pattern(GRAPHS[name]())
    file = directory / f"{name}.npz"
    np.savez(file, indptr=graph.indptr, indices=graph.indices)
    methods, found = options.methods.split(","), []
    for parts in map(int, options.parts.split(",")):
        bound = {"graph": name, "parts": parts, "recv_bound": recv_bound(graph, parts)}
        for method in tuple(methods):
            for case in cases(file, parts, method, options):
                if "failure" in case:
                    methods.remove(method)
                else:
                    ratio = case["peak_bytes"] / graph.indices.size
                    case["bytes_per_nonzero"] = round(ratio, 1)
                found.append(bound | {"method": method} | case)
                if options.json:
                    print_json(found[-1])
    return found


def pattern(graph: GalleryGraph) -> CSRGraph:
    """Return the symmetric pattern of all relations without loops, over which GNNs aggregate."""
    matrix = graph.to_scipy()
    both = sparse.csr_matrix(matrix + matrix.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return CSRGraph.from_scipy(both)


def recv_bound(graph: CSRGraph, parts: int) -> int:
    """Return a lower bound of the rows that the busiest part receives in any partition."""
    weights = graph.row_weights()
    room = (1 + IMBALANCE) * np.maximum(graph.indices.size / parts, weights) - weights
    bound = 0
    for node in np.argsort(-weights)[: 4 * parts]:
        near = np.sort(weights[graph.indices[graph.indptr[node] : graph.indptr[node + 1]]])
        fits = int(np.searchsorted(np.cumsum(near), room[node], side="right"))
        bound = max(bound, near.size - fits)
    return bound


def cases(file: Path, parts: int, method: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the results of a method: one per seed for METIS, one for the others."""
    found = []
    for seed in range(1, 1 + (options.seeds if method == "metis" else 1)):
        arguments: tuple[object, ...] = (file, parts, method, seed)
        ranks, several, name = method.partition("*")
        if several:
            launch = '. jobs/env.sh && mpi_exec "$@"'
            command = ["bash", "-c", launch, "bash", ranks, sys.executable]
            command += ["-m", "benchmarks.partition_ranks"]
            arguments = (file, parts, name, seed)
        else:
            command = [sys.executable, "-m", "benchmarks.partition_case"]
            arguments += (options.limit, not options.no_joint)
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=10 * options.limit,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        if done.returncode == 0:
            # MPI libraries may print more lines after it.
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found.append({"seed": seed} | json.loads(lines[-1]))
            continue
        over = done.returncode in {-signal.SIGXCPU, -signal.SIGKILL}
        failure = f"over {options.limit} CPU seconds" if over else done.stderr.strip()[-200:]
        report(f"{file.stem}, {parts} parts, {method}: {failure}")
        return [*found, {"seed": seed, "failure": failure}]
    return found


def show(found: list[dict[str, Any]]) -> None:
    """Print, for each method, geometric means of its ratios to the median of METIS's seeds."""
    keys = ("max_send_rows", "max_recv_rows", "busiest", "total_rows", "joint_busiest", "seconds")
    for case in found:
        case["busiest"] = max(case["max_send_rows"], case["max_recv_rows"])
    keys = tuple(key for key in keys if all(key in case for case in found))
    base: dict[tuple[str, int], dict[str, float]] = {}
    for case in found:
        group = [
            c
            for c in found
            if (c["graph"], c["parts"], c["method"]) == (case["graph"], case["parts"], "metis")
        ]
        if group:
            middle = {key: median(c[key] for c in group) for key in keys}
            base[case["graph"], case["parts"]] = middle
    rows = []
    for method in dict.fromkeys(case["method"] for case in found):
        mine = [c for c in found if c["method"] == method and (c["graph"], c["parts"]) in base]
        ratios = [
            geometric_mean(
                max(c[k], 1e-9) / max(base[c["graph"], c["parts"]][k], 1e-9) for c in mine
            )
            for k in keys
        ]
        rows.append((method, len(mine), *(f"{ratio:.3f}" for ratio in ratios)))
    print_table("ratios to METIS (geometric means)", ("method", "cases", *keys), rows)


if __name__ == "__main__":
    main()
