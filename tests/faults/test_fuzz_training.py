"""Random settings on small graphs of every task: they train, or are refused in one line.

    mpiexec -n N python -m tests.faults.test_fuzz_training FIRST LAST FOLDER

Trained cases are also predicted, exported and inspected. The command prints the settings of each
case that ends in any other way; on several ranks it stops there.
"""

import contextlib
import dataclasses
import io
import json
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import patch

from mpi4py import MPI

import numpy as np
import pytest
from numpy.random import Generator

from hpcgnn.commands.command import find_command
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.errors import CollectiveExit, InputError
from hpcgnn.nn import MODELS
from hpcgnn.train.loop import run_training
from hpcgnn.train.process import StopRequest
from tests.support.labelled_edges import ugly_edges
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.series import planted, write_series
from tests.support.training import make_graph, write_store

SIZES = [
    pytest.param(40),
    pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
]
SMALL = (
    *("model.hidden=6", "model.num_layers=2", "train.epochs=2", "run.threads=1"),
    *("sampling.budget=20", "sampling.walkers=5", "sampling.coverage=1", "links.train=0.3"),
    *("run.stall_s=120", "run.checkpoint_every=1"),
)
TASKS: Mapping[str, tuple[str, ...]] = {
    "full": ("nodes", "relations", "types"),
    "sampled": ("nodes", "relations", "types"),
    "links": ("nodes", "relations", "types", "edges"),
    "edges": ("edges",),
    "graphs": ("graphs",),
    "fields": ("fields", "plain fields"),
}
"""For each task, the stores made for it."""
WORDS: Mapping[str, tuple[str, ...]] = {
    "fields.targets": ('["u"]', '["p"]', '["u","p"]', '["v"]'),
    "fields.inputs": ('["u"]', '["p"]', "[]"),
    "fields.fixed": ('["wall"]', '["feature:0"]', '["feature:7"]'),
    "fields.horizons": ("[1,2]", "[]", "[0]", "[40]"),
    "graph.relations": ('["cites"]', '["nothing"]', '["cites","names"]', '["other"]'),
    "links.relations": ('["cites"]', '["nothing"]'),
    "model.name": (*MODELS, *MODELS, "nosuch"),
    "sampling.fan_outs": ("[2,2]", "[3]", "[0,1]", "[]"),
    "train.seeds": ("[1,2]", "[]", "[3,3]"),
    "train.schedule_steps": ("[1]", "[2,1]"),
    "train.metric": ("loss", "accuracy", "macro_f1", "auc", "rmse", "mrr"),
}
LEFT = (
    *("graph.store", "graph.targets", "run.dir", "run.partner_dir", "run.stall_s", "run.threads"),
    *("train.device", "train.group_size", "fields.loss", "programs.judge_store", "run.track"),
)
Draws = Mapping[str, tuple[str, ...]]


def values_of_keys() -> Draws:
    """Return the values to draw for every key: its choices, or small numbers."""
    found: dict[str, tuple[str, ...]] = {}
    for section, kind in get_type_hints(Config).items():
        for key in dataclasses.fields(kind):
            name = f"{section}.{key.name}"
            choices = key.metadata.get("values") or ()
            if name in LEFT:
                continue
            if name in WORDS:
                found[name] = WORDS[name]
            elif choices:
                found[name] = tuple(map(str, choices))
            elif isinstance(key.default, bool):
                found[name] = ("true", "false")
            elif isinstance(key.default, int):
                found[name] = ("0", "1", "2", "3", "7")
            elif isinstance(key.default, float):
                found[name] = ("0.0", "0.1", "0.5", "0.9", "1.0", "3.0")
    return found


def write_stores(comm: MPI.Intracomm, folder: Path) -> dict[str, Path]:
    """Write the small graphs, collectively."""
    graph, series = make_graph(), planted(trajectories=2)
    typed = ugly_edges("classes", relations=True)
    writers: Mapping[str, Callable[[Path], Path]] = {
        "nodes": lambda place: write_store(comm, place, graph, parts=4),
        "relations": lambda place: write_store(comm, place, graph.with_relations(), parts=4),
        "types": lambda place: write_store(
            comm, place, graph.with_relations().with_types(), parts=4
        ),
        "edges": lambda place: typed.write(comm, place),
        "graphs": lambda place: write_graphs(comm, place, make_graphs()),
        "fields": lambda place: write_series(comm, place, series),
        "plain fields": lambda place: write_series(
            comm, place, dataclasses.replace(series, features=None)
        ),
    }
    stores = {}
    for name, write in writers.items():
        if comm.rank == 0:
            (folder / name).mkdir()
        comm.Barrier()
        stores[name] = write(folder / name)
    return stores


