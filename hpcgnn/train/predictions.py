"""predictions.h5 of a run directory."""

from hpcgnn.comm import agree
from hpcgnn.storage import H5Predictions
from hpcgnn.train.inference import infer, order_by_id, write_rows
from hpcgnn.train.local_graph import LocalGraph
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.saved_model import open_saved_model

__all__ = ["save_predictions"]


def save_predictions(graph: LocalGraph, directory: RunDirectory, seed: int) -> None:
    """Write probabilities of all nodes in original order, by the model that a seed kept.

    Collective.

    The model comes from the seed's checkpoint, since this process may have trained others only.

    Parameters
    ----------
    graph
        The share of this rank.
    directory
        Of the run; all its seeds have ended.
    seed
        One of its seeds.

    Raises
    ------
    CollectiveInputError
        When the checkpoint does not read or the file cannot be written.
    """
    with agree(graph.grid.world):
        saved = open_saved_model(directory.path, seed)
    rows = order_by_id(graph.grid, infer(graph, saved.model(graph), "probabilities"))
    names = graph.facts.class_names
    file = H5Predictions(directory.predictions, "probabilities", names, saved.origin())
    write_rows(graph.grid, rows, file)
