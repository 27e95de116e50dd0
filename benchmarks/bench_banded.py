"""Training steps of the gated graph neural network: graphs a second by propagator and block size.

    python -m benchmarks.bench_banded --store PROGRAMS.h5 --json
    mpiexec -n 2 python -m benchmarks.bench_banded --store PROGRAMS.h5 --json

Tables 1 and 2 of the dense-hardware paper on a store of program graphs. Each case packs supergraphs
that fit ``--memory`` MiB a rank (blocks, and what the backward pass keeps), each rank its own, and
times forward, loss, backward and the sum of gradients over the ranks. Cases take turns. One JSON
object a case: propagator, block (0: all edges), ranks, graphs_per_s, nodes_per_s (which compares
cases better: a small budget leaves large graphs out), both per cpu_s too, steps_per_s and
nodes_per_supergraph (of all ranks together, a supergraph's mean), graphs_per_supergraph, edges and
dropped_edges (of all ranks' supergraphs), cpu_s (processor seconds of a step, all ranks) and
build_s (seconds to build the propagator, not part of the step). ``--lossless`` takes graphs whose
bandwidth is below the block only, as the paper's Table 3.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.columns import Columns, print_columns, ratio, seconds, text
from benchmarks.report import circumstances
from hpcgnn.banded import Supergraph, first_fit_decreasing
from hpcgnn.comm import (
    Communicator,
    ProcessGrid,
    RankArgumentParser,
    run_mpi_command,
    sum_over_ranks,
)
from hpcgnn.console import print_json
from hpcgnn.nn import GGNN, GGNNShape, Propagator, candidate_loss, make_ggnn, make_propagator
from hpcgnn.storage import InstanceSplit, InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.optimise import sum_gradients

OFF = TraceRecorder.open(None, 0, {})
NUMBER_BYTES = 4
GRU_ROWS = 10
"""Rows of the hidden width that the GRU cell keeps for each node and step, about."""
COLUMNS: Columns = {
    "propagator": ("propagator", text),
    "S": ("block", text),
    "ranks": ("ranks", text),
    "graphs/s": ("graphs_per_s", ratio),
    "nodes/CPU s": ("nodes_per_cpu_s", ratio),
    "steps/s": ("steps_per_s", ratio),
    "nodes": ("nodes_per_supergraph", text),
    "graphs": ("graphs_per_supergraph", ratio),
    "dropped": ("dropped_edges", text),
    "CPU s": ("cpu_s", seconds),
}


@dataclass(frozen=True)
class Case:
    """One propagator on one supergraph a rank, and what its steps took."""

    name: str
    block: int
    graph: Supergraph
    propagator: Propagator
    build_s: float
    wall: list[float]
    cpu: list[float]


def main(comm: Communicator) -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    with ProcessGrid(comm, 1) as grid, InstanceStore.open(options.store) as store:
        model = make_model(store, options.hidden)
        cases = [make_case(grid, store, name, block, options) for name, block in options.cases]
        for number in range(options.repeat + 1):
            for case in cases:
                wall, cpu = run_step(grid, model, case)
                if number:
                    case.wall.append(wall)
                    case.cpu.append(cpu)
        where = circumstances()
        found = [summarise(grid, case) | where for case in cases]
    if comm.rank == 0:
        for each in found if options.json else ():
            print_json(each)
        if not options.json:
            print_columns(COLUMNS, found)
    return 0


def parse_arguments() -> Any:
    cli = RankArgumentParser(prog="python -m benchmarks.bench_banded", description=__doc__)
    cli.add_argument("--store", type=Path, required=True, help="of hpcgnn.convert programs")
    cli.add_argument(
        "--cases",
        type=lambda words: [parse_case(word) for word in words.split(",")],
        default="sparse,banded:128,banded:256,banded:512,banded:1024",
        metavar="NAME[:S],...",
        help="sparse, banded or hybrid, with a block size (default: %(default)s)",
    )
    cli.add_argument("--hidden", type=int, default=128, help="(default: 128)")
    cli.add_argument("--memory", type=int, default=512, metavar="MIB", help="(default: 512)")
    cli.add_argument("--repeat", type=int, default=3, help="counted rounds (default: 3)")
    cli.add_argument("--threads", type=int, default=1, help="of a rank (default: 1)")
    cli.add_argument("--lossless", action="store_true", help="graphs that fit the band only")
    cli.add_argument("--json", action="store_true", help="one JSON object a case")
    return cli.parse_args()


def parse_case(word: str) -> tuple[str, int]:
    name, _, block = word.partition(":")
    return name, int(block or 0)


def make_model(store: InstanceStore, hidden: int) -> GGNN:
    header = store.header
    shape = GGNNShape(
        num_buckets=header.num_buckets,
        num_types=2 * len(header.edge_names),
        hidden=hidden,
        steps=header.steps,
    )
    return make_ggnn(shape, seed=1, dtype=torch.float32)


def node_budget(store: InstanceStore, name: str, block: int, options: Any) -> int:
    """Return the nodes whose blocks and kept rows fit the memory."""
    types, steps = 2 * len(store.header.edge_names), store.header.steps
    if name == "sparse":
        edges = 2 * store.graphs["num_edges"].sum() / store.graphs["num_nodes"].sum()
        node_bytes = steps * (edges + GRU_ROWS) * options.hidden * NUMBER_BYTES
    else:
        node_bytes = steps * (types + GRU_ROWS) * options.hidden * NUMBER_BYTES
        node_bytes += 3 * types * block * NUMBER_BYTES
    return int((options.memory << 20) / node_bytes)


def make_case(grid: ProcessGrid, store: InstanceStore, name: str, block: int, options: Any) -> Case:
    """Pack the first supergraphs of a shuffled sample, and take this rank's."""
    low, high = store.split_range(InstanceSplit.TRAIN)
    budget = node_budget(store, name, block, options)
    fits = store.graphs["num_nodes"][low:high] <= budget
    if options.lossless and block:
        fits &= store.graphs["bandwidth"][low:high] < block
    chosen = np.random.default_rng(1).permutation(np.flatnonzero(fits))[:2000]
    bins = first_fit_decreasing(store.graphs["num_nodes"][low:high][chosen], budget)
    # The first bins hold the largest graphs: take one from the middle of the order instead.
    order = np.random.default_rng(2).permutation(len(bins))
    numbers = low + np.sort(chosen[bins[order[grid.rank % len(bins)]]])
    # The ids of nodes seed dropout only, which is off.
    ids = np.zeros_like(numbers)
    graph = Supergraph.build(store.read_graphs(numbers), len(store.header.edge_names), ids)
    started = time.perf_counter()
    propagator = make_propagator(
        name,  # type: ignore[arg-type]
        graph.edges,
        block=block,
        dtype=torch.float32,
        trace=OFF,
    )
    return Case(name, block, graph, propagator, time.perf_counter() - started, [], [])


