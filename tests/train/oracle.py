"""Full-graph training on one process with dense float64 matrices, written from the formulas."""

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from hpcgnn.autograd import DropoutKey, dropout
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
    share = config.train.label_augmentation
    classes = torch.zeros(len(x), NUM_CLASSES, dtype=x.dtype)
    classes[trains, labels] = 1
    losses = []
    for epoch in range(epochs):
        optimizer.zero_grad()
        key = DropoutKey(seed, epoch)
        inputs, predicted = x, trains
        if share > 0:
            # The place of this draw comes before the layers'.
            kept = dropout(torch.ones(len(x), 1), np.arange(len(x)), key.at(-1), 1 - share)
            inputs, predicted = torch.cat([x, classes * (kept > 0)], 1), trains & (kept[:, 0] == 0)
        out = logits(config.model.name, model, dense, inputs, key)
        loss = functional.cross_entropy(out[predicted], classes.argmax(1)[predicted])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def initial_model(graph: Graph, config: Config) -> Model:
    """Return the model that the first seed starts from."""
    shape = config.model.shape(
        num_features=NUM_FEATURES + NUM_CLASSES * (config.train.label_augmentation > 0),
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
