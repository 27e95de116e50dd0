"""GAT layers and whole epochs, compared with DGL and torch-geometric if they are installed.

``python -m benchmarks.bench_epoch --json`` prints one JSON object per case: model, graph, threads,
part (forward, forward+backward or epoch), ours_s, peers {name: s}, spread, cpu_s {name: s}, and
for layers peak_bytes {name: bytes}. All methods take turns in one process; seconds are medians.
Peak memory is that of forward and backward, each method in a process of its own.

A layer has 100 input columns and heads of width 100, including the projection and the gradient of
the input. An epoch is forward, loss, backward and a step of Adam, on one rank: GraphSAGE with three
layers of width 256, GCN with two of width 16. A peer is left out of a case if its tensors of edges
would exceed ``--most-gib``. Each number of threads has a process of its own.

Ours is the code of training: results reuse the memory of earlier ones, and the first layer's
product with the constant features is computed once before the first epoch (``keep_products``;
``--fresh-products`` computes it in every epoch, as the peers do). Dense float32 products use the
library that training uses (`hpcgnn.autograd.numerics.blas`), for the peers as well; ``--blas``
leaves them to torch's own choice for all.

``floor`` is reported with the peers of epochs for ``--fresh-products`` on the CPU: only the dense
products of our epoch, and the row-gather loop of bench_spmm over the rows that its sparse products
read, in multiples of 16 columns; half as many rows in bfloat16, which has half the bytes.

``--device cuda`` runs everything on a GPU, where torch-geometric also runs through torch.compile;
a call includes the GPU's work, and peak_bytes are those of device memory.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.bench_table import Products
from benchmarks.epoch_memory import peak_bytes
from benchmarks.epoch_methods import (
    METHODS,
    Method,
    Problem,
    edge_tensor_bytes,
    installed_methods,
    make_problem,
)
from benchmarks.gather_limit import GatherLimit, gather_loops
from benchmarks.gpu_timing import device_name, device_peak_bytes
from benchmarks.harness import Timing, interleave, surroundings
from benchmarks.spmm_graphs import aligned
from hpcgnn.autograd import IntegerArithmetic, computing_with
from hpcgnn.autograd.numerics.blas import multiply_by_fastest
from hpcgnn.autograd.numerics.mixed import PRECISIONS
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, print_table, report
from hpcgnn.errors import InputError
from hpcgnn.kernels import reused_memory
from hpcgnn.kernels.cuda.device import use_device

DEFAULT_MODELS = "gat:2,gat:4,gat:8,sage,gcn"
LIBRARIES = ("numpy", "torch", "dgl", "torch-geometric")
# At its peak a step of torch-geometric's GATConv holds about this many tensors of edges.
EDGE_TENSORS = 4
# Columns of each sparse product of an epoch; the features have no gradient.
GATHERED = {"sage": (96, 256, 32, 32, 256), "gcn": (16, 16, 16, 16)}


def main() -> None:
    options = parse_arguments()
    where = surroundings(*LIBRARIES)
    found: list[dict[str, Any]] = []
    for threads in options.threads:
        cases = each_case(threads, options) if limited_to(threads) else started(threads, options)
        for case in cases:
            found.append(case)
            if options.json:
                print_json(case | where)
    if not options.json:
        show(found)


def limited_to(threads: int) -> bool:
    """Return whether every OpenMP runtime of this process has this many threads."""
    return os.environ.get("OMP_NUM_THREADS") == str(threads)


def started(threads: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the cases in a process with `threads` threads in both torch's and the kernels' OpenMP."""
    words_of = ["--threads", str(threads), "--models", ",".join(options.models), "--json"]
    words_of += ["--peers", ",".join(options.peers), "--graph", options.graph]
    words_of += ["--repeat", str(options.repeat), "--most-gib", str(options.most_gib)]
    words_of += ["--no-memory"] * options.no_memory
    words_of += ["--fresh-products"] * options.fresh_products
    words_of += ["--int8"] * options.int8
    words_of += ["--blas"] * options.blas
    words_of += ["--precision", ",".join(options.precision), "--device", options.device]
    command = [sys.executable, "-m", "benchmarks.bench_epoch", *words_of]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            yield json.loads(line)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")


