"""Batches of whole graphs, of a store of many: what a step has is a function of seed and epoch.

The loss of a step is the mean over its graphs. Models are judged over the whole store, whose graphs
may lie on several ranks each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import ProcessGrid, RowRequest, redistribute, share_on_hosts
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalGraph, LocalRows
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.sampling import Subgraph, induce
from hpcgnn.spmd import collective
from hpcgnn.storage import row_positions
from hpcgnn.support import Reasons
from hpcgnn.train.objectives.nodes import NodeObjective
from hpcgnn.train.sampled.graph import HomeRows, between, home_rows, number_chosen, share_whole
from hpcgnn.train.sampled.input import StepInput
from hpcgnn.train.sampled.part import fetch_part
from hpcgnn.train.sampled.source import (
    SUBGRAPHS,
    DrawnSource,
    prepare_products,
)
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.train.sources.source import StepData
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask, Offsets


@dataclass(frozen=True, eq=False)
class BatchEdges:
    """The edges of the graphs that a rank holds for its batches, target after target.

    The edges of a node begin at `starts` (n + 1,) in `order` (E,) int64, places of edges in the
    arrays: `sources` (E,) int64 nodes and `features` (E, F) in the training dtype.
    """

    starts: Offsets
    order: GlobalIndices
    sources: GlobalIndices
    features: FloatArray

    @classmethod
    @collective
    def share(
        cls, grid: ProcessGrid, edges: EdgeInputs, chosen: Mask, part: GlobalIndices | None
    ) -> "BatchEdges":
        """Bring the edges of the nodes of all ranks together.

        `chosen` (num_local,) says which of these are held by someone; they are numbered among
        themselves. `part` (n,) int64 are rising numbers of those that this rank holds; None: every
        host all.
        """
        starts, numbers = number_chosen(grid, chosen)
        sources = edges.request.rows(numbers)[edges.sources.cpu().numpy()]
        targets = numbers[edges.targets.cpu().numpy()]
        kept = targets >= 0
        columns = [sources[kept], targets[kept], edges.features.cpu().numpy()[kept]]
        if part is None:
            names = ("sources", "targets", "features")
            columns = [
                share_on_hosts(grid, f"graphs.edges.{name}", each)
                for name, each in zip(names, columns, strict=True)
            ]
            num_nodes = int(starts[-1])
        else:
            holders = np.empty(int(starts[-1]), np.int32)
            for rank, rows in enumerate(grid.layer.allgather(part)):
                holders[rows] = rank
            sources, targets, features = redistribute(grid.layer, holders[columns[1]], *columns)
            columns = [np.searchsorted(part, sources), np.searchsorted(part, targets), features]
            num_nodes = len(part)
        order = np.argsort(columns[1], kind="stable")
        ends = np.searchsorted(columns[1][order], np.arange(num_nodes + 1))
        return cls(ends, order, columns[0], columns[2])

    def of_nodes(self, context: Context, nodes: LocalIndices) -> EdgeInputs:
        """Return the edges of some nodes (int32, rising), which have those of whole graphs."""
        chosen = self.order[row_positions(self.starts, nodes)]
        lengths = self.starts[nodes + 1] - self.starts[nodes]
        count, put = len(nodes), context.device.tensor
        mine = np.zeros(count, np.int32)
        own = np.arange(count, dtype=np.int32)
        return EdgeInputs(
            # All rows are here: nothing is asked for, and nobody told.
            request=RowRequest(context.grid.alone().layer, mine, own, mine, count),
            sources=put(np.searchsorted(nodes, self.sources[chosen])),
            targets=put(np.repeat(np.arange(count), lengths)),
            features=context.device.put(torch.from_numpy(self.features[chosen])),
            num_targets=count,
            trace=context.trace,
        )


@dataclass(frozen=True, eq=False)
class TrainGraphs:
    """The graphs to train on: of all ranks, in the order of their numbers, on every host.

    `ids` are (g,) int64 rising, `labels` (g,) int64 or (g, C) in the training dtype.
    """

    ids: GlobalIndices
    labels: Tensor

    @classmethod
    @collective
    def share(cls, graph: LocalGraph, labels: Tensor, rows: Array) -> "TrainGraphs":
        """Bring those of all ranks together: the `rows` of each, with labels on the CPU."""
        grid = graph.grid
        ids = share_on_hosts(grid, "graphs.ids", graph.ids[rows])
        shared = share_on_hosts(grid, "graphs.labels", labels.numpy()[rows])
        return cls(ids, torch.from_numpy(shared))


class GraphBatches(StepInput):
    """Gives each rank its graphs of every batch.

    All hosts hold the graphs that are trained on, and a batch is cut evenly; or, with
    ``sampling.topology=partitioned``, each rank holds a range of them and has those of a batch that
    fall into it. The labels of the `home` rows are the numbers of the nodes' graphs; `edges` have
    features, and are None where the model reads none.
    """

    @collective
    def __init__(
        self,
        context: Context,
        home: HomeRows,
        trained: TrainGraphs,
        wanted: tuple[Aggregation, ...],
        edges: EdgeInputs | None,
    ) -> None:
        self._trained = trained
        grid, config, chosen = context.grid, context.config, home.trained
        part: GlobalIndices | None = None
        home = between(grid, home, home.trained)
        cuts = np.arange(grid.num_blocks + 1) * len(trained.ids) // grid.num_blocks
        self._own: range | None = None
        if config.sampling.topology == "partitioned":
            self._own = range(int(cuts[grid.block]), int(cuts[grid.block + 1]))
            places = np.searchsorted(trained.ids, home.labels)
            owners = np.searchsorted(cuts[1:], places, side="right").astype(np.int32)
            rows = np.arange(home.row_map.start, home.row_map.stop, dtype=np.int64)
            # Rows rise with the ranks that had them.
            (part,) = redistribute(grid.layer, owners, rows)
            held, self.moved_rows = fetch_part(grid, home, part, 0)
        else:
            held, self.moved_rows = share_whole(grid, home), 0
        self._edges = None
        if edges is not None:
            self._edges = BatchEdges.share(grid, edges, chosen, part)
        self.views = SampledViews(context, held, wanted)
        self._graph = held
        # The nodes of each graph, one graph after the other.
        numbers = held.labels.numpy()
        self._nodes = np.argsort(numbers, kind="stable").astype(np.int32)
        ends = np.searchsorted(numbers[self._nodes], trained.ids, side="right")
        self._starts = np.concatenate([[0], ends])
        size = config.graphs.batch or len(trained.ids)
        self._size = min(size, len(trained.ids))
        self.num_steps = -(-len(trained.ids) // self._size)

    @override
    def details(self) -> dict[str, int]:
        sizes = {"batch_graph_bytes": self._graph.nbytes, "batch_graph_rows": self.moved_rows}
        return {**super().details(), **sizes}

    def describe(self) -> dict[str, Any]:
        """Return the steps of an epoch, and the graphs of a step."""
        return {"steps_per_epoch": self.num_steps, "graphs_per_step": self._size}

    def draw(self, seed: int, epoch: int) -> Iterator[tuple["_BatchOfGraphs", Subgraph]]:
        """Yield this rank's graphs of each batch, and the graph of their nodes."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self._trained.ids))
        batches = [self._batch(order, step) for step in range(self.num_steps)]
        return zip(batches, self.make_ahead(self._induce, batches), strict=True)

    def _batch(self, order: GlobalIndices, step: int) -> "_BatchOfGraphs":
        places = order[step * self._size : (step + 1) * self._size]
        grid = self.views.context.grid
        if self._own is None:
            mine = np.array_split(places, grid.num_blocks)[grid.block]
        else:
            mine = places[(places >= self._own.start) & (places < self._own.stop)]
        return _BatchOfGraphs(np.sort(mine), len(places))

    def _induce(self, batch: "_BatchOfGraphs") -> Subgraph:
        pieces = [self._nodes[self._starts[i] : self._starts[i + 1]] for i in batch.places]
        nodes = np.sort(np.concatenate([np.zeros(0, np.int32), *pieces]))
        return Subgraph(0, nodes, induce(self._graph.edges, nodes), None, None)

    def prepare(self, drawn: tuple["_BatchOfGraphs", Subgraph]) -> StepData:
        """Return what the model needs of graphs."""
        batch, subgraph = drawn
        graph = self.views.of_graphs(subgraph, self._graph.labels.numpy()[subgraph.nodes])
        if self._edges is not None:
            inputs = self._edges.of_nodes(self.views.context, subgraph.nodes)
            graph = replace(graph, edges=inputs)
        labels = self._trained.labels[torch.from_numpy(batch.places)]
        features, put = self.views.features(subgraph.nodes), self.views.context.device.put
        return StepData(graph, features, put(labels), batch.size)


@dataclass(frozen=True, eq=False)
class _BatchOfGraphs:
    """The places of a rank's graphs of a batch among those trained on, and the batch's size."""

    places: GlobalIndices
    size: int


class BatchSource(DrawnSource):
    """The same batches of each epoch of a seed, whatever came before."""

    lacks: ClassVar[Reasons] = SUBGRAPHS

    @collective
    def __init__(self, context: Context, objective: NodeObjective, rows: LocalRows | None) -> None:
        graph, labelled = objective.graph, objective.examples
        assert rows is not None
        assert graph.node_graph is not None
        prepare_products(context, objective)
        # Nodes are distinguished by their graphs; there are no random walks.
        home = home_rows(graph, rows, graph.node_graph, graph.nodes_of(labelled.trains))
        home = replace(home, walked=home.edges)
        with context.trace.span("read.whole"):
            of_graphs = labelled.train_rows.cpu().numpy()
            trained = TrainGraphs.share(graph, labelled.labels.cpu(), of_graphs)
            wanted = on_graph(context.wanted, directed=graph.facts.directed)
            batches = GraphBatches(context, home, trained, wanted, graph.view.edges)
        super().__init__(context, batches, batches.describe())
