"""Every model on one process with dense float64 matrices, written from the formulas."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcgnn.autograd import DropoutKey, dropout
from hpcgnn.nn import Model
from hpcgnn.nn.norm import EPSILON, BatchNorm, GraphNorm
from tests.support import dense_edges
from tests.support.dense_edges import ACTIVATIONS
from tests.support.dense_graph import Dense, DenseEdges, mean_of

__all__ = ["Dense", "DenseEdges", "logits", "mean_of"]

AMPLIFIED = Counter[nn.Module]()
"""For norms over nodes: sums over rows of the magnitudes in the gradients before them.

They cancel: in theory, the gradient of a shift before such a norm is 0, except for rounding. If
rows hardly differ, they are up to 1 / sqrt(EPSILON) times the gradients after the norm.
"""


def gcn_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    return graph.symmetric() @ (x @ layer.linear.weight.T) + layer.bias


def sage_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    out = layer.own(x)
    for a, weight in zip(graph.directions(), layer.neighbours, strict=True):
        out = out + mean_of(a) @ x @ weight.T
    if layer.edges is not None:
        out = out + graph.edges.means(graph.edges.features, len(x)) @ layer.edges.weight.T
    return out


def by_head(layer: nn.Module, graph: Dense, *, mean_loops: bool) -> Tensor | float:
    """Return (n, n, H, D) the mapped features of edges; 0 for a layer that does not read them."""
    if layer.edges is None:
        return 0.0
    mapped = graph.edge_features(mean_loops=mean_loops) @ layer.edges.weight.T
    return mapped.unflatten(2, (layer.heads, -1))


def gin_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    inner = ((1 + layer.epsilon) * x + graph.a @ x) @ layer.first.weight.T + layer.first.bias
    if graph.directed:
        inner = inner + graph.a.T @ x @ layer.reversed.weight.T
    return layer.second(inner.clamp(min=0))


def mixhop_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    power, parts = torch.eye(len(x), dtype=x.dtype), []
    for linear in layer.powers:
        parts.append(power @ x @ linear.weight.T)
        power = power @ graph.symmetric()
    return (sum(parts) if layer.summed else torch.cat(parts, 1)) + layer.bias


def gat_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    heads, width = layer.source.shape
    z = (x @ layer.linear.weight.T).view(-1, heads, width)
    source, target = (z * layer.source).sum(2), (z * layer.target).sum(2)
    sums = target[:, None] + source[None]
    if layer.edges is not None:
        sums = sums + (by_head(layer, graph, mean_loops=True) * layer.edge).sum(3)
    scores = functional.leaky_relu(sums, layer.slope)
    edges = (graph.a != 0) | torch.eye(len(x), dtype=torch.bool)
    weights = scores.masked_fill(~edges[:, :, None], -torch.inf).softmax(dim=1)
    out = torch.einsum("ijh,jhd->ihd", weights, z)
    return (out.mean(1) if layer.average else out.flatten(1)) + layer.bias


def rgcn_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    out = x @ layer.own.weight.T + layer.own.bias
    for number, relation in enumerate(graph.relations):
        weight = layer.matrices[number] if layer.coefficients is None else 0
        for base in range(0 if layer.coefficients is None else len(layer.matrices)):
            weight = weight + layer.coefficients[number, base] * layer.matrices[base]
        out = out + mean_of(relation) @ x @ weight
    return out


def rgat_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    out = layer.bias
    for number, relation in enumerate(graph.relations):
        z = torch.einsum("jf,hdf->jhd", x, layer.maps[:, number])
        source, target = ((z * each[:, number]).sum(2) for each in (layer.source, layer.target))
        scores = functional.leaky_relu(target[:, None] + source[None], 0.2)
        means = torch.einsum("ijh,jhd->ihd", masked_softmax(scores, relation != 0), z)
        out = out + (means.mean(1) if layer.average else means.flatten(1))
    return out


def gatv2_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    heads, width = layer.source.shape
    z = (x @ layer.linear.weight.T).view(-1, heads, width)
    target = (x @ layer.own.weight.T).view(-1, heads, width)
    inner = target[:, None] + z[None] + by_head(layer, graph, mean_loops=True)
    sums = functional.leaky_relu(inner, layer.slope)
    scores = torch.einsum("ijhd,hd->ijh", sums, layer.source)
    edges = (graph.a != 0) | torch.eye(len(x), dtype=torch.bool)
    weights = scores.masked_fill(~edges[:, :, None], -torch.inf).softmax(dim=1)
    out = torch.einsum("ijh,jhd->ihd", weights, z)
    return (out.mean(1) if layer.average else out.flatten(1)) + layer.bias


def transformer_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    pairs = layer.pairs(x).view(len(x), layer.heads, 2, -1)
    queries = layer.queries(x).view(len(x), layer.heads, -1)
    of_edges = by_head(layer, graph, mean_loops=False)
    keys, values = (pairs[None, :, :, number] + of_edges for number in range(2))
    keys, values = (each.expand(len(x), *each.shape[1:]) for each in (keys, values))
    scores = torch.einsum("ihd,ijhd->ijh", queries, keys) / queries.shape[2] ** 0.5
    weights = masked_softmax(scores, graph.a != 0)
    out = torch.einsum("ijh,ijhd->ihd", weights, values)
    out, own = out.mean(1) if layer.average else out.flatten(1), layer.own(x)
    if layer.gate is None:
        return out + own
    share = torch.sigmoid(layer.gate(torch.cat([out, own, out - own], 1)))
    return share * own + (1 - share) * out


def masked_softmax(scores: Tensor, edges: Tensor) -> Tensor:
    """Return the softmax over the second axis where edges are; zeros in rows without edges."""
    some = edges.any(1)[:, None, None]
    weights = scores.masked_fill(~edges[:, :, None] & some, -torch.inf).softmax(dim=1)
    return torch.where(some, weights, 0.0)


LAYERS: dict[str, Callable[[nn.Module, Dense, Tensor], Tensor]] = {
    "gcn": gcn_layer,
    "sage": sage_layer,
    "gat": gat_layer,
    "gatv2": gatv2_layer,
    "gin": gin_layer,
    "mixhop": mixhop_layer,
    "rgat": rgat_layer,
    "rgcn": rgcn_layer,
    "transformer": transformer_layer,
    **dense_edges.LAYERS,
}


def norm_rows(
    norm: nn.Module,
    x: Tensor,
    rows: Tensor,
    graphs: Tensor | None = None,
    *,
    training: bool = True,
) -> Tensor:
    """Return rows normalised with the statistics of some; graph norm uses the `graphs` (n,).

    A backward pass adds to `AMPLIFIED` the magnitudes to which the gradient is scaled.
    """
    if graphs is not None and isinstance(norm, GraphNorm):
        out = torch.zeros_like(x)
        for number in graphs[rows].unique():
            one = graphs == number
            out[one] = norm_rows(norm, x[one], rows[one])
        return out
    if isinstance(norm, BatchNorm):
        chosen = x[rows]
        mean, variance = chosen.mean(0), chosen.var(0, unbiased=False)
        if training:
            unbiased = variance * len(chosen) / max(len(chosen) - 1, 1)
            norm.running_mean.lerp_(mean.detach(), norm.momentum)
            norm.running_variance.lerp_(unbiased.detach(), norm.momentum)
        else:
            mean, variance = norm.running_mean, norm.running_variance
        centred = x - mean
    elif isinstance(norm, GraphNorm):
        mean = x[rows].mean(0) * norm.mean_share
        centred, variance = x - mean, (x[rows] - mean).square().mean(0)
    else:
        return functional.layer_norm(x, x.shape[1:], norm.weight, norm.bias, eps=EPSILON)
    factor = norm.weight / (variance + EPSILON).sqrt()
    out = centred * factor + norm.bias

    def count(gradient: Tensor) -> None:
        AMPLIFIED[norm] += float((gradient * factor.detach()).abs().sum(0).max())

    if out.requires_grad:
        out.register_hook(count)
    return out


def layered_logits(
    name: str, model: Model, graph: Dense, x: Tensor, key: DropoutKey | None
) -> Tensor:
    """Return the logits of all rows of a layered model in training."""
    shape, outputs = model.shape, []
    ids = graph.node_ids
    steps = type(model).steps_per_layer(shape)
    for place, layer in enumerate(model.layers):
        draw = None if key is None else key.at(place)
        x = dropout(x, ids, draw, shape.dropout_before(place))
        rows = graph.rows_after((place + 1) * steps)
        # Sets give a layer the rows of its result.
        out = LAYERS[name](layer, replace(graph, sets=(rows,)), x)
        if shape.residual and x.shape[1] == out.shape[1]:
            out = out + x
        elif str(place) in model.shortcuts:
            out = out + x @ model.shortcuts[str(place)].weight.T
        if place < shape.num_hidden_layers:
            if shape.norm != "none":
                out = norm_rows(
                    model.norms[place], out, rows, graph.graphs, training=key is not None
                )
            out = ACTIVATIONS[shape.activation](out)
            outputs.append(out)
        x = out
    if shape.jumping == "none":
        return x
    joined = torch.cat(outputs, 1) if shape.jumping == "concat" else torch.stack(outputs).amax(0)
    draw = None if key is None else key.at(shape.num_layers)
    return model.output(dropout(joined, ids, draw, shape.dropout))


def appnp_logits(model: Model, graph: Dense, x: Tensor, key: DropoutKey | None) -> Tensor:
    ids = graph.node_ids
    for place, linear in enumerate(model.layers):
        draw = None if key is None else key.at(place)
        x = linear(dropout(x, ids, draw, model.shape.dropout_before(place)))
        if place < len(model.layers) - 1:
            x = ACTIVATIONS[model.shape.activation](x)
    share, start = model.shape.teleport, x
    for _ in range(model.shape.hops or 10):
        x = (1 - share) * (graph.symmetric() @ x) + share * start
    return x


def gcnii_logits(model: Model, graph: Dense, x: Tensor, key: DropoutKey | None) -> Tensor:
    ids, shape = graph.node_ids, model.shape
    draws = [None if key is None else key.at(place) for place in range(shape.num_layers + 2)]
    activate, share = ACTIVATIONS[shape.activation], shape.teleport
    x = first = activate(model.input(dropout(x, ids, draws[0], shape.input_dropout)))
    for place, layer in enumerate(model.layers, 1):
        x = dropout(x, ids, draws[place], shape.dropout)
        x = (1 - share) * (graph.symmetric() @ x) + share * first
        strength = np.log(1 + shape.own.get("theta", 0.5) / place)
        x = (1 - strength) * x + strength * (x @ layer.linear.weight.T)
        if shape.norm != "none":
            rows = graph.rows_after(place)
            x = norm_rows(model.norms[place - 1], x, rows, graph.graphs, training=key is not None)
        x = activate(x)
    return model.output(dropout(x, ids, draws[-1], shape.dropout))


def sign_logits(model: Model, graph: Dense, x: Tensor, key: DropoutKey | None) -> Tensor:
    ids, shape = graph.node_ids, model.shape
    hops = shape.hops or 3
    draws = [None if key is None else key.at(place) for place in range(shape.num_layers + 1)]
    x = dropout(x, ids, draws[0], shape.input_dropout)
    powers = [x]
    for a in graph.directions():
        powers += [torch.linalg.matrix_power(mean_of(a), hop) @ x for hop in range(1, hops + 1)]
    x = torch.cat([one(each) for one, each in zip(model.branches, powers, strict=True)], 1)
    for place, linear in enumerate(model.layers):
        if shape.norm != "none":
            rows = graph.rows_after(hops)
            x = norm_rows(model.norms[place], x, rows, graph.graphs, training=key is not None)
        x = ACTIVATIONS[shape.activation](x)
        x = linear(dropout(x, ids, draws[place + 1], shape.dropout))
    return x


def by_type(maps: nn.Module, x: Tensor, types: Tensor) -> Tensor:
    return torch.stack(
        [maps.maps[kind](row[None])[0] for kind, row in zip(types.tolist(), x, strict=True)]
    )


def hgt_layer(layer: nn.Module, graph: Dense, x: Tensor) -> Tensor:
    types = torch.zeros(len(x), dtype=torch.int64) if graph.types is None else graph.types
    pairs = by_type(layer.pairs, x, types).view(len(x), layer.heads, 2, -1)
    queries = by_type(layer.queries, x, types).view(len(x), layer.heads, -1)
    scores, values = [], []
    for number in range(len(graph.relations)):
        keys = torch.einsum("jhd,hde->jhe", pairs[:, :, 0], layer.keys[number])
        products = torch.einsum("ihd,jhd->ijh", queries, keys) / queries.shape[2] ** 0.5
        scores.append(products * layer.priors[number])
        values.append(torch.einsum("jhd,hde->jhe", pairs[:, :, 1], layer.messages[number]))
    edges = torch.cat([each != 0 for each in graph.relations], 1)
    weights = masked_softmax(torch.cat(scores, 1), edges)
    found = torch.einsum("ijh,jhd->ihd", weights, torch.cat(values)).flatten(1)
    out = by_type(layer.out, functional.gelu(found), types)
    share = torch.sigmoid(layer.skip)[types][:, None]
    return share * out + (1 - share) * x


def hgt_logits(model: Model, graph: Dense, x: Tensor, key: DropoutKey | None) -> Tensor:
    ids, shape = graph.node_ids, model.shape
    draws = [None if key is None else key.at(place) for place in range(shape.num_layers + 2)]
    activate = ACTIVATIONS[shape.activation]
    x = activate(model.input(dropout(x, ids, draws[0], shape.input_dropout)))
    for place, layer in enumerate(model.layers, 1):
        x = hgt_layer(layer, graph, dropout(x, ids, draws[place], shape.dropout))
        if shape.norm != "none":
            rows = graph.rows_after(place)
            x = norm_rows(model.norms[place - 1], x, rows, graph.graphs, training=key is not None)
    return model.output(dropout(x, ids, draws[-1], shape.dropout))


BODIES = {
    "appnp": appnp_logits,
    "gcnii": gcnii_logits,
    "hgt": hgt_logits,
    "sign": sign_logits,
    **dense_edges.BODIES,
}


def logits(name: str, model: Model, graph: Dense, x: Tensor, key: DropoutKey | None) -> Tensor:
    """Return the logits of all rows in training; only those of the outputs have a meaning."""
    if name in BODIES:
        return BODIES[name](model, graph, x, key)
    return layered_logits(name, model, graph, x, key)
