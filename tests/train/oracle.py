"""Full-graph training on one process with dense float64 matrices, written from the formulas."""

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from hpcgnn.autograd import DropoutKey
from hpcgnn.nn import Model, make_model
from hpcgnn.storage import Split
from hpcgnn.train.config import Config
from tests.nn.reference import Dense, logits
from tests.train.support import NUM_CLASSES, NUM_FEATURES, Graph


def dense_losses(graph: Graph, config: Config, epochs: int) -> list[float]:
    """Return the training loss of each epoch, before its update."""
    seed = config.train.seeds[0]
    model = initial_model(graph, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.learning_rate)
    x = torch.from_numpy(graph.features.astype(np.float64))
    trains = torch.from_numpy((graph.split == Split.TRAIN) & (graph.labels >= 0))
    labels = torch.from_numpy(graph.labels.astype(np.int64))[trains]
    relations = [torch.from_numpy(each.toarray()) for each in graph.relations.values()]
    dense = Dense(
        torch.from_numpy(graph.adjacency.toarray()),
        graph.directed,
        relations=(*relations, *(each.T for each in relations)),
    )
    if relations:
        dense = replace(dense, a=sum(dense.relations))
    if config.exchange.active_sets:
        dense = dense.with_sets(model, trains)
    losses = []
    for epoch in range(epochs):
        optimizer.zero_grad()
        out = logits(config.model.name, model, dense, x, DropoutKey(seed, epoch))
        loss = functional.cross_entropy(out[trains], labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def initial_model(graph: Graph, config: Config) -> Model:
    """Return the model that the first seed starts from."""
    shape = config.model.shape(
        num_features=NUM_FEATURES,
        num_classes=NUM_CLASSES,
        num_relations=max(2 * len(graph.relations), 1),
    )
    return make_model(
        config.model.name,
        shape,
        directed=graph.directed,
        seed=config.train.seeds[0],
        dtype=torch.float64,
    )
