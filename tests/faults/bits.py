"""Reproducible runs over ranks, exchanges, schedules and replications: are their bits equal?

    mpiexec -n P python -m tests.faults.bits FOLDER [--only PATTERN] [--ways N] [--json]
    python -m tests.faults.bits FOLDER --table

Every model, mode and objective, on 8 parts of one graph with hubs and isolated nodes. Start it with
one rank first: all other runs are compared with its runs, byte by byte: metrics without times and
traffic, the tensors of the last checkpoint, and predictions. A case uses some ways of exchange and
schedule, other ones at each number of ranks. Two ranks form a host. FOLDER keeps the comparisons,
and when started again, the script continues after them.
"""

import argparse
import fnmatch
import json
import platform
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from mpi4py import MPI

from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.support import conflicts
from hpcgnn.train.tasks import features_of
from tests.support.exact_runs import (
    FIELDS,
    JOINED,
    MODELS,
    MODES,
    OBJECTIVES,
    differences,
    write_fields,
    write_joined,
    write_mode,
    write_model,
    write_objective,
)
from tests.support.examples import EXAMPLES
from tests.support.training import Run, make_config, train

NODES, EPOCHS, PER_HOST = 397, 10, 2
SIZES = (1, 2, 3, 4, 8)
METHODS = ("aware", "joint", "push", "hierarchical", "hierarchical_joint", "oblivious")
SCHEDULES = ("resident", "sequential")
SETTINGS = ("train.reproducible=true", f"train.epochs={EPOCHS}", "run.stall_s=120")
Words = tuple[str, ...]
Write = Callable[[MPI.Intracomm, Path], tuple[Path, list[str]]]


class Case(NamedTuple):
    """A training setup: `write` makes its store in a folder, and returns it with the settings."""

    kind: str
    name: str
    write: Write


def all_cases() -> Iterator[Case]:
    """Yield all cases, those on one graph of `NODES` nodes first."""
    for name in MODELS:
        yield Case("model", name, partial(write_model, model=name, num_nodes=NODES))
    for name in MODES:
        yield Case("mode", name, partial(write_mode, mode=name, num_nodes=NODES))
    for name in OBJECTIVES:
        yield Case("objective", name, partial(write_objective, objective=name))
    for name in JOINED:
        yield Case("objective", name, partial(write_joined, task=name))
    for name in FIELDS:
        yield Case("objective", name, partial(write_fields, name=name))


def ways(size: int) -> list[Words]:
    """Return all ways for a number of ranks."""
    copies = [number for number in (1, 2) if size % number == 0 and size > 1]
    found = [
        (
            f"exchange.method={method}",
            f"exchange.schedule={schedule}",
            f"exchange.replication={replication}",
        )
        for replication, schedule, method in product(copies or [1], SCHEDULES, METHODS)
    ]
    return found if size > 1 else [(*words, "run.threads=2") for words in found]


def chosen(place: int, size: int, works: Callable[[Words], bool], count: int) -> list[Words]:
    """Return a number of applicable ways (0: all), starting from one set by the case's index."""
    found = [way for way in ways(size) if works(way)]
    first = place + 5 * SIZES.index(size)
    step = 1 + len(found) // 2
    picked = [found[(first + step * number) % len(found)] for number in range(count)]
    return list(dict.fromkeys(picked)) if count else found


def works(store: Path, settings: Sequence[str], way: Words) -> bool:
    """Tell whether the settings work with a way."""
    try:
        config = make_config(store, store.parent / "run", *settings, *way)
    except InputError:
        return False
    return not any(conflicts(features_of(config)))


