"""The cost of planning: seconds of everything that training builds before its first epoch.

For each exchange the graph's products are built as in ``hpcgnn.train`` for a GCN of 2 layers and
width 16: the plan of all ghosts, the scaled matrices, the exchange and its halves, the same on the
active sets of 60 % training nodes, and the transposes that the first epoch builds. The seconds are
compared with an epoch of that GCN on that graph: planning should cost a handful of epochs.
"""

import statistics
import time
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import Communicator, ProcessGrid
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.operators import Adjacency, make_operators
from hpcgnn.nn import (
    GraphView,
    ModelShape,
    NodeModel,
    make_model,
)
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import DistCSR
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.gradients import sum_gradients

__all__ = ["plan_costs"]

NUM_LAYERS, HIDDEN, NUM_FEATURES, NUM_CLASSES = 2, 16, 64, 16
TRAINING_SHARE = 0.6


def plan_costs(
    grid: ProcessGrid, pattern: DistCSR, exchange: str, wire: str, epochs: int
) -> dict[str, Any]:
    """Return the slowest rank's seconds of planning by part, and of an epoch; collective."""
    clock = _Clock(grid.world)
    trace = TraceRecorder.off()
    rng = np.random.default_rng(grid.block)
    num_nodes = pattern.row_map.num_local
    node_ids = np.arange(num_nodes, dtype=np.int64) + pattern.row_map.start
    training = rng.random(num_nodes) < TRAINING_SHARE
    config = ExchangeConfig(method=exchange, wire=wire, replication=grid.replication)
    _load_torch()
    clock.start()
    wanted = (Aggregation.SYMMETRIC,)
    make = make_operators(grid, config, trace)
    products = Adjacency(make, pattern, wanted, np.float32, node_ids).products()
    clock.stop("products_s")
    active = products.active_views(training, NUM_LAYERS)
    clock.stop("active_sets_s")
    view = GraphView(products.operators, node_ids, grid.sum_over_blocks, active=active.layers)
    features = torch.from_numpy(rng.random((num_nodes, NUM_FEATURES), np.float32))
    labels = torch.from_numpy(rng.integers(0, NUM_CLASSES, num_nodes))
    epoch = _Epoch(grid, view, features[active.inputs], labels[torch.from_numpy(training)])
    seconds = []
    for number in range(epochs + 1):
        clock.start()
        epoch.run(number)
        seconds.append(clock.stop("epoch_s"))
    steady = statistics.median(seconds[1:])
    parts = clock.seconds
    # The first epoch builds the transposes; its buffers cost page faults only.
    parts |= {"first_use_s": max(seconds[0] - steady, 0.0), "epoch_s": steady}
    plan = parts["products_s"] + parts["active_sets_s"] + parts["first_use_s"]
    return {**parts, "plan_s": plan, "plan_epochs": plan / steady}


def _load_torch() -> None:
    """Make torch load its libraries for backward passes and steps, which is not planning."""
    layer = torch.nn.Linear(1, 1)
    optimiser = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 1)).sum().backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


class _Clock:
    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.seconds: dict[str, float] = {}

    def start(self) -> None:
        self._comm.Barrier()
        self._began = time.perf_counter()

    def stop(self, name: str) -> float:
        slowest = max(self._comm.allgather(time.perf_counter() - self._began))
        self.seconds[name] = slowest
        self.start()
        return slowest


class _Epoch:
    """Full-graph training steps of the GCN."""

    def __init__(
        self, grid: ProcessGrid, view: GraphView, features: torch.Tensor, labels: torch.Tensor
    ) -> None:
        shape = ModelShape(
            num_features=NUM_FEATURES,
            num_classes=NUM_CLASSES,
            hidden=HIDDEN,
            num_layers=NUM_LAYERS,
            dropout=0.5,
            input_dropout=0.0,
            residual=False,
        )
        self._grid, self._view, self._features, self._labels = grid, view, features, labels
        self._model: NodeModel = make_model(
            "gcn", shape, directed=False, seed=1, dtype=torch.float32
        )
        self._optimiser = torch.optim.Adam(self._model.parameters())

    def run(self, number: int) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        logits = self._model(self._view, self._features, DropoutKey(1, number))
        cross_entropy(logits, self._labels, reduction="sum").backward()
        sum_gradients(self._grid, self._model.parameters())
        self._optimiser.step()
