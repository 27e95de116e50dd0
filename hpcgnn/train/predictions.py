"""The kept model of a seed, and predictions.h5 of the run directory."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcgnn.comm import agree
from hpcgnn.errors import InputError
from hpcgnn.nn import Model
from hpcgnn.storage import H5Predictions
from hpcgnn.train.checkpoint import Checkpoint, checkpoint_paths, read_checkpoint
from hpcgnn.train.config import Config
from hpcgnn.train.inference import infer, order_by_id, write_rows
from hpcgnn.train.local_graph import LocalGraph
from hpcgnn.train.run_directory import RunDirectory

__all__ = ["best_seed", "file_attributes", "kept_model", "newest_checkpoint", "save_predictions"]


def best_seed(valid: Mapping[int, float | None]) -> int:
    """Return the seed with the best validation value, the first of equals; None is the worst.

    Not collective.
    """
    return max(valid, key=lambda seed: (valid[seed] is not None, valid[seed] or 0.0))


def newest_checkpoint(checkpoints: Path, seed: int) -> Path:
    """Return the newest checkpoint of a seed.

    Not collective.

    Raises
    ------
    InputError
        When there is none.
    """
    found = checkpoint_paths(checkpoints)
    mine = [path for other, _, path in found if other == seed]
    if not mine:
        seeds = sorted({other for other, _, _ in found})
        there = f"checkpoints of seeds {seeds}" if seeds else "no checkpoint; train first"
        raise InputError(f"{checkpoints} has no checkpoint of seed {seed}: it has {there}")
    return mine[-1]


def kept_model(graph: LocalGraph, config: Config, checkpoint: Checkpoint) -> Model:
    """Return the model that a seed kept.

    Not collective.
    """
    model = graph.make_model(config, checkpoint.state["seed"])
    model.load_state_dict(checkpoint.best)
    return model


def file_attributes(run: Path, state: Mapping[str, Any], graph: LocalGraph) -> dict[str, str | int]:
    """Return what a file of predictions says about where they come from.

    Not collective.
    """
    return {
        "run": str(run),
        "seed": state["seed"],
        "epoch": kept_epoch(state),
        "graph": graph.facts.name,
        "fingerprint": graph.facts.fingerprint,
    }


def kept_epoch(state: Mapping[str, Any]) -> int:
    """Return the epoch, from 0, after which the kept model was kept; -1 before the first.

    Not collective.
    """
    epoch: int | None = state["kept"]["epoch"]
    return -1 if epoch is None else epoch


def save_predictions(
    graph: LocalGraph, config: Config, directory: RunDirectory, results: Iterable[Mapping[str, Any]]
) -> None:
    """Write predictions.h5: probabilities of all nodes in original order, by the best seed's model.

    Collective.

    The model comes from the seed's last checkpoint, since this process may have trained others.

    Raises
    ------
    CollectiveInputError
        When the checkpoint does not read or the file cannot be written.
    """
    seed = best_seed({each["seed"]: each["valid"] for each in results})
    with agree(graph.grid.world):
        checkpoint = read_checkpoint(newest_checkpoint(directory.checkpoints, seed))
    rows = infer(graph, kept_model(graph, config, checkpoint), "probabilities")
    file = H5Predictions(
        directory.predictions,
        "probabilities",
        graph.facts.class_names,
        file_attributes(directory.path, checkpoint.state, graph),
    )
    write_rows(graph.grid, order_by_id(graph.grid, rows), file)
