"""Full-graph training on one process with dense float64 matrices, written from the formulas."""

from dataclasses import replace

from mpi4py import MPI

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd import DropoutKey, dropout
from hpcgnn.config.config import Config
from hpcgnn.nn import NodeModel, TypedModel, make_model
from hpcgnn.storage import Split
from tests.support.dense_models import Dense, logits
from tests.support.node_types import WIDTHS, dense_inputs
from tests.support.training import NUM_CLASSES, NUM_FEATURES, Graph, Run

LABELLED = (0, 2)
"""Node types of a typed graph that have labels."""


def assert_reference(
    comm: MPI.Intracomm, run: Run, graph: Graph, config: Config, rtol: float
) -> None:
    """Require the losses of a run, which rank 0 has written, to be those of the reference."""
    if comm.rank == 0:
        np.testing.assert_allclose(run.column("train_loss"), dense_losses(graph, config), rtol=rtol)


def dense_losses(graph: Graph, config: Config) -> list[float]:
    """Return the training loss of each epoch, before its update."""
    seed = config.train.seeds[0]
    model = initial_model(graph, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.learning_rate)
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
    body = model.body if isinstance(model, TypedModel) else model
    if config.exchange.active_sets is True:
        dense = dense.with_sets(body, trains)
    share, num_nodes = config.train.label_augmentation, len(graph.ids)
    classes = torch.zeros(num_nodes, NUM_CLASSES, dtype=torch.float64)
    classes[trains, labels] = 1
    losses = []
    for epoch in range(config.train.epochs):
        optimizer.zero_grad()
        key = DropoutKey(seed, epoch)
        shown, predicted = None, trains
        if share > 0:
            # The place of this draw is before those of the layers.
            ones = torch.ones(num_nodes, 1)
            kept = dropout(ones, np.arange(num_nodes), key.at(-1), 1 - share)
            shown, predicted = classes * (kept > 0), trains & (kept[:, 0] == 0)
        out = logits(config.model.name, body, dense, first_rows(graph, model, shown), key)
        loss = functional.cross_entropy(out[predicted], classes.argmax(1)[predicted])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def first_rows(graph: Graph, model: NodeModel, shown: Tensor | None) -> Tensor:
    """Return the input of the first graph layer; `shown` are label columns."""
    if not isinstance(model, TypedModel):
        x = torch.from_numpy(graph.features.astype(np.float64))
        return x if shown is None else torch.cat([x, shown], 1)
    parts = []
    for number, width in enumerate(WIDTHS):
        part = list(graph.type_features.values())[number]
        count = int((graph.types == number).sum())
        rows = np.empty((count, width)) if part is None else part.astype(np.float64)
        if shown is not None and number in LABELLED:
            rows = np.concatenate([rows, shown[torch.from_numpy(graph.types == number)]], 1)
        parts.append(rows)
    return dense_inputs(model.inputs, graph.types, parts)


def initial_model(graph: Graph, config: Config) -> NodeModel:
    """Return the initial model of the first seed."""
    label_width = NUM_CLASSES * (config.train.label_augmentation > 0)
    widths = tuple(width + label_width * (t in LABELLED) for t, width in enumerate(WIDTHS))
    typed = graph.types is not None
    shape = config.model.shape(
        num_features=0 if typed else NUM_FEATURES + label_width,
        num_classes=NUM_CLASSES,
        num_relations=max(2 * len(graph.relations), 1),
        type_features=widths if typed else (),
    )
    return make_model(
        config.model.name,
        shape,
        directed=graph.directed,
        seed=config.train.seeds[0],
        dtype=torch.float64,
    )
