"""The setting that all checks share: ranks, a folder, small stores and runs on them."""

import contextlib
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from hpcgnn.comm import Communicator, agree, bcast
from hpcgnn.config.file import config_from_tables
from hpcgnn.console import show_from
from hpcgnn.gallery import planted, planted_graphs
from hpcgnn.partition import random, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import StopRequest

NODES, GRAPHS, CLASSES, FEATURES, SEED = 240, 60, 3, 8, 7


@dataclass(frozen=True)
class Fixtures:
    """The ranks of the test, and a temporary shared folder for stores and runs."""

    comm: Communicator
    folder: Path

    @property
    def whole(self) -> Path:
        """Store of one graph with features, classes and a split."""
        return self.folder / "whole.h5"

    @property
    def nodes(self) -> Path:
        """Store of the same graph with a part for each rank."""
        return self.folder / "nodes.h5"

    @property
    def graphs(self) -> Path:
        """Store of many graphs with classes."""
        return self.folder / "graphs.h5"

    @collective
    def worst(self, value: float) -> tuple[float, int]:
        """Return the largest number of all ranks, NaN counting as infinite, and its rank."""
        numbers = np.array(self.comm.allgather(float(value)))
        rank = int(np.argmax(np.where(np.isnan(numbers), np.inf, numbers)))
        return float(numbers[rank]), rank

    @collective
    def train(self, name: str, ranks: int, tables: Mapping[str, Mapping[str, Any]]) -> list[float]:
        """Train on the first `ranks` ranks in the run directory `name`.

        Returns the training losses of all epochs, on all ranks of the test.
        """
        run = self.folder / name
        config = config_from_tables({**tables, "run": {"dir": str(run), "checkpoint_every": 1}})
        group = cast("Communicator", self.comm.Split(self.comm.rank >= ranks))
        try:
            with agree(self.comm):
                if self.comm.rank < ranks:
                    run_training(group, config, StopRequest())
        finally:
            group.Free()
        lines = (run / "metrics.jsonl").read_text().splitlines() if self.comm.rank == 0 else []
        losses = [json.loads(line)["train_loss"] for line in lines]
        return list(bcast(self.comm, losses))


@contextlib.contextmanager
def make_fixtures(comm: Communicator, where: Path) -> Iterator[Fixtures]:
    """Write the stores to a temporary folder below `where`; collective."""
    scratch: tempfile.TemporaryDirectory[str] | None = None
    show_from(logging.WARNING)
    try:
        with agree(comm):
            if comm.rank == 0:
                scratch = tempfile.TemporaryDirectory(prefix=".hpcgnn-selftest-", dir=where)
                _write_stores(Path(scratch.name), comm.size)
        yield Fixtures(comm, Path(bcast(comm, scratch.name if scratch else None)))
    finally:
        show_from(logging.INFO)
        if scratch is not None:
            scratch.cleanup()


def _write_stores(folder: Path, parts: int) -> None:
    planted(NODES, CLASSES, FEATURES, SEED).write(folder / "whole.h5")
    planted_graphs(GRAPHS, CLASSES, FEATURES, SEED).graphs.write(folder / "graphs-1.h5")
    for name, whole in (("nodes.h5", "whole.h5"), ("graphs.h5", "graphs-1.h5")):
        with GraphStore.open(folder / whole) as store:
            partition = random(SEED)(read_pattern(store), parts)
            write_partitioned(store, folder / name, partition, method="random", seed=SEED)
