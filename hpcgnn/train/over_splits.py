"""Training over several splits of a store: a run for each of them, and what they say together.

The run of split NAME is ``run.dir/split-NAME``, a run directory like any other, so that it is
resumed, inspected and predicted with as one that was started alone, and equals it.
"""

import dataclasses
from pathlib import Path
from typing import Any

from hpcgnn.comm import Communicator, agree
from hpcgnn.config.config import Config
from hpcgnn.console import report
from hpcgnn.spmd import collective
from hpcgnn.train.features import check_run
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import StopRequest
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.summary import averages

_OF_ONE = ("ranks_detail", "epoch_s", "evaluate_s", "session_epochs", "smoothed", "epochs")


@collective
def train_over_splits(
    comm: Communicator, config: Config, stop: StopRequest
) -> tuple[dict[str, Any] | None, int]:
    """Train on each of ``train.splits``, with all seeds; see `run_training` of one split.

    Returns
    -------
    summary, status
        As `run_training`; ``seeds`` of the summary are of all splits, each with its ``split``,
        ``mean`` and ``std`` are over all of them, and ``splits`` has those of each split.
    """
    names = config.train.splits
    with agree(comm):
        # Of the run of each split nothing tells that it is one of several.
        check_run(config)
    if not names:
        return run_training(comm, config, stop)
    summaries: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        if comm.rank == 0:
            report(f"split {name} ({number + 1} of {len(names)})")
        summary, status = run_training(comm, of_split(config, name), stop)
        if status:
            return None, status
        summaries += [] if summary is None else [summary]
    found = None
    with agree(comm):
        if comm.rank == 0:
            found = join(names, summaries)
            RunDirectory(config.run.dir).write_summary(found)
    return found, 0


def of_split(config: Config, name: str) -> Config:
    """Return the configuration of the run on one split."""
    resume = config.run.resume
    if resume == "must" and name != config.train.splits[0]:
        # An interrupted run has not begun its last splits.
        resume = "auto"
    folder = str(Path(config.run.dir) / f"split-{name}")
    return dataclasses.replace(
        config,
        graph=dataclasses.replace(config.graph, split=name),
        train=dataclasses.replace(config.train, splits=()),
        run=dataclasses.replace(config.run, dir=folder, resume=resume),
    )


def join(names: tuple[str, ...], summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of all splits from that of each."""
    results = [
        {"split": name, **result}
        for name, summary in zip(names, summaries, strict=True)
        for result in summary["seeds"]
    ]
    # Times, rows and bytes are each split's own.
    common = {key: value for key, value in summaries[0].items() if key not in _OF_ONE}
    return {
        **common,
        "seeds": results,
        **averages(results),
        "epochs": sum(result["epochs"] for result in results),
        "sessions": [session for summary in summaries for session in summary["sessions"]],
        "splits": [
            {"name": name, "mean": summary["mean"], "std": summary["std"]}
            for name, summary in zip(names, summaries, strict=True)
        ],
    }
