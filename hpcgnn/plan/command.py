"""The planning command: count, rehearse, compare and print."""

import argparse
import dataclasses
import os
import shlex
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from timeit import repeat
from typing import Any

import numpy as np

from hpcgnn.comm import Network, ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.file import config_of
from hpcgnn.config.run_features import samples, show
from hpcgnn.console import Progress, number, print_json, print_table, report, start_of
from hpcgnn.errors import InputError
from hpcgnn.nn import find_model
from hpcgnn.plan.degree_graph import DegreeGraph, outside_of
from hpcgnn.plan.estimates import (
    Candidate,
    Choice,
    Machine,
    choices,
    configured,
    contenders,
    fastest,
    predict,
)
from hpcgnn.plan.graph_shape import Shape, read_tables, write_shape
from hpcgnn.plan.mesh import MeshGraph, MeshShape
from hpcgnn.plan.objectives import Predictions, find_predictions
from hpcgnn.plan.traffic import ALL, Ranks
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.storage import GraphStore
from hpcgnn.support import Feature, Trait, lacks, needs
from hpcgnn.train.tasks import PLAN, check_run, find_pair

NOTHING_FITS = 1

INSIDE_LATENCY_S = 1e-6
"""Latency of a message between ranks of one host."""

COMPARED = ("aware", "joint")
"""Exchanges that are planned beside the configured one, unless options name others."""

