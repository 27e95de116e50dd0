"""Batches of whole graphs from a store of many, as a function of seed and epoch.

The loss of a step is the mean over its graphs. Models are evaluated on the whole store, in which a
graph may lie on several ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.comm import redistribute, share_on_hosts
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.sampling import Subgraph, induce
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons
from hpcgnn.train.objectives.nodes import NodeObjective
from hpcgnn.train.sampled.graph import HomeRows, between, home_rows, share_whole
from hpcgnn.train.sampled.input import StepInput
from hpcgnn.train.sampled.part import fetch_part
from hpcgnn.train.sampled.source import (
    SUBGRAPHS,
    DrawnSource,
    prepare_products,
)
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.train.sources.source import StepData
from hpcgnn.typing import GlobalIndices


class GraphBatches(StepInput):
    """Gives each rank its graphs of every batch.

    All hosts hold the training graphs, and a batch is cut evenly. With
    ``sampling.topology=partitioned``, each rank instead holds a range of the graphs, and takes
    those of a batch that are in it. The labels of the `home` rows are the ids of the nodes' graphs.

    `ids` (g,) int64 ascending and `labels` (g,) int64, or (g, C) in the training dtype, are those
    of the training graphs of all ranks.
    """

    @collective
    def __init__(
        self,
        context: Context,
        home: HomeRows,
        ids: GlobalIndices,
        labels: Tensor,
        aggregations: tuple[Aggregation, ...],
    ) -> None:
        self._ids, self._labels = ids, labels
        grid, config = context.grid, context.config
        home = between(grid, home, home.trained)
        cuts = np.arange(grid.num_blocks + 1) * len(ids) // grid.num_blocks
        self._own: range | None = None
        if config.sampling.topology == "partitioned":
            self._own = range(int(cuts[grid.block]), int(cuts[grid.block + 1]))
            positions = np.searchsorted(ids, home.labels)
            owners = np.searchsorted(cuts[1:], positions, side="right").astype(np.int32)
            rows = np.arange(home.row_map.start, home.row_map.stop, dtype=np.int64)
            # Rows are received in the order of ranks, so they ascend.
            (part,) = redistribute(grid.layer, owners, rows)
            held, self.moved_rows = fetch_part(grid, home, part, 0)
        else:
            held, self.moved_rows = share_whole(grid, home), 0
        self.views = SampledViews(context, held, aggregations)
        self._graph = held
        # The nodes, grouped by graph.
        numbers = held.labels.numpy()
        self._nodes = np.argsort(numbers, kind="stable").astype(np.int32)
        ends = np.searchsorted(numbers[self._nodes], ids, side="right")
        self._starts = np.concatenate([[0], ends])
        size = config.graphs.batch or len(ids)
        self._size = min(size, len(ids))
        self.num_steps = -(-len(ids) // self._size)

    @override
    def details(self) -> dict[str, int]:
        sizes = {"batch_graph_bytes": self._graph.nbytes, "batch_graph_rows": self.moved_rows}
        return {**super().details(), **sizes}

    @override
    def describe(self) -> dict[str, Any]:
        return {"steps_per_epoch": self.num_steps, "graphs_per_step": self._size}

    @override
    def draw(self, seed: int, epoch: int) -> Iterator[tuple["_BatchOfGraphs", Subgraph]]:
        order = np.random.default_rng([seed, epoch]).permutation(len(self._ids))
        batches = [self._batch(order, step, (seed, epoch)) for step in range(self.num_steps)]
        return zip(batches, self.make_ahead(self._induce, batches), strict=True)

    def _batch(self, order: GlobalIndices, step: int, seeds: tuple[int, int]) -> "_BatchOfGraphs":
        positions = order[step * self._size : (step + 1) * self._size]
        grid = self.views.context.grid
        if self._own is None:
            own_positions = np.array_split(positions, grid.num_blocks)[grid.block]
        else:
            own_positions = positions[(positions >= self._own.start) & (positions < self._own.stop)]
        return _BatchOfGraphs(np.sort(own_positions), len(positions), seeds)

    def _induce(self, batch: "_BatchOfGraphs") -> Subgraph:
        pieces = [self._nodes[self._starts[i] : self._starts[i + 1]] for i in batch.positions]
        nodes = np.sort(np.concatenate([np.zeros(0, np.int32), *pieces]))
        return Subgraph(0, nodes, induce(self._graph.edges, nodes), None, None)

    @override
    def prepare(self, drawn: tuple["_BatchOfGraphs", Subgraph]) -> StepData:
        batch, subgraph = drawn
        graph = self.views.of_graphs(subgraph, self._graph.labels.numpy()[subgraph.nodes])
        labels = self._labels[torch.from_numpy(batch.positions)]
        features = self.views.features(subgraph.nodes, batch.seeds)
        put = self.views.context.device.put
        return StepData(graph, features, put(labels), batch.size)


@dataclass(frozen=True, eq=False)
class _BatchOfGraphs:
    """A rank's graphs of a batch, as positions among the training graphs, and the batch's size."""

    positions: GlobalIndices
    size: int
    seeds: tuple[int, int]


class BatchSource(DrawnSource):
    """Makes steps of batches of whole graphs; an epoch's batches depend only on seed and epoch."""

    lacks: ClassVar[Reasons] = SUBGRAPHS

    @collective
    def __init__(self, context: Context, objective: NodeObjective, rows: LocalRows | None) -> None:
        graph, labelled = objective.graph, objective.examples
        assert rows is not None
        assert graph.node_graph is not None
        prepare_products(context, objective)
        # The "labels" of nodes are their graphs; no sampler walks the edges.
        home = home_rows(graph, rows, graph.node_graph, graph.nodes_of(labelled.trains))
        home = replace(home, walked=home.edges)
        with context.trace.span("read.whole"):
            rows_here = labelled.train_rows.cpu().numpy()
            ids = share_on_hosts(graph.grid, "graphs.ids", graph.ids[rows_here])
            labels_here = labelled.labels.cpu().numpy()[rows_here]
            labels = torch.from_numpy(share_on_hosts(graph.grid, "graphs.labels", labels_here))
            aggregations = on_graph(context.required_aggregations, directed=graph.facts.directed)
            batches = GraphBatches(context, home, ids, labels, aggregations)
        super().__init__(context, batches, batches.describe())
