"""MeshGraphNet forward and backward on a mesh, hpcgnn and plain torch-geometric, one thread.

    python -m benchmarks.bench_edges [--side 20] [--width 128] [--blocks 3] [--rounds 3] [--keep]
        [--again] [--memory] [--device cuda] [--json]

Both have the same weights on a 3-D grid with edges in both directions, and take turns with the
floor: only the dense products of hpcgnn. Times are medians over the rounds of processor time, which
other work affects less. Outputs are compared first. On a GPU, times are wall-clock times,
torch-geometric also runs through torch.compile, and peaks are those of device memory.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu_timing import device_name, device_peak_bytes
from benchmarks.harness import interleave
from benchmarks.plain_blocks import PlainBlock
from hpcgnn.autograd import EdgeInputs, Step, run_steps
from hpcgnn.comm import ProcessGrid, RowMap, RunPosition
from hpcgnn.kernels import reused_memory
from hpcgnn.kernels.cuda.device import use_device
from hpcgnn.messages import EdgeTable, MessageOperator
from hpcgnn.nn import GraphView
from hpcgnn.nn.models.meshgraphnet import Processor
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import DistCSR
from hpcgnn.sparse.device import DeviceMemory
from hpcgnn.spmm import Carrier, make_exchange
from hpcgnn.spmm.gpu.mpi import StagedTransport
from hpcgnn.trace import TraceRecorder

BLOCK = 1024
"""Rows of a dense product that stays in cache."""
Way: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(rows of nodes, states of edges) -> rows."""


def grid_edges(side: int) -> np.ndarray:
    """Return (2, E) sources and targets of a cube of nodes, sorted by target."""
    number = np.arange(side**3).reshape(side, side, side)
    pairs = []
    for axis in range(3):
        low, high = (np.moveaxis(number, axis, 0)[part] for part in (slice(-1), slice(1, None)))
        pairs += [[low.ravel(), high.ravel()], [high.ravel(), low.ravel()]]
    ends = np.concatenate(pairs, axis=1)
    return ends[:, np.argsort(ends[1], kind="stable")]


def edge_inputs(
    grid: ProcessGrid, ends: np.ndarray, case: "Case", carrier: Carrier | None = None
) -> EdgeInputs:
    """Return the edges as input of hpcgnn's layers, in the memory of a carrier."""
    num_nodes = case.side**3
    row_map, trace = RowMap(np.array([0, num_nodes]), 0), TraceRecorder.off()
    indptr = np.searchsorted(ends[1], np.arange(num_nodes + 1))
    table = EdgeTable(np.empty((ends.shape[1], 0), np.float32))
    matrix = DistCSR.from_rows(row_map, indptr, ends[0], table.numbers)
    exchange = make_exchange("aware", grid, matrix, trace, carrier=carrier)
    return EdgeInputs(MessageOperator(matrix, exchange, table, states_again=case.again))


def plain_block(layer: Processor, width: int) -> nn.Module:
    """Return the same block as a torch-geometric user would write it."""
    maps = [nn.Linear(3 * width, width), *layer.edges.rest.maps]
    maps[0].load_state_dict(layer.edges.first.state_dict())
    edge = chain(maps, layer.edges.rest.norm)
    return PlainBlock(edge, chain(list(layer.nodes.maps), layer.nodes.norm))


def chain(maps: list[nn.Module], norm: nn.Module) -> nn.Sequential:
    """Return the maps with ReLUs between them, followed by the norm."""
    layers = [each for linear in maps for each in (nn.ReLU(), linear)][1:]
    return nn.Sequential(*layers, norm)


@dataclass(frozen=True)
class Case:
    """A network of `blocks` blocks of `width` columns, on a cube with `side` nodes per side.

    With `keep` the results of maps are stored for the backward pass; with `again` most edge states
    are recomputed there.
    """

    side: int
    width: int
    blocks: int
    keep: bool
    again: bool


def plain_way(case: Case, layers: nn.ModuleList, ends: np.ndarray) -> Way:
    """Return the network as a torch-geometric user would run it."""
    device = next(layers.parameters()).device
    blocks = nn.ModuleList(plain_block(layer, case.width) for layer in layers).to(device)
    index = torch.from_numpy(ends).to(device)

    def run(rows: Tensor, states: Tensor) -> Tensor:
        for block in blocks:
            rows, states = block(rows, index, states)
        return rows

    return run


def our_way(
    case: Case,
    layers: nn.ModuleList,
    grid: ProcessGrid,
    ends: np.ndarray,
    carrier: Carrier | None = None,
) -> Way:
    """Return the network as hpcgnn runs it."""
    num_nodes = case.side**3
    operators = {Aggregation.MESSAGES: edge_inputs(grid, ends, case, carrier).operator}
    view = GraphView(operators, np.arange(num_nodes), grid.sum_over_blocks).layer(0)

    steps = [Step(partial(layer, view), layer) for layer in layers]

    def run(rows: Tensor, states: Tensor) -> Tensor:
        if case.again:
            return run_steps(steps, (rows, states), RunPosition())[0]
        for step in steps:
            rows, states = step.run(rows, states)
        return rows

    return run


