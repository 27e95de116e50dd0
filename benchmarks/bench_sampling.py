"""Subgraphs and nodes per second of the samplers, by graph and threads.

``python -m benchmarks.bench_sampling --json`` prints one JSON object per case: sampler, graph,
what, threads, subgraphs_per_s, nodes_per_s, visits_per_cpu_s, ns_per_visit, pool_bytes, and the
machine. Cases of a graph take turns; rates are medians over rounds.

``what`` is the result of a draw: visits (only the draws), sets (distinct nodes, ascending) or
subgraphs (with the edges among them). ``together`` is the number of sets of visits drawn in one
call, whose frontiers move in turn. ``sums`` is frontier sampling by cumulative sums of degrees, in
straightforward C++, for visits only. Visits include repeated nodes: their number is the budget for
every graph. CPU seconds are those of the whole process. ``probes_per_pop`` counts rounds of four
probes of the Dashboard.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from benchmarks.columns import Columns, count, megabytes, print_columns, ratio, text
from benchmarks.harness import surroundings
from benchmarks.spmm_graphs import load_matrix
from benchmarks.sums_sampler import SumsSampler
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.sampling import (
    EdgeSampler,
    FrontierSampler,
    NodeSampler,
    Prefetch,
    RandomWalkSampler,
    Sampler,
    SubgraphSource,
    Topology,
    edge_table,
    node_table,
)

SEED = 20261121
SAMPLERS = ("frontier", "multidimensional", "walk", "edge", "node", "sums")
WHAT = ("visits", "sets", "subgraphs")
COLUMNS: Columns = {
    "sampler": ("sampler", text),
    "graph": ("graph", text),
    "what": ("what", text),
    "threads": ("threads", text),
    "together": ("together", text),
    "subgraphs/s": ("subgraphs_per_s", ratio),
    "nodes/s": ("nodes_per_s", count),
    "ns/visit": ("ns_per_visit", ratio),
    "CPU ns/visit": ("cpu_ns_per_visit", ratio),
    "pool MB": ("pool_bytes", megabytes),
    "probes/pop": ("probes_per_pop", ratio),
}


@dataclass(frozen=True)
class Made:
    """The result of a call."""

    num_nodes: int
    nbytes: int


Make = Callable[[int], Made]

CaseKey = tuple[str, str, int, int]
"""Sampler, what, threads, sets per call."""


def main() -> None:
    options = parse_arguments()
    results = [line for graph in options.graphs.split(",") for line in measure(graph, options)]
    about = surroundings("numpy")
    if options.json:
        for line in results:
            print_json({**line, **about})
    else:
        print_columns(COLUMNS, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_sampling", description=__doc__)
    add = parser.add_argument
    add("--graphs", default="rmat:16:16", help="rmat:SCALE:FACTOR, grid3d:N, debian or STORE.h5")
    add("--samplers", default="frontier,walk,edge,node,sums", help=", ".join(SAMPLERS))
    add("--what", default="visits,subgraphs", help=", ".join(WHAT))
    add("--threads", default="1", help="threads of the pool, for subgraphs")
    add("--walkers", type=int, default=1000, help="walkers of the frontier")
    add("--budget", type=int, default=8000, help="visits per subgraph")
    add("--length", type=int, default=2, help="steps of a walk")
    add("--together", default="1", help="sets of visits per call, for instance 1,4,8")
    add("--count", type=int, default=50, help="subgraphs per round")
    add("--rounds", type=int, default=5, help="counted rounds, after a warm-up round")
    add("--json", action="store_true", help="print one JSON object per case")
    return parser.parse_args()


def measure(graph: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    matrix = load_matrix(graph)
    topology = Topology(matrix.indptr, matrix.indices)
    cases = dict(make_cases(topology, options))
    found: dict[CaseKey, list[tuple[float, float, float, float]]] = {}
    for turn in range(options.rounds + 1):
        for case, make in cases.items():
            first = turn * options.count
            numbers = range(first, first + options.count, case[3])
            result = run_round(make, numbers, case[2])
            if turn > 0:
                found.setdefault(case, []).append(result)
    for (name, what, threads, together), rounds in found.items():
        wall, cpu, nodes, pool = (statistics.median(each) for each in zip(*rounds, strict=True))
        yield {
            "sampler": name,
            "graph": graph,
            "what": what,
            "threads": threads,
            "together": together,
            "subgraphs_per_s": options.count / wall,
            "nodes_per_s": int(nodes / wall),
            "ns_per_visit": wall / (options.count * options.budget) * 1e9,
            "cpu_ns_per_visit": cpu / (options.count * options.budget) * 1e9,
            "pool_bytes": int(pool),
            "nodes_per_subgraph": nodes / options.count,
            "mean_degree": topology.num_entries / topology.num_nodes,
            "walkers": options.walkers,
            "budget": options.budget,
            "probes_per_pop": probes_per_pop(name, topology, options),
        }


def probes_per_pop(name: str, topology: Topology, options: argparse.Namespace) -> float | None:
    if name not in ("frontier", "multidimensional"):
        return None
    sampler = make_sampler(name, topology, options)
    assert isinstance(sampler, FrontierSampler)
    pops = options.budget - min(options.walkers, options.budget)
    return statistics.mean(sampler.dashboard(k)["probes"] for k in range(5)) / pops


def run_round(make: Make, numbers: range, threads: int) -> tuple[float, float, float, float]:
    """Return wall and CPU seconds, the number of nodes, and the bytes of the pool."""
    wall, cpu, nodes = time.perf_counter(), time.process_time(), 0
    # With one thread the caller itself samples.
    background = threads if threads > 1 else 0
    with Prefetch(make, numbers, threads=background, depth=2 * threads) as pool:
        for each in pool:
            nodes += each.num_nodes
        return time.perf_counter() - wall, time.process_time() - cpu, nodes, pool.most_bytes


def make_cases(topology: Topology, options: argparse.Namespace) -> Iterator[tuple[CaseKey, Make]]:
    names, kinds = options.samplers.split(","), options.what.split(",")
    threads, together = (
        [int(each) for each in words.split(",")] for words in (options.threads, options.together)
    )
    for name, known in [(each, SAMPLERS) for each in names] + [(each, WHAT) for each in kinds]:
        if name not in known:
            raise InputError(f"{name!r} is unknown; choose from {', '.join(known)}")
    samplers = {name: make_sampler(name, topology, options) for name in names if name != "sums"}
    for name, what, num_threads, sets in product(names, kinds, threads, together):
        if (what != "subgraphs" and num_threads > 1) or (what != "visits" and sets > 1):
            continue
        if name == "sums":
            if (what, sets) == ("visits", 1):
                yield (name, what, 1, 1), partial(by_sums, SumsSampler(), topology, options)
        elif sets > 1:
            yield (name, what, 1, sets), partial(make_together, samplers[name], sets)
        else:
            yield (name, what, num_threads, 1), partial(make_one, samplers[name], what)


def make_sampler(name: str, topology: Topology, options: argparse.Namespace) -> Sampler:
    budget = options.budget
    if name == "walk":
        roots = budget // (options.length + 1)
        return RandomWalkSampler(topology=topology, seed=SEED, roots=roots, length=options.length)
    if name == "edge":
        table = edge_table(topology)
        return EdgeSampler(topology=topology, seed=SEED, draws=budget // 2, table=table)
    if name == "node":
        return NodeSampler(topology=topology, seed=SEED, draws=budget, table=node_table(topology))
    return FrontierSampler(
        topology=topology,
        seed=SEED,
        walkers=options.walkers,
        budget=budget,
        entered=name == "multidimensional",
    )


def make_one(sampler: Sampler, what: str, number: int) -> Made:
    if what == "subgraphs":
        subgraph = SubgraphSource(sampler)(number)
        return Made(len(subgraph.nodes), subgraph.nbytes)
    nodes = sampler.sample(number) if what == "sets" else sampler.visits(number)
    return Made(len(nodes), nodes.nbytes)


def make_together(sampler: Sampler, sets: int, number: int) -> Made:
    found = sampler.visits_each(range(number, number + sets))
    return Made(sum(map(len, found)), sum(each.nbytes for each in found))


def by_sums(
    sampler: SumsSampler, topology: Topology, options: argparse.Namespace, number: int
) -> Made:
    visits = sampler.visits(topology, options.walkers, options.budget, SEED, number)
    return Made(len(visits), visits.nbytes)


if __name__ == "__main__":
    run_command("bench_sampling", main)
