"""Seconds, rows, bytes and messages of a distributed product, by exchange, grid and wire format.

    mpiexec -n 4 python -m benchmarks.bench_exchange --graph debian --replication 1,2 --json

Each repetition runs every case once, in turn, so that changes of the machine's load affect all
cases alike. A time is that of the slowest rank, between two barriers; the median is reported. Rows
and bytes are those of one forward product, counted at the sender and compared with the plan; the
adjoint moves the same back. --plan times planning instead, see `exchange_plans`.
"""

import argparse
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.columns import Columns, count, megabytes, print_columns, ratio, seconds, text
from benchmarks.exchange_case import Case
from benchmarks.exchange_graphs import METHODS, BenchmarkGraph, open_graph
from benchmarks.exchange_plans import plan_costs
from benchmarks.report import circumstances
from hpcgnn.comm import Communicator, ProcessGrid
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_mpi_command
from hpcgnn.console import print_json
from hpcgnn.sparse import scale
from hpcgnn.spmm import EXCHANGES, WIRES, find_method, quantises

CASE: Columns = {"exchange": ("exchange", text), "c": ("replication", text), "wire": ("wire", text)}
COLUMNS: Columns = {
    **CASE,
    "seconds": ("seconds", seconds),
    "adjoint": ("adjoint_seconds", seconds),
    "rows": ("rows_total", count),
    "max send": ("rows_max_send", count),
    "max recv": ("rows_max_recv", count),
    "MB": ("bytes_total", megabytes),
    "MB between hosts": ("bytes_between_hosts", megabytes),
    "MB summed": ("bytes_summed", megabytes),
    "messages": ("messages_total", count),
}
PLAN_COLUMNS: Columns = {
    **CASE,
    "read s": ("read_s", seconds),
    "products": ("products_s", seconds),
    "active sets": ("active_sets_s", seconds),
    "first use": ("first_use_s", seconds),
    "plan s": ("plan_s", seconds),
    "epoch s": ("epoch_s", seconds),
    "in epochs": ("plan_epochs", ratio),
}
WIRE_LABELS = {"native": "float32"}


def main(comm: Communicator) -> int:
    options = parse()
    graph = open_graph(
        comm,
        options.graph,
        relations=options.relations,
        undirected=options.undirected,
        method=options.method,
    )
    measure, columns = (run_plans, PLAN_COLUMNS) if options.plan else (run_products, COLUMNS)
    results = []
    for replication in options.replication:
        with ProcessGrid(comm, replication) as grid:
            for result in measure(grid, graph, options):
                results.append(result)
                if comm.rank == 0 and options.json:
                    print_json(result)
    if comm.rank == 0 and not options.json:
        print(f"{graph.name}, {comm.size} ranks: {circumstances()}")
        print_columns(columns, results)
    return 0


def parse() -> argparse.Namespace:
    names = names_of(EXCHANGES)
    cli = CommandParser(
        prog="python -m benchmarks.bench_exchange", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument(
        "--graph",
        default="debian",
        help="STORE.h5, rmat:SCALE:FACTOR (undirected), grid3d:N or debian (default: debian)",
    )
    cli.add_argument("--method", choices=METHODS, help="partitioner, unless the graph is a store")
    text = "relations of a store (default: all)"
    cli.add_argument("--relations", type=words, default=(), metavar="A,B", help=text)
    cli.add_argument("--undirected", action="store_true", help="add reverse edges to a store")
    cli.add_argument("--width", type=positive, default=128, help="columns (default: 128)")
    text = f"some of {','.join(EXCHANGES)} (default: all)"
    cli.add_argument("--exchange", type=names, default=EXCHANGES, metavar="A,B", help=text)
    text = "copies of every block row, divisors of the ranks (default: 1)"
    cli.add_argument("--replication", type=positives, default=(1,), metavar="C,C", help=text)
    text = f"all, or some of {','.join(WIRES)} (default: native)"
    cli.add_argument("--wire", type=names_of(WIRES), default=("native",), metavar="A,B", help=text)
    cli.add_argument("--repeat", type=positive, default=10, help="repetitions (default: 10)")
    cli.add_argument("--warmup", type=positive, default=2, help="not counted (default: 2)")
    text = "time planning, compared with epochs of a GCN of width 16"
    cli.add_argument("--plan", action="store_true", help=text)
    cli.add_argument("--json", action="store_true", help="print one JSON object per case")
    return cli.parse_args()


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def names_of(known: tuple[str, ...]) -> Any:
    def read(text: str) -> tuple[str, ...]:
        chosen = known if text == "all" else words(text)
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return chosen

    return read


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def positives(text: str) -> tuple[int, ...]:
    return tuple(positive(each) for each in words(text))


def ways(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield every valid pair of exchange and wire format."""
    for wire in options.wire:
        for exchange in options.exchange:
            if not (quantises(wire) and find_method(exchange).received is None):
                yield exchange, wire


def run_plans(
    grid: ProcessGrid, graph: BenchmarkGraph, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the cost of planning every exchange and wire format on a grid."""
    began = time.perf_counter()
    pattern = graph.block_row(grid)
    read_s = max(grid.world.allgather(time.perf_counter() - began))
    for exchange, wire in ways(options):
        costs = plan_costs(grid, pattern, exchange, wire, options.repeat)
        yield described(grid, graph, exchange, wire) | {"read_s": read_s, **costs}


def run_products(
    grid: ProcessGrid, graph: BenchmarkGraph, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the result of every exchange and wire format on a grid."""
    pattern = graph.block_row(grid)
    matrix = scale(pattern, (1.0, 0.0), np.float32)
    rng = np.random.default_rng(grid.block)
    x, y = (rng.random((rows, options.width), np.float32) for rows in matrix.shape[::-1])
    cases = [Case(grid, pattern, matrix, exchange, wire) for exchange, wire in ways(options)]
    sizes = [case.measure(x, y) for case in cases]
    for repetition in range(options.warmup + options.repeat):
        for case in cases:
            if repetition == options.warmup:
                case.forget_times()
            case.run(x, y)
    for case, size in zip(cases, sizes, strict=True):
        forward, adjoint = case.spread("forward"), case.spread("adjoint")
        yield described(grid, graph, case.exchange, case.wire) | {
            "width": options.width,
            "seconds": forward[0],
            "seconds_min": forward[1],
            "seconds_max": forward[2],
            "adjoint_seconds": adjoint[0],
            **dataclasses.asdict(size),
        }


def described(grid: ProcessGrid, graph: BenchmarkGraph, exchange: str, wire: str) -> dict[str, Any]:
    """Return the common first fields of all results."""
    return {
        "graph": graph.name,
        "ranks": grid.size,
        "exchange": exchange,
        "replication": grid.replication,
        "wire": WIRE_LABELS.get(wire, wire),
        **circumstances(),
    }


if __name__ == "__main__":
    run_mpi_command("bench_exchange", main)
