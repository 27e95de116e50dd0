"""Train with every exchange and grid, and compare bytes: planned, traced, and counted in MPI.

    mpiexec -n N env LD_PRELOAD=LIBRARY python -m tests.support.traffic_probe LIBRARY FOLDER [all]

The library is `mpi_bytes.cc`. Every rank compares what it sent in each training epoch, number by
number; where they differ rank 0 prints a line for the case, and the status is 1.
"""

import ctypes
import platform
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcgnn.config.config import Config
from hpcgnn.plan import rehearsal
from hpcgnn.spmm import EXCHANGES, METHODS
from hpcgnn.support import Trait
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import StopRequest
from hpcgnn.train.seed_run import SeedRun
from tests.support.planned import planned
from tests.support.training import make_config, make_graph, write_store

EPOCHS = 2
SCHEDULES = ("resident", "sequential")
PER_HOST = 2
SAGE = ("model.name=sage", "model.norm=batch", "model.dropout=0.3")
MODELS = (
    ("model.name=gcn", "exchange.wire=bfloat16"),
    ("model.name=gcn", "exchange.active_sets=false", "model.norm=graph"),
    ("model.name=gat", "model.heads=2", "model.hidden=8", "model.norm=batch"),
    ("model.name=gatv2", "model.heads=2", "model.hidden=8"),
    ("model.name=rgcn", "model.num_bases=2", "model.norm=batch"),
)
PACKED = ("model.name=gcn", "exchange.wire=int8/int4")


class Counter:
    """The library that was loaded before MPI."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._sent, self._unknown = library.mpi_sent_bytes, library.mpi_unknown_calls
        self._sent.restype = self._unknown.restype = ctypes.c_ulonglong

    def now(self) -> tuple[int, int]:
        """Return the bytes sent so far, and the calls without a model."""
        return int(self._sent()), int(self._unknown())


class Watched:
    """Training epochs, with the bytes that a rank sent in each: traced, and counted."""

    def __init__(self, counter: Counter) -> None:
        self.epochs: list[tuple[int, int, int]] = []
        begin, end = SeedRun.begin_epoch, SeedRun.end_epoch
        before: list[tuple[int, ...]] = []

        def state(run: SeedRun) -> tuple[int, ...]:
            traced = sum(each["bytes"] for each in run._trace.traffic().values())
            return (int(traced), *counter.now())

        def begin_watched(run: SeedRun) -> None:
            begin(run)
            before.append(state(run))

        def end_watched(
            run: SeedRun, stop: bool, save: bool = False
        ) -> tuple[dict[str, Any], bool, bool]:
            traced, counted, unknown = (
                now - then for now, then in zip(state(run), before[-1], strict=True)
            )
            self.epochs.append((traced, counted, unknown))
            return end(run, stop, save)

        SeedRun.begin_epoch, SeedRun.end_epoch = begin_watched, end_watched  # type: ignore


def cases(ranks: int, *, every: bool) -> Iterator[tuple[str, ...]]:
    """Yield the settings: every exchange and grid; schedules and models in turn, or all."""
    grids = [copies for copies in range(1, ranks + 1) if ranks % copies == 0]
    ways = list(product(EXCHANGES, grids, SCHEDULES))
    for number, (exchange, copies, schedule) in enumerate(ways):
        if not every and number // 3 % 3 != number % 3:
            continue
        way = (
            f"exchange.method={exchange}",
            f"exchange.schedule={schedule}",
            f"exchange.replication={copies}",
        )
        method = METHODS[exchange]
        adds = Trait.ADDED_PUSHES in method.needs
        states = [each for each in MODELS if "gat" in each[0]] if adds else []
        models = [each for each in (SAGE, PACKED, *MODELS) if each not in states]
        for model in models if every else (models[number // 3 % len(models)],):
            yield (*model, *way)


def compare(watched: Watched, config: Config) -> str:
    """Return the differences on any rank; collective."""
    world = MPI.COMM_WORLD
    told = list(watched.epochs)
    plan = planned(config, world.size, PER_HOST, EPOCHS) if world.rank == 0 else None
    # The rehearsal also has epochs.
    watched.epochs = []
    sent = world.bcast(plan and plan[2][1].bytes_out.tolist())[world.rank]
    assert len(told) == EPOCHS
    different = [
        f"rank {world.rank}, epoch {epoch}: planned {sent}, traced {traced}, "
        f"counted {counted}, and {unknown} other calls"
        for epoch, (traced, counted, unknown) in enumerate(told)
        if not sent == traced == counted or unknown
    ]
    return "; ".join(each for some in world.allgather(different) for each in some)


def main() -> int:
    """Return 1 if any numbers differ; rank 0 prints how many runs were compared."""
    world = MPI.COMM_WORLD
    library, folder, *more = sys.argv[1:]
    directory = Path(folder)
    watched, every = Watched(Counter(library)), "all" in more
    platform.node = lambda: f"host{world.rank // PER_HOST}"
    # The bytes are the same in any epoch.
    rehearsal._MOST_EPOCHS = EPOCHS
    plain = make_graph()
    (directory / "relations").mkdir(exist_ok=True)
    stores = {
        name: write_store(world, directory / place, graph, parts=world.size)
        for name, place, graph in (
            ("", "", plain),
            ("rgcn", "relations", plain.with_relations()),
        )
    }
    num_cases = num_bytes = 0
    faults = []
    for number, settings in enumerate(cases(world.size, every=every)):
        store = stores["rgcn" if "model.name=rgcn" in settings else ""]
        config = make_config(
            store,
            directory / f"run{number}",
            "model.num_layers=3",
            f"train.epochs={EPOCHS}",
            f"train.evaluate_every={EPOCHS}",
            "run.save_predictions=false",
            *settings,
        )
        run_training(world, config, StopRequest())
        num_cases, num_bytes = num_cases + 1, num_bytes + sum(n for _, n, _ in watched.epochs)
        if found := compare(watched, config):
            faults.append(f"{' '.join(settings)}: {found}")
    total = world.allreduce(num_bytes)
    if world.rank == 0:
        print(*faults, f"{num_cases} runs, {total} bytes", sep="\n", flush=True)
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
