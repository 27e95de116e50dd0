"""Features of the edges of batches of whole graphs, for models that read them."""

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import ProcessGrid, RowRequest, redistribute, share_on_hosts
from hpcgnn.graph.context import Context
from hpcgnn.partition import row_positions
from hpcgnn.spmd import collective
from hpcgnn.train.sampled.graph import number_chosen
from hpcgnn.typing import FloatArray, GlobalIndices, LocalIndices, Mask, Offsets


@dataclass(frozen=True, eq=False)
class BatchEdges:
    """The edges of the graphs that a rank holds for its batches, target after target.

    Parameters
    ----------
    starts
        (n + 1,) where the edges of each node begin in `order`.
    order
        (E,) int64 places of edges in the arrays.
    sources
        (E,) int64 nodes.
    features
        (E, F) in the training dtype.
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

        Parameters
        ----------
        chosen
            (num_local,) which of these are held by someone; they are numbered among themselves.
        part
            (n,) int64 rising numbers of the nodes that this rank holds; None: every host all.
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
