"""A MeshGraphNet on a mesh, ours and plain torch-geometric's, one thread, forward and backward.

    python -m benchmarks.bench_edges [--side 20] [--width 128] [--blocks 3] [--rounds 3] [--json]

Both have the same weights on a 3-D grid with an edge each way, and take turns; times are the
fastest of the rounds. Outputs are compared first.
"""

import argparse
import json
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.messages import EdgeTable, MessageOperator
from hpcgnn.nn import GraphView
from hpcgnn.nn.models.meshgraphnet import Processor
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import make_exchange
from hpcgnn.trace import TraceRecorder


def grid_edges(side: int) -> np.ndarray:
    """Return (2, E) sources and targets of a cube of nodes, targets rising."""
    number = np.arange(side**3).reshape(side, side, side)
    pairs = []
    for axis in range(3):
        low, high = (np.moveaxis(number, axis, 0)[part] for part in (slice(-1), slice(1, None)))
        pairs += [[low.ravel(), high.ravel()], [high.ravel(), low.ravel()]]
    ends = np.concatenate(pairs, axis=1)
    return ends[:, np.argsort(ends[1], kind="stable")]


def edge_inputs(grid: ProcessGrid, ends: np.ndarray, num_nodes: int) -> EdgeInputs:
    """Return the edges as our layers take them."""
    row_map, trace = RowMap(np.array([0, num_nodes]), 0), TraceRecorder.off()
    indptr = np.searchsorted(ends[1], np.arange(num_nodes + 1))
    table = EdgeTable(np.empty((ends.shape[1], 0), np.float32))
    matrix = DistCSR.from_rows(row_map, indptr, ends[0], table.numbers)
    exchange = make_exchange("aware", grid, matrix, trace)
    return EdgeInputs(MessageOperator(grid, matrix, exchange, trace, table))


def plain_block(layer: Processor, width: int) -> nn.Module:
    """Return the same block as torch-geometric's users write it."""

    class Plain(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="sum")
            maps = [nn.Linear(3 * width, width), *layer.edges.rest.maps]
            maps[0].load_state_dict(layer.edges.first.state_dict())
            self.edge = chain(maps, layer.edges.rest.norm)
            self.node = chain(list(layer.nodes.maps), layer.nodes.norm)

        def forward(self, x: Tensor, index: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
            states = self.edge_updater(index, x=x, states=states)
            summed = self.propagate(index, states=states, size=(len(x), len(x)))
            return x + self.node(torch.cat([x, summed], dim=1)), states

        def edge_update(self, x_i: Tensor, x_j: Tensor, states: Tensor) -> Tensor:
            return states + self.edge(torch.cat([x_i, x_j, states], dim=1))

        def message(self, states: Tensor) -> Tensor:
            return states

    return Plain()


def chain(maps: list[nn.Module], norm: nn.Module) -> nn.Sequential:
    """Return maps with rectifiers between, and the norm."""
    between = [each for linear in maps for each in (nn.ReLU(), linear)][1:]
    return nn.Sequential(*between, norm)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("side", 20), ("width", 128), ("blocks", 3), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    num_nodes, width = options.side**3, options.width
    ends = grid_edges(options.side)
    layers = nn.ModuleList(Processor(width, 3, "relu") for _ in range(options.blocks))
    others = nn.ModuleList(plain_block(layer, width) for layer in layers)
    x, states = torch.randn(num_nodes, width), torch.randn(ends.shape[1], width)
    index = torch.from_numpy(ends)
    with ProcessGrid.of_this_process() as grid:
        operators = {Aggregation.MESSAGES: edge_inputs(grid, ends, num_nodes).operator}
        view = GraphView(operators, np.arange(num_nodes), grid.sum_over_blocks).layer(0)

        def ours() -> Tensor:
            rows, now = x, states
            for layer in layers:
                rows, now = layer(view, rows, now)
            return rows

        def plain() -> Tensor:
            rows, now = x, states
            for other in others:
                rows, now = other(rows, index, now)
            return rows

        ways = {"ours": ours, "plain": plain}
        with torch.no_grad():
            torch.testing.assert_close(ours(), plain(), rtol=1e-4, atol=1e-4)
        fastest = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for name, way in ways.items():
                start = time.perf_counter()
                way().sum().backward()
                fastest[name] = min(fastest[name], time.perf_counter() - start)
    found = {
        "nodes": num_nodes,
        "edges": ends.shape[1],
        "seconds": fastest,
        "speedup": fastest["plain"] / fastest["ours"],
    }
    print(json.dumps(found) if options.json else found)


if __name__ == "__main__":
    main()
