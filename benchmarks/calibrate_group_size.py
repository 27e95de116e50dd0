"""Refit the group-size regression for the local GPU (execution-path paper, equation 3).

``python -m benchmarks.calibrate_group_size --output RULE.json`` times aggregation with every
candidate size on R-MAT graphs of many sizes and degrees, grids and debian-packages, takes the
fastest size of each graph, and fits the four coefficients by least squares. The file holds them,
the GPU's name and every measurement; `benchmarks.bench_gpu --rule RULE.json` uses it.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_gpu import numbers, words
from benchmarks.gpu_timing import device_name, interleave_on_device
from benchmarks.group_rules import fit_rule, save_rule
from benchmarks.harness import commit
from benchmarks.spmm_graphs import Matrix, load_matrix
from hpcgnn.commands.launch import run_command
from hpcgnn.console import report
from hpcgnn.kernels import SparseMatrix, cuda
from hpcgnn.kernels.cuda.device import load_cupy
from hpcgnn.kernels.cuda.groups import PAPER_RULE

LADDER = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
DEFAULT_GRAPHS = [
    *(f"rmat:{scale}:{factor}" for scale in (11, 13, 15, 17) for factor in (2, 4, 8, 16, 32)),
    *("grid3d:24", "grid3d:48", "grid3d:80"),
    *("hyperbolic:20000", "hyperbolic:60000", "hyperbolic:200000"),
    "debian",
]


def main() -> None:
    options = parse_arguments()
    cuda.require_gpu()
    samples, records = [], []
    for name in options.graphs:
        matrix = load_matrix(name)
        nodes, edges = matrix.num_nodes, matrix.indices.size
        paper = PAPER_RULE.size(nodes, edges)
        for width in options.widths:
            seconds = time_sizes(matrix, width, options.repeat)
            best = best_size(seconds)
            report(
                f"{name}: {nodes} nodes, {edges} edges, width {width}, best size {best}, the "
                f"paper's {paper}"
            )
            # The regression does not depend on the width: like the paper's, it is fitted at one.
            if width == options.widths[0]:
                samples.append((nodes, edges, best))
            records.append({"graph": name, "width": width, "nodes": nodes, "edges": edges})
            by_size = {str(size): each for size, each in seconds.items()}
            records[-1] |= {"best": best, "seconds": by_size}
    facts = {"device": device_name(), "commit": commit(), "width": options.widths[0]}
    save_rule(fit_rule(samples), options.output, **facts, graphs=records)


def parse_arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.calibrate_group_size",
        description="Refit the regression of the group size for the local GPU.",
    )
    add = cli.add_argument
    add("--output", type=Path, required=True, metavar="RULE.json", help="where to write")
    add("--graphs", type=words, default=DEFAULT_GRAPHS, metavar="NAME,...", help="as bench_gpu")
    add(
        "--widths",
        type=numbers,
        default=[16, 64, 256],
        metavar="N,...",
        help="columns; the regression is fitted at the first (default: 16,64,256)",
    )
    add("--repeat", type=int, default=11, help="counted rounds per graph (default: 11)")
    return cli.parse_args()


def time_sizes(matrix: Matrix, width: int, repeat: int) -> dict[int, float]:
    """Return the seconds of a product by group size."""
    cupy = load_cupy()
    rng = np.random.default_rng(width)
    x = cupy.asarray(rng.random((matrix.num_nodes, width), dtype=np.float32))
    out = cupy.empty(x.shape, x.dtype)
    arrays: list[Any] = [
        cupy.asarray(each) for each in (matrix.indptr, matrix.indices, matrix.values)
    ]
    functions: dict[str, Callable[[], object]] = {}
    for size in LADDER:
        groups = cuda.DeviceGroups.upload(cuda.neighbor_groups(matrix.indptr, size))
        operand = SparseMatrix(*arrays, groups=groups)
        functions[str(size)] = partial(cuda.spmm, operand, x, out)
    found = interleave_on_device(functions, warmup=1, repeat=repeat, captured=4)
    return {size: found[str(size)] for size in LADDER}


def best_size(seconds: Mapping[int, float]) -> int:
    """Return the smallest size that is within 1 % of the fastest."""
    least = min(seconds.values())
    return min(size for size, each in seconds.items() if each <= 1.01 * least)


if __name__ == "__main__":
    run_command("calibrate_group_size", main)
