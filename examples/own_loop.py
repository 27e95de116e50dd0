"""Your own training loop: mpiexec -n 4 python -m mpi4py examples/own_loop.py STORE.h5."""

import sys

import torch
from torch.nn import functional

import hpcgnn


def main(store, comm=None, epochs=20, **sections):
    """Train GraphSAGE on the ranks of `comm`; return the loss of every epoch, and the metrics."""
    with hpcgnn.open_graph(comm, store, **sections) as graph:
        model = graph.make_model(seed=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for epoch in range(epochs):
            optimizer.zero_grad()
            logits = model(graph.view, graph.features, hpcgnn.DropoutKey(1, epoch))
            known, labels = logits[graph.train_rows], graph.labels[graph.train_rows]
            loss = functional.cross_entropy(known, labels, reduction="sum") / graph.num_train
            loss.backward()
            hpcgnn.sum_gradients(graph, model)
            optimizer.step()
            losses.append(graph.total(loss))
        return losses, hpcgnn.evaluate(graph, model)


if __name__ == "__main__":
    print(main(sys.argv[1])[1])
