"""Dense float32 products of many rows with a small matrix: this package's kernels beside torch.

``python -m benchmarks.bench_dense --json`` prints one JSON object per shape: processor seconds of
``X W`` and of ``Xᵀ G``, X (rows, inner) and W (inner, columns), by the kernels and by the library
that torch uses here (`hpcgnn.autograd.numerics.blas`), in turn in one process, and `ideal_s`, the
seconds of as many operations in a product of 1,024 by 1,024 by 1,024. `--isa avx2` runs the kernels
with fewer instructions; start it with ONEDNN_MAX_CPU_ISA=AVX2 for the library. Needs no MPI.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.harness import Timing, interleave, surroundings
from hpcgnn import kernels
from hpcgnn.autograd.numerics.blas import multiply_by_fastest
from hpcgnn.commands.launch import run_command
from hpcgnn.kernels.arguments import Run

SHAPES = "100:16,16:40,40:16,300:16,64:64,100:64,256:64,128:128,256:40,40:256,256:256"
LARGE = 1024


def measure(rows: int, inner: int, columns: int, run: Run, rounds: int) -> dict[str, Timing]:
    """Time the products of one shape."""
    x, w, g = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)
    wider, narrower = (x, g) if inner >= columns else (g, x)
    out, sums = torch.empty_like(g), torch.zeros(wider.shape[1], narrower.shape[1])
    product = [t.numpy() for t in (x, w, out)]
    contraction = [t.numpy() for t in (wider, narrower, sums)]
    ways = {
        "ours": lambda: kernels.dense_product(*product, **run),
        "library": lambda: torch.matmul(x, w, out=out),
        "ours_gradient": lambda: kernels.dense_contraction(*contraction, **run),
        # Libraries are faster with the narrower matrix on the left.
        "library_gradient": lambda: narrower.t() @ wider,
    }
    return interleave(ways, warmup=1, repeat=rounds)


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results for each shape."""
    library, run = multiply_by_fastest(), Run(threads=options.threads, isa=options.isa)
    torch.set_num_threads(options.threads)
    square = torch.randn(LARGE, LARGE)
    large = interleave({"large": lambda: square @ square}, warmup=1, repeat=options.rounds)
    s_per_operation = large["large"].median_cpu_s / (2 * LARGE**3)
    for shape in options.shapes.split(","):
        inner, columns = map(int, shape.split(":"))
        timings = measure(options.rows, inner, columns, run, options.rounds)
        yield {
            "rows": options.rows,
            "inner": inner,
            "columns": columns,
            "library": library,
            "threads": options.threads,
            "isa": options.isa,
            "ideal_s": 2 * options.rows * inner * columns * s_per_operation,
            "cpu_s": {name: timing.median_cpu_s for name, timing in timings.items()},
            "s": {name: timing.median_s for name, timing in timings.items()},
        }


def main() -> None:
    cli = argparse.ArgumentParser(prog="python -m benchmarks.bench_dense")
    cli.add_argument("--rows", type=int, default=63436)
    cli.add_argument("--shapes", default=SHAPES, metavar="INNER:COLUMNS,...")
    cli.add_argument("--threads", type=int, default=1)
    cli.add_argument("--isa", default="auto")
    cli.add_argument("--rounds", type=int, default=9)
    cli.add_argument("--json", action="store_true", help="one JSON object per shape, no table")
    options = cli.parse_args()
    where = surroundings("torch", "numpy")
    for case in cases(options):
        if options.json:
            print(json.dumps(case | where), flush=True)
            continue
        ms = {name: f"{value * 1e3:.2f}" for name, value in case["cpu_s"].items()}
        print(f"{case['inner']:5} {case['columns']:5}  ideal {case['ideal_s'] * 1e3:.2f} ms  {ms}")


if __name__ == "__main__":
    run_command("bench_dense", main)
