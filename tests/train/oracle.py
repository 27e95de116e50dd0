"""Full-graph training on one process with dense float64 matrices, written from the formulas."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.nn import ModelShape, make_model
from hpcgnn.storage import Split
from hpcgnn.train.config import Config
from tests.train.support import NUM_CLASSES, NUM_FEATURES, Graph


def dense_losses(graph: Graph, config: Config, epochs: int) -> list[float]:
    """Return the training loss of each epoch, before its update."""
    weights = initial_weights(graph, config)
    optimizer = torch.optim.Adam(weights.values(), lr=config.train.learning_rate)
    x = torch.from_numpy(graph.features.astype(np.float64))
    trains = (graph.split == Split.TRAIN) & (graph.labels >= 0)
    labels = torch.from_numpy(graph.labels[trains].astype(np.int64))
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        logits = dense_logits(graph, config, weights, x)
        loss = functional.cross_entropy(logits[torch.from_numpy(trains)], labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def initial_weights(graph: Graph, config: Config) -> dict[str, Tensor]:
    """Return the weights that the first seed starts from."""
    shape = ModelShape(
        num_features=NUM_FEATURES,
        num_classes=NUM_CLASSES,
        hidden=config.model.hidden,
        num_layers=config.model.num_layers,
    )
    model = make_model(
        config.model.name,
        shape,
        directed=graph.directed,
        seed=config.train.seeds[0],
        dtype=torch.float64,
    )
    return {name: value.detach().requires_grad_() for name, value in model.named_parameters()}


def dense_logits(graph: Graph, config: Config, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the logits of all nodes."""
    a = torch.from_numpy(graph.adjacency.toarray())
    layer = gcn_layer if config.model.name == "gcn" else sage_layer
    for place in range(config.model.num_layers):
        if place > 0:
            x = torch.clamp(x, min=0)
        x = layer(a, weights, f"layers.{place}", x, directed=graph.directed)
    return x


def gcn_layer(
    a: Tensor, weights: dict[str, Tensor], name: str, x: Tensor, *, directed: bool
) -> Tensor:
    """Return D_r^-1/2 (A + missing loops) D_c^-1/2 X W + b; one matrix serves directed graphs."""
    del directed
    loops = torch.diag((torch.diagonal(a) == 0).to(a.dtype))
    a = a + loops
    scaled = a / (a.sum(1)[:, None] * a.sum(0)[None, :]).sqrt()
    return scaled @ (x @ weights[f"{name}.linear.weight"].T) + weights[f"{name}.bias"]


def sage_layer(
    a: Tensor, weights: dict[str, Tensor], name: str, x: Tensor, *, directed: bool
) -> Tensor:
    """Return X W + mean over in-neighbours W_in + mean over out-neighbours W_out + b."""
    out = x @ weights[f"{name}.own.weight"].T + weights[f"{name}.own.bias"]
    for number, matrix in enumerate([a, a.T] if directed else [a]):
        degrees = matrix.sum(1, keepdim=True)
        mean = torch.where(degrees > 0, matrix / degrees.clamp(min=1e-300), 0.0)
        out = out + mean @ x @ weights[f"{name}.neighbours.{number}"].T
    return out
