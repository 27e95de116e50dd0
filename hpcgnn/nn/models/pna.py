"""PNA: principal neighbourhood aggregation (Corso et al., NeurIPS 2020)."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import GraphSums, mean_of_graphs, moments, rows_at_nodes, widened
from hpcgnn.nn.edge_linear import EdgeLinear, EdgePerceptron
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.map_then_aggregate import dense_rows
from hpcgnn.nn.model import LayerView, ModelShape
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING

REDUCE = ("mean", "min", "max", "std")


class PNALayer(nn.Module):
    """``U [x_i, m_i, s_i m_i, m_i / s_i] + c`` with the scale s_i = log(1 + d_i) over its mean.

    m_i are the mean, minimum, maximum and standard deviation of messages
    ``W [x_i, x_j, e_ij] + b``; d_i is the in-degree. The mean is over the nodes of the current
    graph, or of each of several graphs. If edges are sampled, both are of the whole graph.
    """

    def __init__(self, in_width: int, out_width: int, num_edge_features: int) -> None:
        super().__init__()
        self.messages = EdgePerceptron(EdgeLinear(in_width, in_width, num_edge_features, in_width))
        self.out = Linear((3 * len(REDUCE) + 1) * in_width, out_width)

    @collective
    def forward(self, view: LayerView, x: Tensor) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        x = dense_rows(x)
        edges, own = view.edges, view.own(x)
        states = edges.stored if edges.stored.shape[1] else None
        reduced, _ = self.messages.reduced(edges, own, x, states, *REDUCE)
        traits = view.own_traits
        counted = edges.degrees if traits.degrees is None else traits.degrees
        degrees = counted.to(widened(x[:0]).dtype)[:, None]
        # torch's log1p gives other bits at the end of an array; log does not.
        logs = torch.log(degrees + 1)
        if isinstance(view.sums, GraphSums):
            # What is computed of a graph must not depend on the graphs beside it.
            graphs = view.sums.graphs
            mean = rows_at_nodes(mean_of_graphs(logs, graphs), graphs)
        elif traits.mean_log_degree is not None:
            mean = traits.mean_log_degree.to(logs.dtype)
        else:
            mean, _, _ = moments(logs, view.sums)
        # As in PyG, a node without edges is attenuated like one with one edge. If the graph has no
        # edges, there is nothing to scale.
        scale = (logs / torch.where(mean == 0, 1, mean)).to(x.dtype)
        inverse = (mean / torch.log(degrees.clamp(min=1) + 1)).to(x.dtype)
        return self.out(torch.cat([own, reduced, scale * reduced, inverse * reduced], dim=1))


class PNA(LayeredModel):
    """PNA of any depth."""

    aggregations = (Aggregation.MESSAGES,)
    lacks = NOTHING
    takes_sparse = maps_own_rows = True
    averages_rows = True
    shift = "out.bias"

    @classmethod
    @override
    def aggregations_after_norms(cls, shape: ModelShape) -> int:
        # Every layer reads the mean over all nodes.
        return 0

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> PNALayer:
        return PNALayer(in_width, out_width, self.shape.num_edge_features)
