"""Your own loop over sampled subgraphs, with evaluation on the whole graph.

mpiexec -n 4 python -m mpi4py examples/sampled_training.py STORE.h5
"""

import sys

import torch

import hpcgnn


def main(store, comm=None, epochs=10, **sections):
    """Train GraphSAGE; return the loss of every step, and the metrics."""
    sections = {"train": {"task": "sampled"}, **sections}
    with hpcgnn.open_graph(comm, store, **sections) as graph:
        model = graph.make_model(seed=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for epoch in range(epochs):
            for loss_of in graph.steps(seed=1, epoch=epoch):
                optimizer.zero_grad()
                loss = loss_of(model)
                loss.backward()
                hpcgnn.sum_gradients(graph, model)
                optimizer.step()
                losses.append(graph.total(loss))
        return losses, hpcgnn.evaluate(graph, model)


if __name__ == "__main__":
    print(main(sys.argv[1])[1])
