"""predictions.h5 of a run on program graphs: a row a graph, in the order of the store."""

from collections.abc import Callable

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.nn import GGNN
from hpcgnn.storage import H5Predictions, InstanceSplit, InstanceStore
from hpcgnn.train.programs_input import Prepared, ProgramInput
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.saved_model import open_saved_model
from hpcgnn.typing import Array, FloatArray

__all__ = ["save_program_predictions"]


def save_program_predictions(
    grid: ProcessGrid,
    store: InstanceStore,
    source: ProgramInput,
    make_model: Callable[[int], GGNN],
    directory: RunDirectory,
    seed: int,
) -> None:
    """Write, for each graph but those trained on, the shares of its candidates and the best one.

    Collective.

    ``node_id`` is the number of a graph in the store; candidates that it lacks have share 0.
    Rank 0 gathers all rows, which are few numbers a graph.

    Parameters
    ----------
    grid, store, source
        Of the run.
    make_model
        Gives an empty model.
    directory
        Of the run; all its seeds have ended.
    seed
        One of its seeds.

    Raises
    ------
    CollectiveInputError
        When the checkpoint does not read or the file cannot be written.
    """
    with agree(grid.world):
        saved = open_saved_model(directory.path, seed)
    model = make_model(seed)
    model.load_state_dict(saved.checkpoint.best)
    width = int(store.graphs["num_candidates"].max())
    found = [
        _shares(model, each, width)
        for split in (InstanceSplit.VALID, InstanceSplit.TEST, InstanceSplit.UNSEEN)
        for each in source.evaluation(split, 0)
    ]
    pieces = grid.world.gather(found, root=0)
    with agree(grid.world):
        if pieces is not None:
            rows = [row for piece in pieces for row in piece]
            numbers = np.concatenate([np.empty(0, np.int64), *(row[0] for row in rows)])
            shares = np.concatenate([np.empty((0, width), np.float32), *(row[1] for row in rows)])
            order = np.argsort(numbers)
            numbers, shares = numbers[order], shares[order]
            with H5Predictions(directory.predictions, "probabilities", (), saved.origin()) as file:
                file.append(numbers, shares, shares.argmax(axis=1).astype(np.int32))


@torch.no_grad()
def _shares(model: GGNN, each: Prepared, width: int) -> tuple[Array, FloatArray]:
    graph = each.graph
    logits_M = model(graph, each.propagator, None)
    owners = torch.from_numpy(graph.candidate_graphs)
    places = torch.arange(len(owners)) - torch.from_numpy(graph.candidate_starts)[owners]
    table = logits_M.new_full((graph.num_graphs, width), -torch.inf)
    table[owners, places] = logits_M
    return each.numbers, table.softmax(dim=1).to(torch.float32).numpy()