SHAPE = Feature("--shape", needs(Trait.PLANNED_FROM_DEGREES), remedy="plan with the graph")
MESH = Feature(
    "--shape of a mesh", needs(Trait.FIELDS, Trait.PLANNED_FROM_MESH), remedy="plan with the graph"
)


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    values = {"graph.store": options.shape, "run.watts_per_core": options.watts_per_core}
    words = [*options.words, *(f"{key}={value}" for key, value in values.items() if value)]
    # A plan needs no run directory.
    config = config_of(words, ["run.dir=none"])
    machine = machine_of(options)
    cores = len(os.sched_getaffinity(0))
    is_described = options.shape or options.cores_per_host or options.ranks_per_host
    if max(options.ranks) > cores and not is_described:
        report(
            f"each rank is planned with cores of its own, and this host has {cores}: give "
            f"--cores-per-host {cores}, or describe other hosts by --ranks-per-host N"
        )
    prefetch = max(config.exchange.prefetch, options.prefetch)
    combinations = list(
        choices(
            options.ranks,
            [
                (copies, groups)
                for copies in options.replication or (config.exchange.replication,)
                for groups in options.groups or (config.exchange.groups,)
            ],
            options.exchange or dict.fromkeys((config.exchange.method, *COMPARED)),
            options.schedule or (config.exchange.schedule,),
            prefetch,
        )
    )
    if not combinations:
        raise InputError(
            "replication times groups divides none of the numbers of ranks; give --replication 1 "
            "and --groups 1 as well"
        )
    is_mesh = options.shape is not None and "mesh" in read_tables(options.shape)
    source = [MESH if is_mesh else SHAPE] if options.shape else []
    asked = options.exchange or (config.exchange.method,)
    combinations = [choice for choice in combinations if _works(config, choice, source, asked)]
    with ExitStack() as stack:
        if is_mesh:
            alone = stack.enter_context(ProcessGrid.of_this_process())
            whole: DegreeGraph | MeshGraph | WholeGraph = MeshGraph(
                alone, config, MeshShape.read(options.shape), stack
            )
        elif options.shape:
            whole = DegreeGraph(config, Shape.read(options.shape))
        else:
            store = stack.enter_context(GraphStore.open(config.graph.store))
            alone = stack.enter_context(ProcessGrid.of_this_process())
            whole = stored = WholeGraph(alone, config, store)
            if options.write_shape:
                return _write_shape(options, stored)
        for choice in combinations:
            # Raise the error for too few parts now, not after minutes.
            whole.row_starts(choice.ranks // choice.replication)

        def rehearsed(text: str, choices: list[Choice]) -> list[Candidate]:
            repeats = options.epochs, options.beside
            with Progress(text, len(choices), "runs", quiet=options.json) as progress:
                return list(predict(whole, config, choices, machine, *repeats, progress.advance))

        candidates = rehearsed("rehearsing", combinations)
        if not options.schedule:
            staged = [
                dataclasses.replace(candidate.choice, schedule="sequential", prefetch=prefetch)
                for candidate in candidates
                if not candidate.fits(options.memory)
                and candidate.choice.way.schedule == "resident"
            ]
            candidates += rehearsed("rehearsing by stages", staged)
        if again := contenders(candidates, options.memory):
            second = rehearsed(
                "rehearsing the fastest again", [candidates[i].rehearsed_choice for i in again]
            )
            for index, repeated in zip(again, second, strict=True):
                candidates[index] = candidates[index].with_second(repeated)
    best = fastest(candidates, options.memory)
    if options.json:
        print_json(
            [_as_json(candidate, config, options.memory, best[:1]) for candidate in candidates]
        )
    else:
        _show(candidates, config, options.memory, best)
        # A shape has no store to train on.
        if best and not options.shape:
            report(f"next: {_training(options.words, best[0].choice)}")
    return 0 if best else NOTHING_FITS


def machine_of(options: argparse.Namespace) -> Machine:
    """Return the machine that options of the command describe.

    Ranks of a host copy rows in its memory, at a rate that is measured here. If one host has all
    ranks, a given bandwidth replaces that rate.
    """
    bandwidth, per_host = options.bandwidth, options.ranks_per_host
    if per_host is None and bandwidth is not None:
        return Machine(Network(bandwidth * 1e9, options.latency * 1e-6), options.cores_per_host)
    inside = copy_bandwidth()
    outside = Network.bandwidth if bandwidth is None else bandwidth * 1e9
    outside = inside if per_host is None else outside
    links = Network(outside, options.latency * 1e-6, per_host, inside, INSIDE_LATENCY_S)
    return Machine(links, options.cores_per_host)


def copy_bandwidth() -> float:
    """Return the bytes per second at which this process copies memory, the best of five copies."""
    source = np.ones(1 << 22)
    target = np.empty_like(source)
    return source.nbytes / min(repeat(lambda: np.copyto(target, source), number=1))


def plans_of(config: Config, source: Sequence[Feature] = ()) -> list[Feature]:
    """Return the features of a plan from a `source`, with the traits that they need and lack."""
    features = [PLAN, *source]
    if find_predictions(find_pair(config.train.task).objective) is not Predictions:
        name = f"hpcgnn plan of train.task = {show(config.train.task)}"
        counted = "pairs and read-outs are counted without copies"
        features.append(Feature(name, lacks({Trait.REPLICAS: counted}), ("train.task",)))
    aggregations = find_model(config.model.name).aggregations
    of_model = f"hpcgnn plan of model.name = {show(config.model.name)}"
    if any(a.passes_messages for a in aggregations):
        counted = "messages are counted without copies, each of which computes all of its block row"
        features.append(Feature(of_model, lacks({Trait.REPLICAS: counted}), ("model.name",)))
    if any(a.attends for a in aggregations):
        counted = "with equal bits its rows are counted only in one copy of a stored graph"
        if source or config.train.task == "fields":
            features.append(Feature(of_model, lacks({Trait.EQUAL_BITS: counted}), ("model.name",)))
        elif config.train.reproducible:
            features.append(Feature(of_model, lacks({Trait.REPLICAS: counted}), ("model.name",)))
    if config.train.task == "graphs" and config.sampling.topology == "partitioned":
        name, counted = "sampling.topology = 'partitioned'", "its shares on ranks are not counted"
        features.append(Feature(name, lacks({Trait.PLANNED: counted}), ("sampling.topology",)))
    if samples(config):
        name, counted = "hpcgnn plan of samples", "the vectors that they fetch are random"
        features.append(Feature(name, lacks({Trait.NODE_VECTORS: counted}), ("train.task",)))
    return features


def _works(
    config: Config, choice: Choice, source: Sequence[Feature], asked: Collection[str]
) -> bool:
    """Return whether a choice works and can be planned from a `source`.

    Raises `InputError` if it does not and its exchange is among those `asked` for.
    """
    try:
        check_run(configured(config, choice), *plans_of(config, source))
    except InputError:
        if choice.exchange in asked:
            raise
        return False
    return True


def _write_shape(options: argparse.Namespace, whole: WholeGraph) -> int:
    """Write the shape of a graph and report the rows that its parts save."""
    facts, pattern = whole.facts, whole.patterns[ALL].diagonal
    if facts.directed or facts.relations or facts.type_names:
        raise InputError(
            "--write-shape writes graphs of one node type and one relation both ways: set "
            "graph.undirected=true and a model that unites relations, or write the file by hand"
        )
    rows_of = pattern.entry_rows()
    loops = np.bincount(rows_of[rows_of == pattern.indices], minlength=facts.num_nodes)
    if len(options.ranks) > 1:
        raise InputError("--write-shape: give one number of --ranks, whose block rows are measured")
    (blocks,) = options.ranks
    starts = whole.row_starts(blocks)
    aware = whole.survey(ALL, Ranks(starts, ExchangeConfig(method="aware")))
    rows = sum(map(len, aware.nodes))
    values = {
        "classes": facts.num_classes,
        "training": float(whole.targets.mean()),
        "features": facts.num_features,
    }
    degrees = np.diff(pattern.indptr) - loops
    outside, random = outside_of(degrees, blocks, rows)
    write_shape(options.write_shape, facts.name, {**values, "outside": outside}, degrees)
    report(
        f"{blocks} block rows read {rows:,} rows from each other, random ones {random:,.0f}: "
        f"outside = {outside:.4g}"
    )
    return 0


def _training(words: Sequence[str], choice: Choice) -> str:
    """Return the command that trains as planned, with the user's configuration words."""
    overrides = choice.overrides()
    keys = {word.partition("=")[0] for word in overrides}
    remaining = [word for word in words if word.partition("=")[0] not in keys]
    try:
        config_of(words)
    except InputError:
        # Only the run directory can be missing, which a plan does not need.
        remaining.append("run.dir=run")
    return f"{start_of(choice.ranks)} {shlex.join([*remaining, *overrides])}"


def _as_json(
    candidate: Candidate, config: Config, memory: int | None, best: list[Candidate]
) -> dict[str, Any]:
    values = dataclasses.asdict(candidate)
    choice = values.pop("choice")
    del choice["block"]
    return {
        **choice,
        **values,
        "epoch_s": candidate.epoch_s,
        "train_s": candidate.train_s(config),
        "cpu_s": candidate.cpu_s,
        **({"epoch_j": candidate.cpu_s * watts} if (watts := config.run.watts_per_core) else {}),
        "fits": candidate.fits(memory),
        "best": candidate in best,
        "overrides": candidate.choice.overrides(),
    }


def _show(
    candidates: list[Candidate], config: Config, memory: int | None, best: list[Candidate]
) -> None:
    columns = (
        "ranks", "replication", "groups", "exchange", "schedule", "rows", "rows of busiest",
        "MB an epoch", "peak MiB", "ghost MiB", "compute s", "spread",
        "messages s", "hidden s", "epoch s", "run s",
    )  # fmt: skip
    rows, watts = [], config.run.watts_per_core
    for candidate in candidates:
        choice = candidate.choice
        fits = candidate.fits(memory)
        depth = f", {choice.prefetch} ahead" if choice.prefetch else ""
        rows.append(
            (
                choice.ranks,
                choice.replication,
                choice.groups,
                choice.exchange + " (auto)" * choice.is_auto,
                choice.schedule + depth,
                candidate.rows_total,
                candidate.rows_max_send,
                f"{candidate.bytes_epoch / 1e6:.1f}",
                f"{candidate.peak_bytes / 2**20:.0f}" + ("" if fits else " too much"),
                f"{candidate.ghost_bytes / 2**20:.1f}",
                f"{candidate.compute_s:.3f}",
                f"{candidate.spread_s:.3f}" if candidate.spread_s else "",
                f"{candidate.exchange_s:.3f}",
                f"{candidate.hidden_s:.3f}",
                f"{candidate.epoch_s:.3f}",
                f"{candidate.train_s(config):.0f}",
                *([f"{candidate.cpu_s * watts:,.3g}"] if watts else ()),
            )
        )
    size = f"{candidates[0].store_bytes / 1e9:.2f} GB"
    title = f"{config.model.name} on {config.graph.store}, {size}"
    print_table(title, (*columns, *["J an epoch"] * (watts > 0)), rows)
    if not best:
        report("nothing fits: more ranks, --schedule sequential or train.precision=bfloat16")
        return
    first = best[0].choice
    line = f"fastest that fits: {number(first.ranks, 'rank')}, {first.exchange}, {first.schedule}"
    if ties := len(best) - 1:
        line += f"; {ties} more are as fast within the spread, and it sends the fewest bytes"
    report(line)