def products(case: Case, num_nodes: int, num_edges: int) -> None:
    """Do the dense products of hpcgnn's network on blocks that stay in cache: the floor.

    In units of w² operations, an edge takes 3 forward and 6 backward, a node 6 and 12; if results
    are not kept, 3 and 4 more.
    """
    again = 0 if case.keep else 1
    rows = torch.randn(BLOCK, case.width)
    weight, total = (torch.randn(case.width, case.width) for _ in range(2))
    out = torch.empty_like(rows)
    for count, forward, inner in ((num_edges, 3 + 3 * again, 3), (num_nodes, 6 + 4 * again, 6)):
        for _ in range(case.blocks * -(-count // BLOCK)):
            for _ in range(forward):
                torch.mm(rows, weight.t(), out=out)
            for _ in range(inner):
                torch.mm(rows, weight, out=out)
                total.addmm_(out.t(), rows)


def measure(case: Case, only: str | None, rounds: int) -> dict[str, Any]:
    """Return the median seconds of each way, run in turn, or the peak memory of the way `only`."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    num_nodes, ends = case.side**3, grid_edges(case.side)
    num_edges = ends.shape[1]
    layers = nn.ModuleList(Processor(case.width, 3, "relu") for _ in range(case.blocks))
    for layer in layers:
        layer.edges.keeps = layer.nodes.keeps = case.keep
    x, states = (torch.randn(count, case.width) for count in (num_nodes, num_edges))
    found: dict[str, Any] = {"nodes": num_nodes, "edges": num_edges, **asdict(case)}
    # As in training: a step reuses the memory of the one before.
    with ProcessGrid.of_this_process() as grid, reused_memory():
        ways = {
            "ours": our_way(case, layers, grid, ends),
            "plain": plain_way(case, layers, ends),
        }

        def step(way: Way) -> None:
            way(x, states).sum().backward()

        if only is not None:
            before = peak_mb()
            step(ways[only])
            return {**found, "peak_mb": peak_mb(), "before_mb": before}
        with torch.no_grad():
            torch.testing.assert_close(
                *(way(x, states) for way in ways.values()), rtol=1e-3, atol=1e-3
            )
        runs: dict[str, Callable[[], None]] = {n: partial(step, way) for n, way in ways.items()}
        runs["floor"] = partial(products, case, num_nodes, num_edges)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.process_time()
                run()
                seconds[name].append(time.process_time() - start)
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        **found,
        "seconds": middle,
        "speedup": middle["plain"] / middle["ours"],
        "share_of_floor": middle["floor"] / middle["ours"],
    }


def measure_on_card(case: Case, rounds: int) -> dict[str, Any]:
    """Return the median seconds and the peak memory of each way on a GPU, run in turn."""
    place = torch.device("cuda", use_device(0))
    torch.manual_seed(1)
    num_nodes, ends = case.side**3, grid_edges(case.side)
    layers = nn.ModuleList(Processor(case.width, 3, "relu") for _ in range(case.blocks)).to(place)
    sizes = num_nodes, ends.shape[1]
    x, states = (torch.randn(count, case.width, device=place) for count in sizes)
    with ProcessGrid.of_this_process() as grid:
        carrier = Carrier(grid, DeviceMemory(), StagedTransport())
        plain = plain_way(case, layers, ends)
        ways = {
            "ours": our_way(case, layers, grid, ends, carrier),
            "plain": plain,
            "compiled": torch.compile(plain),
        }

        def step(way: Way) -> None:
            way(x, states).sum().backward()
            torch.cuda.synchronize()

        with torch.no_grad():
            ours, *others = (way(x, states) for way in ways.values())
            for other in others:
                torch.testing.assert_close(ours, other, rtol=1e-3, atol=1e-3)
            del ours, others, other
        runs = {name: partial(step, way) for name, way in ways.items()}
        timings = interleave(runs, warmup=2, repeat=rounds)
        peaks = {name: device_peak_bytes(run) for name, run in runs.items()}
    seconds = {name: timing.median_s for name, timing in timings.items()}
    return {
        **asdict(case),
        "nodes": num_nodes,
        "edges": ends.shape[1],
        "device": device_name(),
        "seconds": seconds,
        "peak_bytes": peaks,
        "speedup": min(seconds["plain"], seconds["compiled"]) / seconds["ours"],
    }


def peak_mb() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(name: str, case: Case) -> dict[str, Any]:
    """Return the result of a process that runs only one way."""
    settings = asdict(case).items()
    words = [f"--{key}={value}" for key, value in settings if not isinstance(value, bool)]
    words += [f"--{key}" for key, value in settings if value is True]
    words += ["--only", name, "--json"]
    command = [sys.executable, "-m", "benchmarks.bench_edges", *words]
    result: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("side", 20), ("width", 128), ("blocks", 3), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, help_text in (
        ("keep", "store the results of maps for the backward pass"),
        ("again", "store few edge states, and recompute the others"),
        ("memory", "measure the peak memory of each way in its own process, not seconds"),
        ("json", "print one line of JSON"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=help_text)
    parser.add_argument("--only", choices=["ours", "plain"], help="the peak memory of one step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    case = Case(options.side, options.width, options.blocks, options.keep, options.again)
    found: Any
    if options.device == "cuda":
        found = measure_on_card(case, options.rounds)
    elif options.memory:
        found = {name: alone(name, case) for name in ("ours", "plain")}
    else:
        found = measure(case, options.only, options.rounds)
    print(json.dumps(found) if options.json else found)


if __name__ == "__main__":
    main()
