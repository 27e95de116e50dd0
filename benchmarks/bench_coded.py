"""Compressed columns of matrices: bytes per entry, and product times relative to plain columns.

``python -m benchmarks.bench_coded --json`` prints one JSON object per case: graph, entries, bytes
per entry (plain columns take 4), nanoseconds to code and to decode an entry, and the machine; for
each width and number of threads also seconds of a product with plain columns and with coded ones
(all values one), and their ratio. Both take turns and must give equal bits. Times are processor
times of all threads, the minimum of all rounds: other work on the machine matters little.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.bench_spmm import numbers, words
from benchmarks.harness import surroundings
from benchmarks.spmm_graphs import Matrix, aligned, load_matrix
from hpcgnn import kernels
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, print_table

GRAPHS = "rmat:18:12,grid3d:64,hyperbolic:200000,debian"


def main() -> None:
    options = parse_arguments()
    where, found = surroundings("numpy"), []
    for name in options.graphs:
        for case in cases(load_matrix(name), options):
            found.append(case)
            if options.json:
                print_json(case | where)
    if not options.json:
        keys = list(found[0])
        print_table("Coded columns", keys, [[case[key] for key in keys] for case in found])


def parse_arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_coded", description="Size and time coded columns."
    )
    text = "rmat:SCALE:FACTOR, grid3d:N, hyperbolic:NODES, debian or STORE.h5"
    cli.add_argument("--graphs", type=words, default=words(GRAPHS), help=f"{text} ({GRAPHS})")
    cli.add_argument("--widths", type=numbers, default=[16, 64, 256], help="(16,64,256)")
    cli.add_argument("--threads", type=numbers, default=[1, 2], help="(1,2)")
    cli.add_argument("--repeat", type=int, default=15, help="rounds (15)")
    cli.add_argument("--json", action="store_true", help="one JSON object per case, no table")
    return cli.parse_args()


def cases(matrix: Matrix, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    pattern = matrix.indptr, matrix.indices
    coded = kernels.code_columns(*pattern)
    functions = {
        "code": partial(kernels.code_columns, *pattern, threads=1),
        "decode": partial(kernels.decode_columns, coded, matrix.indptr),
    }
    least_s = in_turn(functions, options.repeat)
    entries = len(coded)
    sizes = {"graph": matrix.name, "entries": entries, "bytes": round(coded.nbytes / entries, 3)}
    for name, seconds in least_s.items():
        sizes[f"{name}_ns"] = round(seconds / entries * 1e9, 2)
    forms = {
        "plain": kernels.SparseMatrix(*pattern),
        "coded": kernels.SparseMatrix(matrix.indptr, None, coded=coded),
    }
    for width, threads in product(options.widths, options.threads):
        x = aligned(matrix.num_nodes, width)
        x[:] = np.random.default_rng(width).random(x.shape, dtype=np.float32)
        results = {name: aligned(matrix.num_nodes, width) for name in forms}
        products = {
            name: partial(kernels.spmm, form, x, results[name], threads=threads)
            for name, form in forms.items()
        }
        least_s = in_turn(products, options.repeat)
        assert np.array_equal(*results.values())
        seconds = {f"{name}_s": least_s[name] for name in forms}
        ratio = round(least_s["coded"] / least_s["plain"], 3)
        yield sizes | {"width": width, "threads": threads} | seconds | {"ratio": ratio}


def in_turn(functions: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the least processor seconds of each function, called in turn."""
    least_s = dict.fromkeys(functions, float("inf"))
    for _ in range(1 + repeat):
        for name, function in functions.items():
            start = time.process_time()
            function()
            least_s[name] = min(least_s[name], time.process_time() - start)
    return least_s


if __name__ == "__main__":
    run_command("bench_coded", main)
