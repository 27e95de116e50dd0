"""Models with messages of edges, in float64 by sums over lists of edges."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcgnn.autograd import DropoutKey, dropout
from hpcgnn.nn import Model
from tests.support.dense_graph import Dense

ACTIVATIONS = {"relu": functional.relu, "elu": functional.elu, "gelu": functional.gelu}
SMALLEST_VARIANCE = 1e-5


def ends_and_states(graph: Dense, x: Tensor, states: Tensor) -> Tensor:
    """Return ``[x_i, x_j, e_ij]`` of each edge from j to i."""
    assert graph.edges is not None
    return torch.cat([x[graph.edges.targets], x[graph.edges.sources], states], dim=1)


def gine_layer(layer: Any, graph: Dense, x: Tensor) -> Tensor:
    edges: Any = graph.edges
    messages = functional.relu(x[edges.sources] + mapped(layer.edges, edges.features))
    inner = (1 + layer.epsilon) * x + edges.added(messages, len(x))
    return mapped(layer.second, functional.relu(mapped(layer.first, inner)))


def nnconv_layer(layer: Any, graph: Dense, x: Tensor) -> Tensor:
    edges: Any = graph.edges
    inner = functional.relu(mapped(layer.messages.first, edges.features))
    matrices = mapped(layer.messages.second, inner).unflatten(1, layer.messages.shape)
    messages = torch.einsum("ei,eio->eo", x[edges.sources], matrices)
    return mapped(layer.own, x) + edges.means(messages, len(x))


def pna_layer(layer: Any, graph: Dense, x: Tensor) -> Tensor:
    edges: Any = graph.edges
    rows = graph.rows_after(0) if graph.degree_rows is None else graph.degree_rows
    messages = mapped(layer.messages.first, ends_and_states(graph, x, edges.features))
    mean = edges.means(messages, len(x))
    places = edges.targets[:, None].expand_as(messages)
    ends = [
        torch.zeros_like(x).scatter_reduce(0, places, messages, how, include_self=False)
        for how in ("amin", "amax")
    ]
    variance = edges.means((messages - mean[edges.targets]) ** 2, len(x))
    varies = variance > SMALLEST_VARIANCE
    deviation = torch.where(varies, torch.where(varies, variance, 1.0).sqrt(), 0.0)
    found = torch.cat([mean, *ends, deviation], dim=1)
    degrees = torch.bincount(edges.targets, minlength=len(x))[:, None].to(x.dtype)
    logs = torch.log1p(degrees)
    average = logs[rows].mean().expand(len(x), 1)
    if graph.graphs is not None:
        average = torch.cat([logs[graph.graphs == number].mean(0) for number in graph.graphs])
        average = average[:, None]
    # If no counted row has an edge, other rows have no scale either.
    scale = torch.where(average > 0, logs / average, 0.0)
    inverse = average / torch.log1p(degrees.clamp(min=1))
    return mapped(layer.out, torch.cat([x, found, scale * found, inverse * found], dim=1))


def mapped(linear: Any, rows: Tensor) -> Tensor:
    return rows @ linear.weight.T + linear.bias


def perceptron(module: Any, rows: Tensor, activation: str, first: Any = None) -> Tensor:
    """Return the result of a perceptron, after a linear map `first` if there is one."""
    for number, linear in enumerate([*([] if first is None else [first]), *module.maps]):
        rows = mapped(linear, ACTIVATIONS[activation](rows) if number else rows)
    return rows if module.norm is None else layer_norm(module.norm, rows)


def layer_norm(norm: nn.LayerNorm, rows: Tensor) -> Tensor:
    away = rows - rows.mean(1, keepdim=True)
    return away / (away.square().mean(1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def processor(
    layer: Any, graph: Dense, x: Tensor, states: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    edges: Any = graph.edges
    joined = ends_and_states(graph, x, states)
    states = states + perceptron(layer.edges.rest, joined, activation, layer.edges.first)
    inner = torch.cat([x, edges.added(states, len(x))], dim=1)
    return x + perceptron(layer.nodes, inner, activation), states


def gated(
    layer: Any, graph: Dense, x: Tensor, states: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    edges: Any = graph.edges
    activate = ACTIVATIONS[activation]
    inner = mapped(layer.edges.first, ends_and_states(graph, x, states))
    gate, value = torch.sigmoid(inner), mapped(layer.edges.value, x)[edges.sources]
    passed = edges.added(gate * value, len(x)) / (edges.added(gate, len(x)) + 1e-6)
    rows = x + activate(layer_norm(layer.norm, mapped(layer.own, x) + passed))
    return rows, states + activate(layer_norm(layer.edges.norm, inner))


def edge_state_outputs(
    name: str, model: Model, graph: Dense, x: Tensor, key: DropoutKey | None
) -> tuple[Tensor, Tensor]:
    """Return the logits of a model with edge states, between maps of all features.

    Those of nodes come first, then those of edges.
    """
    body: Any = model
    activation, ids = model.shape.activation, graph.node_ids
    draws = [None if key is None else key.at(place) for place in range(len(body.layers) + 2)]
    through, layer_of = mapped, gated
    if name == "meshgraphnet":
        through, layer_of = partial(perceptron, activation=activation), processor
    x = through(body.input, dropout(x, ids, draws[0], model.shape.input_dropout))
    assert graph.edges is not None
    states = through(body.edge_input, graph.edges.features)
    for place, layer in enumerate(body.layers, 1):
        x = dropout(x, ids, draws[place], model.shape.dropout)
        x, states = layer_of(layer, graph, x, states, activation)
    x = dropout(x, ids, draws[-1], model.shape.dropout)
    nodes, edges = x[:, :0], states[:, :0]
    if model.shape.num_classes:
        nodes = through(body.output, x)
    if model.shape.num_edge_outputs:
        edges = through(body.edge_output, states)
    return nodes, edges


def edge_state_logits(
    name: str, model: Model, graph: Dense, x: Tensor, key: DropoutKey | None
) -> Tensor:
    """Return the logits of nodes."""
    return edge_state_outputs(name, model, graph, x, key)[0]


LAYERS = {"gine": gine_layer, "nnconv": nnconv_layer, "pna": pna_layer}
BODIES = {name: partial(edge_state_logits, name) for name in ("meshgraphnet", "gatedgcn")}
