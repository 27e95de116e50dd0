"""Layered models whose layers compute messages of edges."""

from abc import abstractmethod

from torch import nn
from typing_extensions import override

from hpcgnn.nn.layered import LayeredModel
from hpcgnn.operator import Aggregation


class EdgeLayeredModel(LayeredModel):
    """Layers that map a node's own row beside the messages of its in-edges."""

    aggregations = (Aggregation.MESSAGES,)
    maps_own_rows = True

    @abstractmethod
    def edge_layer(self, in_width: int, out_width: int, num_edge_features: int) -> nn.Module:
        """Return a layer that reads so many columns of an edge's features; see `make_layer`."""

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> nn.Module:
        return self.edge_layer(in_width, out_width, self.shape.num_edge_features)
