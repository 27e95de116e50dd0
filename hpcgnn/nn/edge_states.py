"""Models that pass states of edges from layer to layer beside the rows of nodes."""

from abc import abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import DropoutKey, Step, run_steps, widened
from hpcgnn.nn.edge_linear import EdgeNetwork
from hpcgnn.nn.equal_width import EqualWidthModel
from hpcgnn.nn.model import GraphView, LayerView, ModelShape
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective


class EdgeStateLayer(nn.Module):
    """A layer whose messages update the states of edges, and whose nodes are updated by their sums.

    Subclasses set `edges`, the network of messages.
    """

    edges: EdgeNetwork

    @abstractmethod
    def updated(self, own: Tensor, summed: Tensor) -> Tensor:
        """Return the new rows (N, width) of nodes, given their own rows and sums of messages."""

    @collective
    def forward(self, view: LayerView, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new rows (output rows, width) and states (E, width)."""
        own = view.own(x)
        summed, new = self.edges.reduced(view.edges, own, x, states, "sum")
        assert new is not None
        return self.updated(own, summed), new


class EdgeStateModel(EqualWidthModel):
    """A model whose layers update rows of nodes and states of edges.

    States start as a map of the edges' features; they belong to the owners of the edges' targets.
    """

    aggregations = (Aggregation.MESSAGES,)
    options = frozenset({"activation"})
    activates_layers = activates_input = False
    has_edge_states = True

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        self.edge_input = self.make_map(shape.num_edge_features, shape.hidden)
        self.edge_output = self.make_output(shape.num_edge_outputs)

    @collective
    @override
    def with_edges(
        self, graph: GraphView, x: Any, key: DropoutKey | None
    ) -> tuple[Tensor, Tensor | None]:
        if not self.shape.num_edge_outputs:
            return super().with_edges(graph, x, key)
        hidden, (edges, states) = self.run(graph, x, key)
        of_edges = widened(self.edge_output(states))
        return self.outputs(graph, hidden, key), edges.in_store_order(of_edges)

    @collective
    @override
    def first_carried(self, view: LayerView, first: Tensor) -> Any:
        return view.edges, self.edge_input(view.edges.stored.to(first.dtype))

    @collective
    @override
    def run_layers(
        self, indices: range, graph: GraphView, h_NH: Tensor, carried: Any, key: DropoutKey | None
    ) -> tuple[Tensor, Any]:
        # States of all edges are large: to save memory, keep few of them for the backward pass.
        operator = graph.layer(0).edges.operator
        if not (torch.is_grad_enabled() and operator.states_again):
            return super().run_layers(indices, graph, h_NH, carried, key)
        edges = [graph.layer(index).edges for index in indices]

        def run(number: int, rows: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
            current, following = edges[number], edges[min(number + 1, len(edges) - 1)]
            layer = range(indices.start + number, indices.start + number + 1)
            rows, (_, states) = super(EdgeStateModel, self).run_layers(
                layer, graph, rows, (current, states), key
            )
            # Keep only the states of edges that the next layer has.
            return rows, following.carry(current, states)

        steps = [Step(partial(run, n), self.layers[index]) for n, index in enumerate(indices)]
        before, states = carried
        inputs = h_NH, edges[0].carry(before, states)
        h_NH, states = run_steps(steps, inputs, operator.run_position)
        return h_NH, (edges[-1], states)

    @collective
    @override
    def run_layer(
        self, index: int, view: LayerView, x: Tensor, carried: Any, draw: DropoutKey | None
    ) -> tuple[Tensor, Any]:
        before, states = carried
        rows, states = self.layers[index](view, x, view.edges.carry(before, states))
        return rows, (view.edges, states)
