"""Training steps of the gated graph neural network: graphs a second by propagator and block size.

    python -m benchmarks.bench_banded --store PROGRAMS.h5 --json
    mpiexec -n 2 python -m benchmarks.bench_banded --store PROGRAMS.h5 --json

Tables 1 and 2 of the dense-hardware paper on a store of program graphs. Each rank packs its own
supergraphs, which fit in ``--memory`` MiB (blocks and the state of the backward pass), and times
forward, loss, backward and the sum of gradients over the ranks. Cases take turns. One JSON object
per case: propagator, block (0: all edges), supernodes (maximum of a graph), ranks; steps_per_s,
cpu_s (processor seconds of a step, all ranks), nodes_per_s and nodes_per_cpu_s of the timed
supergraphs; graphs_per_supergraph (mean of 2,000 packed graphs), and graphs_per_s and
graphs_per_cpu_s from it; over up to 16 supergraphs per rank, the mean nodes_per_supergraph and the
sums edges, dropped_edges and supernode_edges; build_s (seconds to build a propagator, not part of
the step) and layout_s (to choose supernodes and reorder the nodes). A small memory excludes graphs
with more nodes than node_budget, so nodes_per_s compares better. ``--lossless`` takes only graphs
whose bandwidth is below the block, as in the paper's Table 3.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.banded_case import Case, Kind, make_case
from benchmarks.columns import Columns, print_columns, ratio, seconds, text
from benchmarks.report import circumstances
from hpcgnn.comm import Communicator, ProcessGrid, sum_over_ranks
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_mpi_command
from hpcgnn.console import print_json
from hpcgnn.nn import GGNN, GGNNShape, candidate_loss, make_ggnn
from hpcgnn.storage import InstanceStore
from hpcgnn.train.gradients import sum_gradients

COLUMNS: Columns = {
    "propagator": ("propagator", text),
    "S": ("block", text),
    "supernodes": ("supernodes", text),
    "ranks": ("ranks", text),
    "graphs/s": ("graphs_per_s", ratio),
    "nodes/CPU s": ("nodes_per_cpu_s", ratio),
    "steps/s": ("steps_per_s", ratio),
    "nodes": ("nodes_per_supergraph", text),
    "graphs": ("graphs_per_supergraph", ratio),
    "edges": ("edges", text),
    "dropped": ("dropped_edges", text),
    "CPU s": ("cpu_s", seconds),
}


def main(comm: Communicator) -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    with ProcessGrid(comm, 1) as grid, InstanceStore.open(options.store) as store:
        model = make_model(store, options.hidden)
        cases = [make_case(grid, store, kind, options) for kind in options.cases]
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
    cli = CommandParser(prog="python -m benchmarks.bench_banded", description=__doc__)
    cli.add_argument("--store", type=Path, required=True, help="from hpcgnn.convert programs")
    cli.add_argument(
        "--cases",
        type=lambda words: [parse_case(word) for word in words.split(",")],
        default="sparse,banded:128,banded:256,banded:512,banded:1024,hybrid:128,banded:128:8",
        metavar="NAME[:S[:R]],...",
        help="sparse, banded or hybrid, with a block size, and at most R supernodes a graph "
        "(default: %(default)s)",
    )
    cli.add_argument("--hidden", type=int, default=128, help="(default: 128)")
    cli.add_argument("--memory", type=int, default=512, metavar="MIB", help="(default: 512)")
    cli.add_argument("--repeat", type=int, default=3, help="counted rounds (default: 3)")
    cli.add_argument("--threads", type=int, default=1, help="of a rank (default: 1)")
    cli.add_argument("--lossless", action="store_true", help="only graphs that fit the band")
    cli.add_argument("--json", action="store_true", help="one JSON object per case")
    return cli.parse_args()


def parse_case(word: str) -> Kind:
    name, block, supernodes = (*word.split(":"), "0", "0")[:3]
    return Kind(name, int(block), int(supernodes))  # type: ignore[arg-type]


def make_model(store: InstanceStore, hidden: int) -> GGNN:
    header = store.header
    shape = GGNNShape(
        num_buckets=header.num_buckets,
        num_types=2 * len(header.edge_names),
        hidden=hidden,
        steps=header.steps,
    )
    return make_ggnn(shape, seed=1, dtype=torch.float32)


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
    names = list(case.sample)
    own = [statistics.median(case.cpu), case.graph.num_nodes, case.build_s, case.layout_s]
    cpu_s, nodes, build_s, layout_s, *sums = sum_over_ranks(
        grid.world, [*own, *case.sample.values()]
    )
    total = dict(zip(names, map(int, sums), strict=True))
    step_s = statistics.median(case.wall)
    graphs = grid.size * case.mean_graphs
    return {
        "propagator": case.kind.name,
        "block": case.kind.block,
        "supernodes": case.kind.supernodes,
        "ranks": grid.size,
        "graphs_per_s": graphs / step_s,
        "graphs_per_cpu_s": graphs / cpu_s,
        "nodes_per_s": nodes / step_s,
        "nodes_per_cpu_s": nodes / cpu_s,
        "steps_per_s": 1 / step_s,
        "node_budget": case.node_budget,
        "nodes_per_supergraph": total["nodes"] // total["supergraphs"],
        "graphs_per_supergraph": case.mean_graphs,
        "edges": total["edges"],
        "dropped_edges": total["dropped_edges"],
        "supernode_edges": total["supernode_edges"],
        "cpu_s": cpu_s,
        "build_s": build_s / grid.size,
        "layout_s": layout_s / grid.size,
    }


if __name__ == "__main__":
    run_mpi_command("bench_banded", main)
