"""predictions.h5 of a run directory."""

from collections.abc import Iterable, Mapping
from typing import Any

from hpcgnn.comm import agree
from hpcgnn.storage import H5Predictions
from hpcgnn.train.inference import infer, order_by_id, write_rows
from hpcgnn.train.local_graph import LocalGraph
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.saved_model import best_seed, open_saved_model

__all__ = ["save_predictions"]


def save_predictions(
    graph: LocalGraph, directory: RunDirectory, results: Iterable[Mapping[str, Any]]
) -> None:
    """Write probabilities of all nodes in original order, by the model of the best seed.

    Collective.

    The model comes from the seed's checkpoint, since this process may have trained others only.

    Parameters
    ----------
    graph
        The share of this rank.
    directory
        Of the run; all its seeds have ended.
    results
        A line for each seed, see `SeedRun.result`.

    Raises
    ------
    CollectiveInputError
        When the checkpoint does not read or the file cannot be written.
    """
    seed = best_seed({each["seed"]: each["valid"] for each in results})
    with agree(graph.grid.world):
        saved = open_saved_model(directory.path, seed)
    rows = order_by_id(graph.grid, infer(graph, saved.model(graph), "probabilities"))
    names = graph.facts.class_names
    file = H5Predictions(directory.predictions, "probabilities", names, saved.origin())
    write_rows(graph.grid, rows, file)
