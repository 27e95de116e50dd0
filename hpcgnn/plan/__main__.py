"""``python -m hpcgnn.plan``: what a run would need on other numbers of ranks, before it starts."""

import argparse
import dataclasses
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import Communicator, Network, ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.features import show
from hpcgnn.config.file import load_config
from hpcgnn.console import Progress, print_json, print_table, report
from hpcgnn.errors import InputError
from hpcgnn.launch import RankArgumentParser, run_mpi_command
from hpcgnn.plan.candidates import (
    Candidate,
    Choice,
    choices,
    configured,
    contenders,
    fastest,
    predict,
)
from hpcgnn.plan.degree_graph import DegreeGraph, outside_of
from hpcgnn.plan.shape import Shape, write_shape
from hpcgnn.plan.share import Planned
from hpcgnn.plan.survey import Survey
from hpcgnn.plan.traffic import ALL, Ranks
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.spmd import collective
from hpcgnn.spmm import AUTO, EXCHANGES, SCHEDULES
from hpcgnn.storage import GraphStore
from hpcgnn.support import Feature, Trait, lacks, needs
from hpcgnn.train.features import PLAN, check_run

DESCRIPTION = """Say what a run would need, without starting it: rows and bytes are counted for all
ranks, memory and seconds of computing are measured on those with the most non-zeros and the most
rows, which this process rehearses on this machine. Start it as one process:
  python -m hpcgnn.plan CONFIG.toml graph.store=G.h5 --ranks 4,8,16 --memory 4GiB"""

EPILOG = """Seconds of messages are those of the given bandwidth and latency, as if computing hid
none of them. Choices within half of the fastest are rehearsed twice; spread is by how many seconds
the two differ. exit status: 0 something fits; 1 nothing fits the memory; 2 a fault of the input."""

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
NOTHING_FITS = 1

SHAPE = Feature("--shape", needs(Trait.PLANNED_FROM_DEGREES), remedy="plan with the graph")


@collective
def main(comm: Communicator) -> int:
    """Run the command with the arguments of the process; return its exit status."""
    options = _parse()
    if comm.size > 1:
        raise InputError(f"{comm.size} ranks: planning is one process; start it without a launcher")
    words = [*options.words, f"graph.store={options.shape}"] if options.shape else options.words
    config = _read_config(words)
    network = Network(options.bandwidth * 1e9, options.latency * 1e-6, options.ranks_per_host)
    wanted = list(
        choices(
            options.ranks,
            options.replication or (config.exchange.replication,),
            options.exchange,
            options.schedule,
            max(config.exchange.prefetch, options.prefetch),
        )
    )
    if not wanted:
        raise InputError("no replication divides a number of ranks; give --replication 1 as well")
    _check(config, wanted, from_degrees=options.shape is not None)
    with ExitStack() as stack:
        if options.shape:
            whole: Planned = DegreeGraph(config, Shape.read(options.shape))
        else:
            store = stack.enter_context(GraphStore.open(config.graph.store))
            whole = WholeGraph(stack.enter_context(ProcessGrid(comm)), config, store)
        if options.write_shape:
            return _write_shape(options, whole)

        def rehearsed(text: str, choices: list[Choice]) -> list[Candidate]:
            often = options.epochs, options.beside
            with Progress(text, len(choices), "runs", quiet=options.json) as progress:
                return list(predict(whole, config, choices, network, *often, progress.advance))

        found = rehearsed("rehearsing", wanted)
        if again := contenders(found, options.memory):
            second = rehearsed("rehearsing the fastest again", [found[i].choice for i in again])
            for place, other in zip(again, second, strict=True):
                found[place] = found[place].with_second(other)
    best = fastest(found, options.memory)
    if options.json:
        print_json([_as_json(each, config, options.memory, best[:1]) for each in found])
    else:
        _show(found, config, options.memory, best)
    return 0 if best else NOTHING_FITS


def _check(config: Config, choices: list[Choice], *, from_degrees: bool) -> None:
    """Raise `InputError` where a choice does not work, or is not planned."""
    doors = [PLAN, *([SHAPE] if from_degrees else [])]
    if config.train.task in ("links", "graphs"):
        name = f"hpcgnn plan of train.task = {show(config.train.task)}"
        counted = "pairs and read-outs are counted without copies"
        doors.append(Feature(name, lacks({Trait.REPLICAS: counted}), ("train.task",)))
    for choice in choices:
        check_run(configured(config, choice), *doors)


def _write_shape(options: argparse.Namespace, whole: Planned) -> int:
    """Write the shape of a graph, and say what its parts save."""
    assert isinstance(whole, WholeGraph)
    facts, pattern = whole.facts, whole.patterns[ALL].diagonal
    if facts.directed or facts.relations or facts.type_names:
        raise InputError(
            "--write-shape writes graphs of one node type and one relation both ways: set "
            "graph.undirected=true and a model that unites relations, or write the file by hand"
        )
    rows_of = pattern.entry_rows()
    loops = np.bincount(rows_of[rows_of == pattern.indices], minlength=facts.num_nodes)
    (blocks,) = options.ranks
    starts = whole.row_starts(blocks)
    aware = Survey.of(whole.patterns[ALL], Ranks(starts, ExchangeConfig(method="aware")))
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
        f"{blocks} block rows read {rows} rows of each other, random ones would {random:.0f}: "
        f"outside = {outside:.4g}"
    )
    return 0


def _read_config(words: Sequence[str]) -> Config:
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise InputError(f"more than one configuration file: {' '.join(files)}; give one")
    overrides = [word for word in words if "=" in word]
    # A run directory is not needed before there is a run.
    return load_config(files[0] if files else None, ["run.dir=none", *overrides])