def each_case(threads: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for model in options.models:
        for precision in options.precision:
            yield from run_cases(model, precision, threads, options)


def parse_arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_epoch", description="Time layers and epochs on one rank."
    )
    add = cli.add_argument
    add(
        "--models",
        type=words,
        default=words(DEFAULT_MODELS),
        metavar="NAME,...",
        help=f"gat:HEADS, sage, gcn (default: {DEFAULT_MODELS})",
    )
    add("--graph", default="rmat:16:16", help="as in bench_spmm (default: rmat:16:16)")
    add("--threads", type=numbers, default=[1, 2], metavar="N,...", help="(default: 1,2)")
    add(
        "--peers",
        type=words,
        default=["dgl", "pyg"],
        metavar="NAME,...",
        help="of dgl,pyg, if installed (default: both)",
    )
    add("--repeat", type=int, default=5, help="counted rounds (default: 5)")
    add("--most-gib", type=float, default=6.0, help="for tensors of edges (default: 6)")
    add("--no-memory", action="store_true", help="leave out peak_bytes")
    add(
        "--precision",
        type=words,
        default=["float32"],
        metavar="NAME,...",
        help="float32 or bfloat16: peers with torch's autocast, or fully (default: float32)",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    add("--fresh-products", action="store_true", help="keep no product between epochs")
    add("--int8", action="store_true", help="also time ours with train.products=int8")
    add("--blas", action="store_true", help="leave dense float32 products to torch's own choice")
    add("--json", action="store_true", help="one JSON object per case, no table")
    options = cli.parse_args()
    kinds = [model.partition(":")[0] for model in options.models]
    for key, names, known in (
        ("models", kinds, ("gat", *GATHERED)),
        ("peers", options.peers, ("dgl", "pyg")),
        ("precision", options.precision, PRECISIONS),
    ):
        if unknown := set(names) - set(known):
            given = ", ".join(sorted(unknown))
            raise InputError(f"--{key} {given}: give some of {', '.join(known)}")
    return options


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def run_cases(
    model: str, precision: str, threads: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    gpu = options.device == "cuda"
    problem = make_problem(
        model,
        options.graph,
        threads,
        keep=not options.fresh_products,
        precision=precision,
        place=gpu_place() if gpu else torch.device("cpu"),
        gpu=gpu,
    )
    torch.set_num_threads(threads)
    if not options.blas:
        multiply_by_fastest()
    report(f"{model}: {problem.matrix.num_nodes} nodes, {problem.matrix.indices.size} edges")
    names = ["ours", *installed_methods(options.peers, precision, gpu=gpu)]
    # Torch has no bfloat16 product of a weighted CSR matrix; DGL has no attention with autocast.
    missing = "pyg16" if model == "gcn" else "dgl" * (problem.heads > 0)
    if precision == "bfloat16":
        names = [name for name in names if name != missing]
    if problem.heads and EDGE_TENSORS * edge_tensor_bytes(problem) > options.most_gib * 2**30:
        names = [name for name in names if not name.startswith("pyg")]
    methods = {name: METHODS[name](problem) for name in names}
    case: dict[str, Any] = {"model": model, "graph": options.graph, "threads": threads}
    case |= {"precision": precision, "device": device_name() if gpu else "cpu"}
    if not problem.heads:
        case["keep_products"] = problem.keep
    for part, functions in parts_of(problem, methods).items():
        if part == "epoch" and options.fresh_products and not gpu:
            functions["floor"] = floor_of(problem, functions["ours"])
        if part == "epoch" and options.int8:
            functions["int8"] = with_integers(epoch_of(methods["ours"]))
        if gpu:
            functions = {name: partial(waited_for, each) for name, each in functions.items()}
        with reused_memory():
            timings = interleave(functions, warmup=3 if gpu else 1, repeat=options.repeat)
        yield case | {"part": part} | seconds_of(timings)
    if options.no_memory:
        return
    if gpu:
        steps = {name: partial(both, method) for name, method in methods.items()}
        peaks = {name: device_peak_bytes(step) for name, step in steps.items()}
        yield case | {"part": "memory", "peak_bytes": peaks}
    elif problem.heads and precision == "float32":
        peaks = {name: peak_bytes(name, model, options.graph, threads) for name in names}
        yield case | {"part": "memory", "peak_bytes": peaks}


def parts_of(
    problem: Problem, methods: dict[str, Method]
) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the functions to time for a layer or a model, by part and method."""
    if not problem.heads:
        return {"epoch": {name: epoch_of(method) for name, method in methods.items()}}

    return {
        "forward": {name: method.forward for name, method in methods.items()},
        "forward+backward": {name: partial(both, method) for name, method in methods.items()},
    }


def both(method: Method) -> None:
    """Run forward and backward."""
    method.differentiate(method.forward())


def gpu_place() -> torch.device:
    """Return the first GPU, which this process uses."""
    return torch.device("cuda", use_device(0))


def waited_for(function: Callable[[], object]) -> None:
    """Call a function and wait for the GPU."""
    function()
    torch.cuda.synchronize()


def epoch_of(method: Method) -> Callable[[], None]:
    fused = method.parameters[0].is_cuda or None
    optimizer = torch.optim.Adam(method.parameters, fused=fused)

    def epoch() -> None:
        method.differentiate(method.forward())
        optimizer.step()

    return epoch


def with_integers(epoch: Callable[[], None]) -> Callable[[], None]:
    """Return an epoch whose dense products are of 8-bit integers, `train.products=int8`."""

    def rounded() -> None:
        with computing_with(IntegerArithmetic(lambda: True)):
            epoch()

    return rounded


def floor_of(problem: Problem, epoch: Callable[[], object]) -> Callable[[], None]:
    """Return a function with the work that an epoch of ours cannot avoid."""
    entries = problem.matrix.indices
    if problem.precision == "bfloat16":
        entries = entries[: entries.size // 2]
    limit, matrix = GatherLimit(), replace(problem.matrix, indices=entries)
    loops = []
    for width in GATHERED[problem.model]:
        x = aligned(matrix.num_nodes, width)
        loops.append(list(gather_loops(limit, matrix, x, problem.threads).values())[-1])
    with Products() as products:
        epoch()

    def floor() -> None:
        products.again()
        for loop in loops:
            loop()

    return floor


def seconds_of(timings: dict[str, Timing]) -> dict[str, Any]:
    return {
        "ours_s": timings["ours"].median_s,
        "peers": {name: each.median_s for name, each in timings.items() if name != "ours"},
        "spread": {name: round(each.spread, 3) for name, each in timings.items()},
        "cpu_s": {name: each.median_cpu_s for name, each in timings.items()},
        "joules": {name: each.median_j for name, each in timings.items()},
    }


def show(cases: list[dict[str, Any]]) -> None:
    """Print milliseconds or MB of every case, and the ratios of peers to ours."""
    rows = []
    for case in cases:
        if case["part"] == "memory":
            peers, unit = dict(case["peak_bytes"]), 1e-6
            ours = peers.pop("ours")
        else:
            peers, unit, ours = case["peers"], 1e3, case["ours_s"]
        others = ", ".join(f"{name} {value * unit:.1f}" for name, value in peers.items())
        ratios = ", ".join(f"{value / ours:.2f} x {name}" for name, value in peers.items())
        settings = [case["model"], case["precision"], case["threads"], case["part"]]
        rows.append([*settings, f"{ours * unit:.1f}", others, ratios])
    columns = ["model", "precision", "threads", "part", "ours", "peers", "ratio"]
    print_table("Layers and epochs: milliseconds; memory in MB", columns, rows)


if __name__ == "__main__":
    run_command("bench_epoch", main)
