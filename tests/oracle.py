"""Random runs compared with a plain reference: does any combination of features differ?

    mpiexec -n 4 python -m tests.oracle --number 100 --seed 7 [--ranks 1,2,3,4]
    mpiexec -n 4 python -m tests.oracle --replay 7:31

Each case is a model with options, an objective, a source, a graph with unusual parts, ranks and an
exchange, drawn from a seed and an index. If docs/matrix.md refuses it, the run must refuse it in
one line. Otherwise it trains for three epochs of plain gradient descent: losses, weights (whose
differences are the gradients), metrics and predictions must equal those of dense float64 matrices
on one process (tests/support/oracle_reference.py), to the precision of the run, and the planned
rows must be those that were sent.
Prints a failing case as a user's command.
"""

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import torch
from safetensors.torch import load_file

from hpcgnn.comm import agree
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import check_features
from hpcgnn.graph.stored_rows import check_graph
from hpcgnn.plan.command import plans_of
from hpcgnn.storage import GraphStore
from hpcgnn.support import conflicts
from hpcgnn.train.run.checkpoint import checkpoint_paths
from hpcgnn.train.tasks import check_run, features_of
from tests.support.dense_graph import Dense
from tests.support.oracle_cases import RATE, Case, draw_case
from tests.support.oracle_fields import FieldReference
from tests.support.oracle_graphs import OracleGraph
from tests.support.oracle_reference import (
    EdgeReference,
    Expected,
    GraphReference,
    LinkReference,
    NodeReference,
    Reference,
    SeveralReference,
    deal,
)
from tests.support.planned import planned
from tests.support.training import Run, train

POLL_S = 0.002
HALF_BFLOAT16 = 2.0**-8
"""The largest relative error of rounding to bfloat16."""
WITHIN, WITHIN_FLOAT32, WITHIN_ROUNDED = 1e-10, 2e-4, 0.1
FLOAT32, KINK = 1e-6, 1e-12
"""Relative errors: of float64, of float32, of rows in few bits, of prediction files, and changes
by rounding that do not come from a kink."""
ROUNDINGS = 16
"""Of a weight after a few steps."""


REFERENCES: Mapping[str, type[Reference]] = {
    "full": NodeReference,
    "sampled": NodeReference,
    "graphs": GraphReference,
    "edges": EdgeReference,
    "links": LinkReference,
    "fields": FieldReference,
}


def reference(graph: OracleGraph, config: Config) -> Reference:
    """Return the training that a configuration describes."""
    kind = SeveralReference if "+" in config.train.task else REFERENCES[config.train.task]
    return kind(graph.with_scaled_edges(config), config)


def run_case(comm: MPI.Intracomm, case: Case, folder: Path) -> tuple[str, list[str]]:
    """Run a case on all ranks; return on each rank its outcome and its errors."""
    store = case.graph.write(comm, folder, case.partition, case.parts)
    settings = [f"graph.store={store}", f"run.dir={folder / 'run'}", *case.settings(folder)]
    try:
        config = load_config(None, settings)
    except InputError as error:
        return "no such options", _one_line(str(error))
    with agree(comm):
        told = list(_refusals(config, store, case))
    try:
        run = train(comm, config)
    except InputError as error:
        fault = str(error)
        if fault.startswith("training diverges") and _diverges(case, config):
            return "diverges, as the reference does", _one_line(fault)
        wrong = [] if fault in told else [f"refused: {fault}", f"expected: {told}"]
        return "refused", [*wrong, *_one_line(fault)]
    kind, found = "trained", [f"trained, expected: {told}"] if told else []
    if comm.rank == 0 and not told:
        within = _tolerance(config)
        different = list(_compare(run, config, case, within))
        moved = list(_moved(run, config, comm.size))
        if different and _is_at_a_kink(config, case, within):
            kind, different = "trained at a kink", []
        found = [*different, *moved]
    _wait(comm)
    return comm.bcast((kind, found))


def _diverges(case: Case, config: Config) -> bool:
    return not np.isfinite(reference(case.graph, config).train().losses).all()