def _as_json(
    each: Candidate, config: Config, memory: int | None, best: list[Candidate]
) -> dict[str, Any]:
    values = dataclasses.asdict(each)
    return {
        **values.pop("choice"),
        **values,
        "epoch_s": each.epoch_s,
        "train_s": each.train_s(config),
        "fits": each.fits(memory),
        "best": each in best,
        "overrides": each.choice.overrides(),
    }


def _show(
    found: list[Candidate], config: Config, memory: int | None, best: list[Candidate]
) -> None:
    columns = (
        "ranks", "replication", "exchange", "schedule", "rows", "rows of busiest",
        "MB an epoch", "peak MiB", "ghost MiB", "compute s", "spread",
        "messages s", "epoch s", "run s",
    )  # fmt: skip
    rows = []
    for each in found:
        choice = each.choice
        fits = each.fits(memory)
        depth = f", {choice.prefetch} ahead" if choice.prefetch else ""
        rows.append(
            (
                choice.ranks,
                choice.replication,
                choice.exchange + " (auto)" * choice.is_auto,
                choice.schedule + depth,
                each.rows_total,
                each.rows_max_send,
                f"{each.bytes_epoch / 1e6:.1f}",
                f"{each.peak_bytes / 2**20:.0f}" + ("" if fits else " too much"),
                f"{each.ghost_bytes / 2**20:.1f}",
                f"{each.compute_s:.3f}",
                f"{each.spread_s:.3f}" if each.spread_s else "",
                f"{each.exchange_s:.3f}",
                f"{each.epoch_s:.3f}",
                f"{each.train_s(config):.0f}",
            )
        )
    size = f"{found[0].store_bytes / 1e9:.2f} GB"
    print_table(f"{config.model.name} on {config.graph.store}, {size}", columns, rows)
    if not best:
        report("nothing fits: more ranks, --schedule sequential or train.precision=bfloat16")
        return
    words = " ".join(best[0].choice.overrides())
    report(f"fastest that fits: {best[0].choice.ranks} ranks with {words}")
    if len(best) > 1:
        report(f"  {len(best) - 1} more are as fast as can be told; it sends the fewest bytes")


def _parse() -> argparse.Namespace:
    parser = RankArgumentParser("plan", DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("words", nargs="*", metavar="CONFIG.toml | section.key=value", help="as hpcgnn.train takes")
    add("--ranks", type=_numbers, required=True, metavar="P,...", help="numbers of ranks")
    add(
        "--shape",
        type=Path,
        metavar="FILE",
        help="plan for a graph that is not here, from its degrees (a .toml, see docs/planning.md)",
    )
    add(
        "--write-shape",
        type=Path,
        metavar="FILE",
        help="write the shape of the store, with the share of neighbours outside that its parts "
        "have on so many ranks, and its degrees beside it (.csv); plan nothing",
    )
    add(
        "--exchange",
        type=_names((*EXCHANGES, AUTO)),
        default=("aware", "joint"),
        metavar="X,...",
        help=f"of {', '.join(EXCHANGES)}, or auto: the cheapest by these links "
        "(default: aware,joint)",
    )
    add(
        "--schedule",
        type=_names(SCHEDULES),
        default=SCHEDULES,
        metavar="S,...",
        help=f"of {', '.join(SCHEDULES)} (default: both)",
    )
    add(
        "--replication",
        type=_numbers,
        metavar="C,...",
        help="copies of every block row (default: the configuration's)",
    )
    add("--prefetch", type=int, default=0, metavar="K", help="of the sequential schedule")
    add(
        "--memory",
        type=_bytes,
        metavar="SIZE",
        help="of a rank, as 4GiB or 3500M (units of 1024); default: no limit",
    )
    add(
        "--bandwidth",
        type=float,
        default=1.0,
        metavar="GB/s",
        help="that a rank sends while all ranks of its host send (default: 1)",
    )
    add(
        "--ranks-per-host",
        type=int,
        metavar="N",
        help="hosts have so many ranks, in order; matters to hierarchical (default: all ranks)",
    )
    add("--latency", type=float, default=5.0, metavar="US", help="of a message (default: 5)")
    add(
        "--epochs",
        type=int,
        default=4,
        metavar="N",
        help="to rehearse, at least 2 (default: 4)",
    )
    add(
        "--beside",
        type=int,
        default=1,
        metavar="N",
        help="rehearse so many copies of the rank at once, as ranks of a host share its memory's "
        "bandwidth; needs the memory of each (default: 1)",
    )
    add("--json", action="store_true", help="print a list of JSON objects")
    options = parser.parse_intermixed_args()
    if options.epochs < 2:
        parser.error(f"--epochs {options.epochs}: at least 2, the first one also makes buffers")
    if options.shape and options.write_shape:
        parser.error("--shape and --write-shape: a shape is written of a store")
    if options.write_shape and len(options.ranks) > 1:
        parser.error("--write-shape: give one number of --ranks, whose block rows are measured")
    if options.beside < 1:
        parser.error(f"--beside {options.beside}: at least 1, the rank itself")
    if options.prefetch < 0:
        parser.error(f"--prefetch {options.prefetch}: must not be negative")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(word) for word in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1 on")
    return numbers


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r}: choose of {', '.join(known)}")
        return words

    return names


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write a size such as 4GiB or 3500M")
    return int(float(match[1]) * UNITS[match[2].upper()])


if __name__ == "__main__":
    run_mpi_command("plan", main)