def draw_settings(rng: Generator, draws: Draws) -> tuple[str, list[str]]:
    """Return the name of a store and settings for it; most settings name the store's task."""
    task = str(rng.choice([*TASKS]))
    store = str(rng.choice(TASKS[task]))
    if rng.random() < 0.1:
        task = str(rng.choice([*TASKS]))
    words = [f"train.task={task}", "graph.weights=ignore"]
    if task == "fields" and rng.random() < 0.9:
        words.append("fields.targets=u")
    if rng.random() < 0.7:
        words.append(f"model.name={rng.choice([*MODELS])}")
    # Sections of other tasks are rarely drawn.
    others = {"links", "edges", "graphs", "fields", "programs", "correct_and_smooth"} - {task}
    keys = [key for key in draws if key.split(".")[0] not in others or rng.random() < 0.05]
    drawn = rng.choice(keys, rng.integers(1, 5), replace=False)
    return store, [*words, *(f"{key}={rng.choice(draws[str(key)])}" for key in drawn)]


def run_case(comm: MPI.Intracomm, seed: int, stores: Mapping[str, Path], folder: Path) -> bool:
    """Return whether a case trains; False if it is refused in one line."""
    store, words = draw_settings(np.random.default_rng([20261125, seed]), values_of_keys())
    run = folder / "run"
    if comm.rank == 0:
        shutil.rmtree(run, ignore_errors=True)
    comm.Barrier()
    try:
        config = load_config(
            None, [f"graph.store={stores[store]}", f"run.dir={run}", *SMALL, *words]
        )
        run_training(comm, config, StopRequest())
        doors(comm, config.train.task, run)
    except (InputError, CollectiveExit) as error:
        text = str(error)
        assert text, words
        assert "\n" not in text, (words, text)
        return False
    except BaseException as error:
        error.add_note(f"case {seed}: {store}, {' '.join(words)}")
        raise
    return True


def doors(comm: MPI.Intracomm, task: str, run: Path) -> None:
    """Predict from a run, and on the first rank export and inspect it."""
    output = "p.h5" if task == "fields" else "p.npy" if task != "edges" else "p.csv"
    with contextlib.redirect_stdout(io.StringIO()):
        if comm.size == 1:
            call(["inspect", run, "--json"])
            for to in ("torch", "pyg"):
                with contextlib.suppress(InputError):
                    call(["export", run, "--to", to, "-o", run / f"exported-{to}"])
        call(["predict", run, "-o", run / output], comm)


def call(words: list[Any], comm: MPI.Intracomm | None = None) -> None:
    """Call a command in this process."""
    with patch.object(sys, "argv", [str(word) for word in words]):
        command = find_command(words[0])
        status = command.call() if comm is None else command.call(comm=comm)
    assert status in (0, None), (words, status)


@pytest.mark.parametrize("count", SIZES)
def test_settings(tmp_path: Path, count: int) -> None:
    stores = write_stores(MPI.COMM_SELF, tmp_path)
    trained = sum(run_case(MPI.COMM_SELF, seed, stores, tmp_path) for seed in range(count))
    assert count // 8 < trained < count


if __name__ == "__main__":
    world = MPI.COMM_WORLD
    where = Path(sys.argv[3])
    if world.rank == 0:
        where.mkdir(parents=True, exist_ok=True)
    world.Barrier()
    made = write_stores(world, where)
    outcomes: Counter[str] = Counter()
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            outcomes["trains" if run_case(world, number, made, where) else "is refused"] += 1
        except BaseException:
            traceback.print_exc()
            if world.size > 1:
                world.Abort(1)
            outcomes["fails"] += 1
    if world.rank == 0:
        sys.stdout.write(f"{json.dumps(outcomes)}\n")
