"""Batches of whole graphs: which graphs a step has is a function of seed and epoch alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import redistribute, share_on_hosts
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.operator import Aggregation
from hpcgnn.sampling import Subgraph, induce
from hpcgnn.spmd import collective
from hpcgnn.train.graphs.edges import BatchEdges
from hpcgnn.train.sampled.graph import HomeRows, between, share_whole
from hpcgnn.train.sampled.input import StepInput
from hpcgnn.train.sampled.part import fetch_part
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.train.sources.examples import StepData
from hpcgnn.typing import Array, GlobalIndices


@dataclass(frozen=True, eq=False)
class TrainGraphs:
    """The graphs to train on: of all ranks, in the order of their numbers, on every host.

    Parameters
    ----------
    ids
        (g,) int64 rising.
    labels
        (g,) int64 or (g, C) in the training dtype.
    """

    ids: GlobalIndices
    labels: Tensor

    @classmethod
    @collective
    def share(cls, graph: LocalGraph, labels: Tensor, rows: Array) -> "TrainGraphs":
        """Bring those of all ranks together.

        Parameters
        ----------
        labels, rows
            Of the graphs that it owns, on the CPU, and which of them are trained on.
        """
        grid = graph.grid
        ids = share_on_hosts(grid, "graphs.ids", graph.ids[rows])
        shared = share_on_hosts(grid, "graphs.labels", labels.numpy()[rows])
        return cls(ids, torch.from_numpy(shared))


class GraphBatches(StepInput):
    """Gives each rank its graphs of every batch.

    All hosts hold the graphs that are trained on, and a batch is cut evenly; or, with
    ``sampling.topology=partitioned``, each rank holds a range of them and has those of a batch that
    fall into it.

    Parameters
    ----------
    home
        The rows of this rank; their labels are the numbers of the nodes' graphs.
    edges
        Of this rank's nodes, with features, where the model reads these.
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

    @property
    def details(self) -> dict[str, int]:
        """Sizes of what this rank holds for its batches."""
        return {"batch_graph_bytes": self._graph.nbytes, "batch_graph_rows": self.moved_rows}

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
        graph = self.views.of_graphs(subgraph, self._graph.labels.numpy()[subgraph.nodes]).graph
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