class Log:
    """The comparisons so far: for each number of ranks a file with a line of JSON for each run."""

    def __init__(self, folder: Path, size: int) -> None:
        self._path = folder / f"compared{size}.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.rows = [json.loads(line) for line in lines]

    def has(self, case: Case, way: Words) -> bool:
        """Tell whether a run has been compared."""
        return any(row["case"] == case.name and row["way"] == " ".join(way) for row in self.rows)

    def add(self, row: dict[str, str | int]) -> None:
        """Append a run."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def trained(comm: MPI.Intracomm, store: Path, folder: Path, words: Sequence[str]) -> Run | str:
    """Return a run, or the error with which it failed on any rank."""
    fault = ""
    try:
        run = train(comm, make_config(store, folder, *words))
    except Exception as error:
        fault = f"{type(error).__name__}: {error}".partition("\n")[0]
        traceback.print_exc()
    faults = [each for each in comm.allgather(fault) if each]
    return faults[0] if faults else run


def compare_case(place: int, case: Case, options: argparse.Namespace, log: Log) -> None:
    """Train one case in all its ways, and record the differences from the run of one rank."""
    comm = MPI.COMM_WORLD
    folder = options.folder / case.name.replace(" ", "_").replace(",", "")
    alone, settings_of = folder / "alone", folder / "settings.json"
    if comm.size == 1 and not (alone / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        store, words = case.write(comm, folder)
        settings_of.write_text(json.dumps([str(store), [*SETTINGS, *words]]))
        assert isinstance(trained(comm, store, alone, [*SETTINGS, *words]), Run), case.name
    if not settings_of.exists():
        raise SystemExit(f"{case.name}: no run of one rank to compare with; run it first")
    path, settings = json.loads(settings_of.read_text())
    store, whole = Path(path), Run(alone, 0)
    allowed = partial(works, store, settings)
    for way in chosen(place, comm.size, allowed, options.ways):
        if comm.bcast(log.has(case, way)):
            continue
        here = folder / f"run{comm.size}"
        run = trained(comm, store, here, [*settings, *way])
        comm.Barrier()
        if comm.rank == 0:
            found = [run] if isinstance(run, str) else differences(run, whole)
            shutil.rmtree(here, ignore_errors=True)
            told = {"kind": case.kind, "case": case.name, "ranks": comm.size, "way": " ".join(way)}
            log.add({**told, "differs": ", ".join(found[:6])})
            if options.json:
                print_json(log.rows[-1])
            elif found:
                print(
                    f"{case.name} {comm.size} {' '.join(way)}: {', '.join(found[:6])}", flush=True
                )
        comm.Barrier()


def print_table(folder: Path) -> int:
    """Print for each case how many runs were compared, and how many were equal."""
    logs = [Log(folder, size) for size in SIZES]
    print(f"| case | {' | '.join(map(str, SIZES))} |")
    print("|---|" + "---|" * len(SIZES))
    names = dict.fromkeys(str(row["case"]) for log in logs for row in log.rows)
    for name in names:
        cells = []
        for log in logs:
            rows = [row for row in log.rows if row["case"] == name]
            equal = sum(not row["differs"] for row in rows)
            cells.append(f"{equal} of {len(rows)}" if rows else "-")
        print(f"| {name} | {' | '.join(cells)} |")
    differ = [row for log in logs for row in log.rows if row["differs"]]
    print(f"{sum(len(log.rows) for log in logs)} runs, {len(differ)} differ")
    for row in differ:
        print(f"{row['case']}, {row['ranks']} ranks, {row['way']}: {row['differs']}")
    return len(differ) > 0


def main() -> int:
    """Compare, or print the table; return 1 if any bits differ."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--only", default="*", metavar="PATTERN", help="names of cases")
    cli.add_argument("--ways", type=int, default=2, help="of a case; 0: all")
    cli.add_argument("--json", action="store_true", help="print one JSON object a run")
    cli.add_argument("--table", action="store_true", help="print the table of all that was run")
    options = cli.parse_args()
    if options.table:
        return print_table(options.folder)
    world = MPI.COMM_WORLD
    platform.node = lambda: f"host{world.rank // PER_HOST}"
    sys.path.insert(0, str(EXAMPLES))
    options.folder.mkdir(parents=True, exist_ok=True)
    log = Log(options.folder, world.size)
    for place, case in enumerate(all_cases()):
        if fnmatch.fnmatch(case.name, options.only):
            compare_case(place, case, options, log)
    return any(row["differs"] for row in log.rows)


if __name__ == "__main__":
    raise SystemExit(main())