def _wait(comm: MPI.Intracomm) -> None:
    """Wait for all ranks, leaving the cores to those that compute."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(POLL_S)


def _one_line(text: str) -> list[str]:
    return [f"not one line: {text!r}"] if "\n" in text or not text else []


def _refusals(config: Config, store: Path, case: Case) -> Iterator[str]:
    """Yield the lines with which a case may be refused; none if it must train."""
    if "links" in config.train.tasks and not len(deal(case.graph, config).shares["train"]):
        yield (
            f"{store}: no edge to train on among links.relations, where self loops do not count; "
            "raise links.train, or take another store"
        )
    try:
        check_run(config)
        with GraphStore.open(store) as opened:
            check_features(config, opened)
            check_graph(config, opened, ())
        # Options that do not match the sizes.
        yield from reference(case.graph, config).refusals()
    except InputError as error:
        yield str(error)


def _tolerance(config: Config) -> float:
    """Return the relative difference that a run may have."""
    rounds = config.exchange.wire != "native" or config.train.precision != "float32"
    within = WITHIN if config.train.dtype == "float64" else WITHIN_FLOAT32
    return WITHIN_ROUNDED if rounds else within


def _compare(run: Run, config: Config, case: Case, within: float) -> Iterator[str]:
    """Yield the differences between a run and its reference."""
    right = reference(case.graph, config)
    first = {name: value.clone() for name, value in right.model.state_dict().items()}
    expected = right.train()
    for epoch, row in enumerate(run.metrics):
        named = {"train_loss": expected.losses[epoch], **expected.metrics[epoch]}
        for name, value in named.items():
            if not _jumps(name, within):
                yield from _differ(f"{name} of epoch {epoch}", row[name], value, within)
    sums = RATE * max(right.amplified, 1.0)
    for (_, epoch, path), weights in zip(_checkpoints(run), expected.weights, strict=True):
        for line in _weights(load_file(path / "model.safetensors"), weights, first, within, sums):
            yield f"after epoch {epoch}: {line}"
    yield from _predictions(run, config, case.graph, expected, max(within, FLOAT32))


def _is_at_a_kink(config: Config, case: Case, within: float) -> bool:
    """Tell whether the reference is sensitive to the last bits of entries, features and weights.

    The bits are those of the dtype, or of bfloat16 if rows are rounded to few bits. A normalised
    column of equal rows is 0 or a rounding error, at which a rectifier has gradient 0 or 1; so is a
    normalised row of few numbers, most of them dropped; and rounding decides the rank of one among
    equal scores. In these cases neither result is wrong.
    """
    draw = np.random.default_rng(1)
    rounds = within == WITHIN_ROUNDED
    step = (
        HALF_BFLOAT16 / 4 if rounds else float(torch.finfo(getattr(torch, config.train.dtype)).eps)
    )

    def shaken(values: np.ndarray | None, zeros: float = 1.0 - rounds) -> Any:
        if values is None:
            return None
        # Features that are 0 are changed, too; missing entries are not.
        by, to = (step * draw.uniform(-4, 4, values.shape) for _ in range(2))
        return np.asarray(values * (1 + by) + zeros * to)

    def with_entries(dense: Dense) -> Dense:
        return replace(dense, a=torch.from_numpy(shaken(dense.a.numpy(), 0.0)))

    graph = case.graph
    rows = {name: shaken(each) for name, each in graph.type_features.items()}
    series = graph.series and replace(
        graph.series, values={name: shaken(each) for name, each in graph.series.values.items()}
    )
    # A feature that is not 0 may matter if values are prescribed.
    zeros = 0.0 if config.fields.fixed else 1.0 - rounds
    features = shaken(graph.features, zeros)
    other = replace(graph, features=features, type_features=rows, series=series)
    one, two = reference(graph, config), reference(other, config)
    two.tie = 0
    two.whole, two.trained = with_entries(two.whole), with_entries(two.trained)
    with torch.no_grad():
        for each in two.model.parameters():
            each.copy_(torch.from_numpy(shaken(each.numpy())))
    right, found = (each.train() for each in (one, two))
    # Any epoch may be the sensitive one.
    pairs = [
        (value, other[name])
        for named, other in zip(right.weights, found.weights, strict=True)
        for name, value in named.items()
    ]
    pairs += [
        (value, other[name])
        for named, other in zip(right.metrics, found.metrics, strict=True)
        for name, value in named.items()
        if not _jumps(name, within)
    ]
    return any(_differ("", one, other, max(within / 10, KINK), 1.0) for other, one in pairs)


def _jumps(name: str, within: float) -> bool:
    """Tell whether a metric is a rank among others, which jumps when scores are rounded."""
    return within > WITHIN and not name.endswith("loss")


def _checkpoints(run: Run) -> list[tuple[int, int, Path]]:
    return checkpoint_paths(run.path / "checkpoints")


def _weights(
    found: dict[str, Any], right: dict[str, Any], first: dict[str, Any], within: float, sums: float
) -> Iterator[str]:
    """Yield the weights that differ, relative to their change since the first ones.

    `sums` is a step computed from the magnitudes that a gradient adds up.
    """
    if found.keys() != right.keys():
        yield f"weights are {sorted(found)}, not {sorted(right)}"
        return
    moves = {name: _largest(value - first[name]) for name, value in right.items()}
    step = max(moves.values())
    for name, value in right.items():
        mine = found[name]
        if "inputs.vectors." in name:
            # Rows of nodes come in the order of the ranks.
            mine = mine[found[name.replace("vectors.", "ids_")].argsort()]
        if "inputs.ids_" in name:
            mine = mine.sort().values
        # Weights are rounded at their own size, for any step; gradients that are 0 in theory are
        # rounded at the size of their terms.
        rounding = ROUNDINGS * torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0
        size = max(_largest(value), sums)
        floor = (3 if within == WITHIN_ROUNDED else 0.01) * step + rounding * size / within
        yield from _differ(name, mine, value, within, moves[name] + floor)


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _predictions(
    run: Run, config: Config, graph: OracleGraph, expected: Expected, within: float
) -> Iterator[str]:
    said = expected.said
    if said is None:
        yield from ["a rollout is not expected"] if (run.path / "rollout.h5").exists() else []
        return
    found = run.predictions()
    if config.train.task == "fields":
        found = _table(found, config.fields.targets, config.fields.edge_targets)
    keys = np.stack([found[name] for name in said.columns], axis=1)
    if graph.undirected and config.train.task != "fields":
        keys[:, :2].sort(axis=1)
    (mine, order), (right, places) = _sorted(keys), _sorted(said.keys)
    if not np.array_equal(mine, right):
        yield f"predictions are not of all of {said.columns}"
    else:
        yield from _differ("predictions", found[said.name][order], said.rows[places], within)


def _table(
    rollout: dict[str, np.ndarray], targets: Sequence[str], edge_targets: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the steps (K, n, F) of fields of nodes as rows of steps and nodes, or of edges."""
    values = np.concatenate([rollout[name] for name in targets or edge_targets], axis=2)
    steps, count, width = values.shape
    found = {"values": values.reshape(-1, width), "step": np.repeat(np.arange(steps), count)}
    if targets:
        return {**found, "node_id": np.tile(np.arange(count), steps)}
    sources, ends = np.tile(rollout["edge_id"], (steps, 1)).T
    return {**found, "source": sources, "target": ends}


