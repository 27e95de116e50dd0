"""Files of predictions for program graphs: a row a graph, in the order of the store."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.storage import H5Predictions, InstanceSplit, InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.device import Device, open_device
from hpcgnn.train.programs_config import ProgramsConfig
from hpcgnn.train.programs_facts import JUDGED, ProgramFacts, check_fits, model_of
from hpcgnn.train.programs_input import ProgramInput
from hpcgnn.train.programs_scores import Scores, by_split, score
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.saved_model import SavedModel, open_saved_model

__all__ = ["predict_programs", "save_program_predictions"]


def predict_programs(
    grid: ProcessGrid, saved: SavedModel, store_path: str, block: int, output: Path
) -> dict[str, Any]:
    """Score all graphs of a store, those that were trained on too, and write the file.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    saved
        The model.
    store_path
        The store.
    block
        Leave out the edges that blocks of this size do not hold; 0: pass messages along all.
    output
        The file.

    Returns
    -------
    dict
        What was written, and ``splits``: graphs, accuracy, loss and chance of each; on all ranks.

    Raises
    ------
    CollectiveInputError
        When the store does not read or fit, or the file cannot be written.
    """
    with agree(grid.world):
        store = InstanceStore.open(store_path)
    with store:
        facts = ProgramFacts(**saved.checkpoint.state["graph"])
        config = saved.config
        with agree(grid.world):
            check_fits(store, facts)
        dtype = getattr(torch, config.train.dtype)
        device = open_device(grid, config, TraceRecorder.off())
        model = model_of(facts, config.programs, 0, dtype).to(device.place)
        model.load_state_dict(saved.checkpoint.best)
        source = _reader(grid, store, config.programs, dtype, device)
        prepared = (
            each for split in InstanceSplit for each in source.evaluation(split, 0, block=block)
        )
        scores = score(grid, prepared, model, _width(store))
        said = None
        with agree(grid.world):
            if scores is not None:
                _write(output, store, scores, saved)
                said = len(scores.graphs), by_split(store, scores)
        rows, splits = grid.world.bcast(said, root=0)
        return {
            "what": "probabilities",
            "of": "program graphs",
            "rows": rows,
            "columns": _width(store),
            "splits": splits,
            "block": block,
            **_origin(saved, store),
        }


def _reader(
    grid: ProcessGrid,
    store: InstanceStore,
    config: ProgramsConfig,
    dtype: torch.dtype,
    device: Device,
) -> ProgramInput:
    return ProgramInput(
        store,
        store,
        config,
        rank=grid.rank,
        num_ranks=grid.size,
        dtype=dtype,
        trace=TraceRecorder.off(),
        device=device,
    )


def save_program_predictions(
    grid: ProcessGrid,
    store: InstanceStore,
    source: ProgramInput,
    directory: RunDirectory,
    seed: int,
) -> None:
    """Write predictions.h5 of a run: the graphs of `store` but those of the training split.

    Collective.

    Parameters
    ----------
    grid, store, source
        Of the run; `store` is the one that is judged.
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
    facts, config = ProgramFacts(**saved.checkpoint.state["graph"]), saved.config
    model = model_of(facts, config.programs, seed, getattr(torch, config.train.dtype))
    model.to(source.device.place).load_state_dict(saved.checkpoint.best)
    prepared = (each for split in JUDGED.values() for each in source.evaluation(split, 0))
    scores = score(grid, prepared, model, _width(store))
    with agree(grid.world):
        if scores is not None:
            _write(directory.predictions, store, scores, saved)


def _width(store: InstanceStore) -> int:
    return int(store.graphs["num_candidates"].max(initial=1))


def _origin(saved: SavedModel, store: InstanceStore) -> dict[str, str | int]:
    return {**saved.origin(), "store": str(store.path)}


def _write(path: Path, store: InstanceStore, scores: Scores, saved: SavedModel) -> None:
    rows = store.graphs[scores.graphs]
    origin = _origin(saved, store)
    with H5Predictions(path, "probabilities", (), origin, ids="graph_id") as file:
        file.append(scores.graphs, scores.shares, scores.chosen)
        for name in ("label", "split", "file", "line"):
            file.append_column(name, rows[name].astype(np.int32))
        names = [name.encode() for name in store.files]
        file.append_column("files", np.array(names, f"S{max(map(len, names))}"))
