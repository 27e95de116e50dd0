"""Time of a step of sampled training by depth and size of the graph, on one rank.

``python -m benchmarks.bench_iterations --json`` prints one JSON object per case: graph, layers,
cpu_s and wall_s of a step (medians), nodes and edges of its subgraph (the edges of all layers for
layer-wise neighbour sampling), and `residual`, the residual of the time after a linear fit over
depth, if a graph has several depths. All layers and the output have one width. Cases take turns,
step by step; sampling is part of a step.
"""

import argparse
import statistics
import time
from typing import Any

from mpi4py import MPI

import numpy as np
import torch

from benchmarks.columns import Columns, count, print_columns, ratio, seconds, text
from benchmarks.harness import surroundings
from benchmarks.spmm_graphs import load_matrix
from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid
from hpcgnn.commands.launch import run_command
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.graph.context import Context
from hpcgnn.nn import MODELS, make_model
from hpcgnn.operator import on_graph
from hpcgnn.sampling import Topology
from hpcgnn.train.objectives.nodes import LabelledNodes
from hpcgnn.train.process import prepare_process
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.train.sampled.input import BatchInput, SubgraphInput
from hpcgnn.train.sampled.views import SampledViews

SEED = 20261121
COLUMNS: Columns = {
    "graph": ("graph", text),
    "layers": ("layers", text),
    "nodes": ("nodes", count),
    "edges": ("edges", count),
    "CPU s": ("cpu_s", seconds),
    "wall s": ("wall_s", seconds),
    "off the line": ("residual", ratio),
}


def main() -> None:
    options = parse_arguments()
    results = []
    with ProcessGrid(MPI.COMM_WORLD, 1) as grid:
        cases = []
        for case in options.cases.split(","):
            graph, layers = case.rsplit("/", 1)
            loaded = load(graph, options.width)
            cases += [Case(grid, graph, loaded, int(each), options) for each in layers.split("+")]
        for turn in range(options.rounds + 1):
            for each in cases:
                each.step(counted=turn > 0)
        results = [each.result() for each in cases]
    lines = with_residuals(results)
    if options.json:
        for line in lines:
            print_json(line | surroundings("torch"))
    else:
        print_columns(COLUMNS, lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_iterations", description=__doc__)
    add = parser.add_argument
    add("--cases", default="rmat:16:16/1+2+3+4+5+6,rmat:18:16/2", help="GRAPH/LAYERS+LAYERS,...")
    add("--model", default="sage", help="model of hpcgnn train")
    add("--width", type=int, default=128, help="width of features, layers and output")
    add("--rounds", type=int, default=9, help="counted steps, after a warm-up step")
    add("--words", nargs="*", default=[], help="section.key=value")
    add("--json", action="store_true", help="print one JSON object per case")
    return parser.parse_args()


def load(name: str, width: int) -> SampledGraph:
    matrix = load_matrix(name)
    random, count = np.random.default_rng(SEED), matrix.num_nodes
    topology = Topology(matrix.indptr, matrix.indices)
    degrees = topology.degrees().astype(np.float64)
    return SampledGraph(
        edges=topology,
        weights=None,
        walked=topology,
        row_sums=degrees,
        column_sums=degrees,
        node_ids=np.arange(count),
        features=torch.from_numpy(random.random((count, width), dtype=np.float32)),
        labels=torch.from_numpy(random.integers(0, width, count)),
        trained=np.ones(count, np.bool_),
    )


class Case:
    """A model in training on subgraphs of a graph."""

    def __init__(
        self,
        grid: ProcessGrid,
        name: str,
        graph: SampledGraph,
        layers: int,
        options: argparse.Namespace,
    ) -> None:
        words = [f"model.name={options.model}", f"model.hidden={options.width}"]
        words += [f"model.num_layers={layers}", "graph.store=unused", "run.dir=unused"]
        words += [f"sampling.steps={options.rounds + 1}", "sampling.coverage=0"]
        config = load_config(None, [*words, "sampling.threads=0", *options.words])
        prepare_process(grid, 1)
        shape = config.model.shape(num_features=options.width, num_classes=options.width)
        kind = config.model.name
        self.model = make_model(kind, shape, directed=False, seed=1, dtype=torch.float32)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        wanted = on_graph(MODELS[kind].aggregations, directed=False)
        self.views = SampledViews(Context(grid, config), graph, wanted)
        nodes = LabelledNodes(graph)
        if config.sampling.sampler == "neighbour":
            self.steps = BatchInput(self.views, nodes, parts=False).steps(1, 0)
        else:
            self.steps = SubgraphInput.of_whole(self.views, nodes).steps(1, 0)
        self.name, self.layers, self.graph = name, layers, graph
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []
        self.sizes: list[tuple[int, int]] = []

    def step(self, *, counted: bool) -> None:
        """Sample, train, and record the time."""
        cpu, wall = time.process_time(), time.perf_counter()
        step = next(self.steps)()
        logits = self.model(step.view, step.features, DropoutKey(1, len(self.cpu_s)))
        loss = torch.nn.functional.cross_entropy(logits, step.targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if counted:
            self.cpu_s.append(time.process_time() - cpu)
            self.wall_s.append(time.perf_counter() - wall)
            layers = step.view.active or [step.view]
            operators = [next(iter(each.operators.values())) for each in layers]
            entries = sum(each.size.num_entries for each in operators)
            self.sizes.append((len(step.features), entries))

    def result(self) -> dict[str, Any]:
        """Return the result of the case."""
        nodes, edges = np.mean(self.sizes, axis=0).tolist()
        return {
            "graph": self.name,
            "layers": self.layers,
            "nodes": nodes,
            "edges": edges,
            "cpu_s": statistics.median(self.cpu_s),
            "wall_s": statistics.median(self.wall_s),
        }


def with_residuals(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add each case's residual from the line fitted over the depths of its graph."""
    lines = []
    for each in results:
        alike = [other for other in results if other["graph"] == each["graph"]]
        residual = None
        if len(alike) > 2:
            depths = [other["layers"] for other in alike]
            slope, base = np.polyfit(depths, [other["cpu_s"] for other in alike], 1)
            residual = each["cpu_s"] / (base + slope * each["layers"]) - 1
        lines.append(each | {"residual": residual})
    return lines


if __name__ == "__main__":
    run_command("bench_iterations", main)