def _sorted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return keys (n, k) in order, and their positions."""
    order = np.lexsort(keys.T[::-1])
    return keys[order], order


def _differ(name: str, mine: Any, right: Any, within: float, scale: float = 0) -> list[str]:
    """Return a description if numbers differ by more than a part of the largest, or of `scale`."""
    one, other = (np.asarray(each, np.float64) for each in (mine, right))
    if one.shape != other.shape:
        return [f"{name}: shape {one.shape}, not {other.shape}"]
    if one.size == 0:
        return []
    missing = np.isnan(other)
    if not np.array_equal(np.isnan(one), missing):
        return [f"{name}: {np.isnan(one).sum()} missing, not the {missing.sum()}"]
    one, other = (np.where(missing, 0, each) for each in (one, other))
    largest = scale or float(np.abs(other).max())
    error = float(np.abs(one - other).max()) / max(largest, 1e-12)
    return [] if error <= within else [f"{name}: {error:.1e} off, {one.flat[0]} {other.flat[0]}"]


def _moved(run: Run, config: Config, ranks: int) -> Iterator[str]:
    """Yield the differences between the rows that were sent and the planned ones."""
    if any(conflicts(features_of(config, plans_of(config)))):
        return
    _, _, (once, epoch, evaluation) = planned(config, ranks, None, config.train.epochs)
    wanted = int(epoch.rows.sum() + evaluation.rows.sum())
    sent, prepares = run.column("rows_sent"), config.exchange.prepare == "first_epoch"
    if config.train.task == "fields" and not prepares:
        # Plans of copies of the graph are made for the first batch.
        first = int(once.rows.sum())
        sent = [sent[0] - first, *sent[1:]]
    elif "links" in config.train.tasks:
        # Later epochs draw other pairs.
        sent, wanted = sent[:1], wanted + prepares * int(once.rows.sum())
    elif prepares:
        # If the needed rows are found in the first epoch, it moves more.
        sent = sent[1:]
    if sent != [wanted] * len(sent):
        yield f"rows sent {sent}, planned {wanted}"


@dataclass
class Oracle:
    """Runs cases on the first ranks of a world; `failed` are the indices of failed ones."""

    world: MPI.Intracomm
    seed: int
    ranks: Sequence[int]
    task: str = ""
    models: Sequence[str] = ()
    reproducible: str = ""

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[int] = []
        self._groups = {size: self.world.Split(self.world.rank >= size) for size in self.ranks}

    def run(self, index: int) -> None:
        """Run a case, and print it if it fails."""
        case = draw_case(self.seed, index, self.ranks, self.task)
        if self.models and case.model not in self.models:
            return
        if self.reproducible:
            case = case.reproducible(on=self.reproducible == "on")
        if self.world.rank < case.ranks:
            self._run(self._groups[case.ranks], case, index)
        _wait(self.world)

    def _run(self, comm: MPI.Intracomm, case: Case, index: int) -> None:
        made = tempfile.mkdtemp() if comm.rank == 0 else ""
        folder = Path(comm.bcast(made))
        try:
            # Reports of runs would hide the failure.
            with contextlib.redirect_stderr(io.StringIO()):
                kind, wrong = run_case(comm, case, folder)
        except Exception:
            # Other ranks may wait for this one.
            self._print(case, index, [traceback.format_exc()])
            self.world.Abort(1)
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            self.counts[kind] += 1
            if wrong:
                self.failed.append(index)
                self._print(case, index, wrong)

    def _print(self, case: Case, index: int, wrong: list[str]) -> None:
        lines = [f"case {self.seed}:{index}: {case.command()}", *(f"  {each}" for each in wrong)]
        print("\n".join(lines[:12]), flush=True)


def main() -> int:
    """Run cases; return 1 if one failed."""
    cli = argparse.ArgumentParser(prog="tests.oracle", description=__doc__.splitlines()[0])
    cli.add_argument("--number", type=int, default=100, help="cases to run (default: 100)")
    cli.add_argument("--seed", type=int, default=1, help="of the cases (default: 1)")
    cli.add_argument("--first", type=int, default=0, help="index of the first (default: 0)")
    cli.add_argument(
        "--ranks", default="", help="to draw from, such as 1,3; default: all there are"
    )
    cli.add_argument("--task", default="", choices=["", "fields"], help="of this alone")
    cli.add_argument("--models", default="", help="run those of these alone, such as rgat,hgt")
    equal_bits = "of all cases, whatever was drawn"
    cli.add_argument("--reproducible", default="", choices=["", "on", "off"], help=equal_bits)
    cli.add_argument("--replay", metavar="SEED:INDEX", help="run this case alone")
    options, world = cli.parse_args(), MPI.COMM_WORLD
    ranks = [int(each) for each in options.ranks.split(",") if each]
    ranks = ranks or list(range(1, world.size + 1))
    if max(ranks) > world.size:
        cli.error(f"--ranks {options.ranks}: there are {world.size}; start it under mpiexec")
    first, number, seed = options.first, options.number, options.seed
    if options.replay:
        seed, first = (int(each) for each in options.replay.split(":"))
        number = 1
    models = [each for each in options.models.split(",") if each]
    oracle = Oracle(world, seed, ranks, options.task, models, options.reproducible)
    for index in range(first, first + number):
        oracle.run(index)
    failed = sum(world.allgather(len(oracle.failed)))
    if world.rank == 0:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(oracle.counts.items()))
        ran = sum(oracle.counts.values())
        print(f"{ran} cases of seed {seed} from {first} on: {counts}; {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
