"""Local SpMM (float32), compared with torch CSR, SciPy, DGL, torch-geometric and MKL if installed.

``python -m benchmarks.bench_spmm --json`` prints one JSON object per case: graph, width, threads,
form, ours_s, peers {name: s}, gather_limit_s, spread {name: quartile distance / median}, and the
machine. All methods take turns in one process; seconds are medians.

The gather limit is a native loop that reads the same rows of x through the same index stream on the
same threads and adds them into registers: no values, no row ends, no result. It runs with two ways
to tile the columns, and the faster one counts. In weighted products every peer multiplies by a
value per non-zero; in unweighted products DGL uses its faster kernel, while torch and SciPy, which
have no unweighted form, multiply by ones. Ours is in the form of a matrix that training keeps, as
MKL's is in one for many calls.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.gather_limit import LANES, GatherLimit, gather_loops
from benchmarks.harness import interleave, surroundings
from benchmarks.spmm_graphs import Matrix, aligned, load_matrix
from benchmarks.spmm_peers import PEERS, Peer, Problem, installed_peers
from hpcgnn import kernels
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, print_table, report
from hpcgnn.errors import InputError
from hpcgnn.sparse.by_length import NARROW, by_length, pays_by_length
from hpcgnn.typing import FloatArray

DEFAULT_GRAPHS = "rmat:17:24,debian,grid3d:46"
FORMS = ("weighted", "unweighted")
LIBRARIES = ("numpy", "scipy", "torch", "dgl", "torch-geometric", "mkl")
TOLERANCE = 1e-4


def main() -> None:
    options = parse_arguments()
    peers = installed_peers(options.peers)
    limit = GatherLimit()
    where = surroundings(*LIBRARIES)
    found: list[dict[str, Any]] = []
    for name in options.graphs:
        matrix = load_matrix(name)
        report(f"{name}: {matrix.num_nodes} nodes, {matrix.indices.size} non-zeros")
        cases = product(options.widths, options.threads, options.forms)
        for case in run_cases(matrix, cases, peers, limit, options):
            found.append(case)
            if options.json:
                print_json(case | where)
    if not options.json:
        show(found)


def parse_arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_spmm", description="Time local sparse-dense products."
    )
    add = cli.add_argument
    add(
        "--graphs",
        type=words,
        default=words(DEFAULT_GRAPHS),
        metavar="NAME,...",
        help=f"rmat:SCALE:FACTOR, grid3d:N, debian or STORE.h5 (default: {DEFAULT_GRAPHS})",
    )
    add(
        "--widths",
        type=numbers,
        default=[16, 64, 128, 256],
        metavar="N,...",
        help=f"columns, multiples of {LANES} (default: 16,64,128,256)",
    )
    add("--threads", type=numbers, default=[1, 2], metavar="N,...", help="(default: 1,2)")
    add(
        "--forms",
        type=words,
        default=list(FORMS),
        metavar="FORM,...",
        help="weighted, unweighted (default: both)",
    )
    add(
        "--peers",
        type=words,
        default=list(PEERS),
        metavar="NAME,...",
        help=f"of {','.join(PEERS)}, if installed (default: all)",
    )
    add("--repeat", type=int, default=7, help="least number of counted rounds (default: 7)")
    add("--seconds", type=float, default=1.0, help="least seconds per case (default: 1)")
    add("--json", action="store_true", help="one JSON object per case, no table")
    options = cli.parse_args()
    if any(width % LANES or width <= 0 for width in options.widths):
        raise InputError(f"--widths {options.widths}: give multiples of {LANES}")
    if unknown := set(options.forms) - set(FORMS):
        raise InputError(f"--forms {', '.join(sorted(unknown))}: give {' or '.join(FORMS)}")
    if unknown := set(options.peers) - set(PEERS):
        raise InputError(f"--peers {', '.join(sorted(unknown))}: give some of {', '.join(PEERS)}")
    return options


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def run_cases(
    matrix: Matrix,
    cases: Iterable[tuple[int, int, str]],
    peers: dict[str, Peer],
    limit: GatherLimit,
    options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    for width, threads, form in cases:
        x, out = aligned(matrix.num_nodes, width), aligned(matrix.num_nodes, width)
        x[:] = np.random.default_rng(width).random(x.shape, dtype=np.float32)
        values = matrix.values if form == "weighted" else None
        problem = Problem(matrix, values, x, threads)
        kept = kernels.SparseMatrix(matrix.indptr, matrix.indices, values)
        if width <= NARROW and pays_by_length(matrix.indptr):
            kept = by_length(kept)
        functions: dict[str, Callable[[], object]] = {
            "ours": partial(kernels.spmm, kept, x, out, threads=threads)
        }
        functions["ours"]()
        for name, peer in peers.items():
            functions[name] = peer(problem)
            check(name, functions[name](), out)
        loops = gather_loops(limit, matrix, x, threads)
        timings = interleave(
            functions | loops, warmup=1, repeat=options.repeat, least_s=options.seconds
        )
        yield {
            "graph": matrix.name,
            "width": width,
            "threads": threads,
            "form": form,
            "ours_s": timings["ours"].median_s,
            "peers": {name: timings[name].median_s for name in peers},
            "gather_limit_s": min(timings[name].median_s for name in loops),
            "spread": {name: round(timing.spread, 3) for name, timing in timings.items()},
        }


def check(name: str, found: Any, expected: FloatArray) -> None:
    error = float(np.abs(found - expected).max()) / max(1.0, float(np.abs(expected).max()))
    if not error < TOLERANCE:
        raise RuntimeError(f"{name} and the kernel differ by {error:.2g}")


def show(cases: list[dict[str, Any]]) -> None:
    """Print milliseconds of every case, and geometric means of the ratios by form."""
    names = sorted({name for case in cases for name in case["peers"]})
    title = "SpMM, milliseconds; limit: the row-gather loop"
    columns = ["graph", "width", "threads", "form", "ours", *names, "limit"]
    rows = [
        [
            *(case[key] for key in ("graph", "width", "threads", "form")),
            *(
                milliseconds(seconds)
                for seconds in (
                    case["ours_s"],
                    *(case["peers"].get(name, math.nan) for name in names),
                    case["gather_limit_s"],
                )
            ),
        ]
        for case in cases
    ]
    print_table(title, columns, rows)
    for form in FORMS:
        if chosen := [case for case in cases if case["form"] == form]:
            print_means(form, chosen)


def print_means(form: str, cases: list[dict[str, Any]]) -> None:
    ratios = {
        name: [case["peers"][name] / case["ours_s"] for case in cases] for name in cases[0]["peers"]
    }
    limit = geometric_mean(case["gather_limit_s"] / case["ours_s"] for case in cases)
    means = ", ".join(f"{geometric_mean(each):.2f} x {name}" for name, each in ratios.items())
    print(f"geometric mean, {form}: {means}; {limit:.2f} of the gather limit")


def milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1000 * seconds:.2f}"


if __name__ == "__main__":
    run_command("bench_spmm", main)
