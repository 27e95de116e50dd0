"""Where a run goes on: the newest checkpoint of its directory, if it belongs to this run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcgnn.comm import ProcessGrid, agree, bcast
from hpcgnn.config.config import Config
from hpcgnn.console import warn
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import Facts
from hpcgnn.spmd import collective
from hpcgnn.train.run.checkpoint import Checkpoint, check_state, checkpoint_paths, read_checkpoint
from hpcgnn.train.run.directory import RunDirectory


@collective
def find_finished(
    grid: ProcessGrid, config: Config, directory: RunDirectory, fingerprint: Callable[[], str]
) -> dict[str, Any] | None:
    """Return the summary when the run has ended already, so that nothing is left to do.

    Parameters
    ----------
    fingerprint
        Returns that of the configuration's data, without reading the store whole; rank 0 calls it.

    Raises
    ------
    CollectiveInputError
        When the store, or what the directory holds, does not read.
    """
    summary = None
    with agree(grid.world):
        if grid.rank == 0 and config.run.resume != "never":
            summary = directory.finished(config)
            # Another graph in the same place: go on to the error that says so.
            if summary is not None and summary["fingerprint"] != fingerprint():
                summary = None
    return bcast(grid.world, summary)


@collective
def find_checkpoint(
    grid: ProcessGrid, config: Config, facts: Facts, directory: RunDirectory
) -> Checkpoint | None:
    """Prepare the run directory; return the checkpoint to go on from, or None for a fresh start.

    Call it once the graph is read: a fresh start drops the results of an earlier run.

    Raises
    ------
    CollectiveInputError
        When the newest checkpoint is damaged or belongs to another run, or when ``run.resume=must``
        and there is none.
    """
    path: Path | None = None
    with agree(grid.world):
        if grid.rank == 0:
            path = _newest(config, directory) if config.run.resume != "never" else None
            if path is None and config.run.resume == "must":
                raise InputError(
                    f"run.resume=must, but {directory.checkpoints} has no checkpoint; "
                    "start with run.resume=auto"
                )
    path = bcast(grid.world, path)
    checkpoint = None
    with agree(grid.world):
        if path is not None:
            checkpoint = read_checkpoint(path)
            check_state(path, checkpoint.state)
            _check_fits(path, checkpoint, config, facts)
        if grid.rank == 0:
            _prepare(checkpoint, config, directory)
    return checkpoint


def _newest(config: Config, directory: RunDirectory) -> Path | None:
    order = {seed: position for position, seed in enumerate(config.train.seeds)}
    differences = [
        (order.get(seed, -1), epoch, path)
        for seed, epoch, path in checkpoint_paths(directory.checkpoints)
    ]
    return max(differences)[2] if differences else None


def _check_fits(path: Path, checkpoint: Checkpoint, config: Config, facts: Facts) -> None:
    state = checkpoint.state
    if state["seed"] not in config.train.seeds:
        raise InputError(
            f"checkpoint {path} has seed {state['seed']}, which is not in train.seeds; use "
            "another run.dir, or run.resume=never to start over"
        )
    if state["graph"]["fingerprint"] != facts.fingerprint:
        store, targets = config.graph.store, config.graph.targets
        difference = f"or graph.targets than {store} and {targets}" if targets else f"than {store}"
        raise InputError(
            f"checkpoint {path} was trained on another store {difference}; use that one, another "
            "run.dir, or run.resume=never to start over"
        )
    if state["graph"].get("directions", "") != getattr(facts, "directions", ""):
        raise InputError(
            f"checkpoint {path} took the higher id of an undirected edge as its target, as earlier "
            "versions did; use another run.dir, or run.resume=never to start over"
        )


def _prepare(checkpoint: Checkpoint | None, config: Config, directory: RunDirectory) -> None:
    if checkpoint is None:
        directory.start(config)
        return
    state = checkpoint.state
    done = {result["seed"]: result["epochs"] for result in state["finished_seeds"]}
    missing = directory.resume(config, {**done, state["seed"]: state["epoch"]})
    for seed, (count, first, last) in missing.items():
        warn(
            f"metrics.jsonl lacks {count} epochs of seed {seed} that its checkpoint covers, "
            f"{first} to {last}: its curve and the summary are of the others"
        )