def run_step(grid: ProcessGrid, model: GGNN, case: Case) -> tuple[float, float]:
    """Return seconds, and processor seconds of this rank, of one step."""
    grid.world.Barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    model.zero_grad()
    loss, _ = candidate_loss(model(case.graph, case.propagator, None), case.graph, 1)
    loss.backward()  # type: ignore[no-untyped-call]
    sum_gradients(grid, model.parameters())
    return time.perf_counter() - wall, time.process_time() - cpu


def summarise(grid: ProcessGrid, case: Case) -> dict[str, Any]:
    graph = case.graph
    mine = [graph.num_graphs, graph.num_nodes, len(graph.edges), case.propagator.dropped]
    cpu = statistics.median(case.cpu)
    graphs, nodes, edges, dropped, cpu_s, build_s = sum_over_ranks(
        grid.world, [*mine, cpu, case.build_s]
    )
    step_s = statistics.median(case.wall)
    return {
        "propagator": case.name,
        "block": case.block,
        "ranks": grid.size,
        "graphs_per_s": graphs / step_s,
        "graphs_per_cpu_s": graphs / cpu_s,
        "nodes_per_s": nodes / step_s,
        "nodes_per_cpu_s": nodes / cpu_s,
        "steps_per_s": 1 / step_s,
        "nodes_per_supergraph": int(nodes / grid.size),
        "graphs_per_supergraph": graphs / grid.size,
        "edges": int(edges),
        "dropped_edges": int(dropped),
        "cpu_s": cpu_s,
        "build_s": build_s / grid.size,
    }


if __name__ == "__main__":
    run_mpi_command("bench_banded", main)
