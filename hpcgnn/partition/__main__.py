"""``python -m hpcgnn.partition``: permute a store into K parts and say what they exchange."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcgnn.console import print_json, print_table, report, run_command
from hpcgnn.errors import InputError
from hpcgnn.partition.methods import Partitioner, block, random
from hpcgnn.partition.metis import metis
from hpcgnn.partition.pattern import read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.partition.volume import measure
from hpcgnn.partition.volume_options import (
    DEFAULT_IMBALANCE,
    add_volume_options,
    refuse_volume_options,
    volume_partitioner,
)
from hpcgnn.storage import GraphStore, check_output

METHODS = ("metis", "volume", "random", "block")
BALANCED = ("metis", "volume")


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    cli = argparse.ArgumentParser(
        prog="python -m hpcgnn.partition",
        description="Write a copy of a store whose nodes are ordered part after part. Parts are "
        "independent of ranks: a store in K parts trains on any number of ranks up to K.",
    )
    cli.add_argument("store", type=Path, metavar="STORE", help="store to partition")
    cli.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.h5")
    cli.add_argument("--parts", type=int, required=True, metavar="K", help="number of parts")
    cli.add_argument(
        "--method",
        choices=METHODS,
        default="metis",
        help="metis: least edge cut; volume: least rows at the busiest part; random: shuffled; "
        "block: present order; each balances non-zeros (default: metis)",
    )
    cli.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    cli.add_argument(
        "--imbalance",
        type=float,
        help="metis and volume: allowed work of a part over the average, minus one (default: "
        f"{DEFAULT_IMBALANCE})",
    )
    cli.add_argument(
        "--relations",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="A,B",
        help="relations whose union is partitioned and measured (default: all); the output "
        "keeps every relation",
    )
    cli.add_argument(
        "--undirected", action="store_true", help="partition and measure with reverse edges too"
    )
    cli.add_argument("--json", action="store_true", help="print the metrics as JSON")
    add_volume_options(cli)
    return cli


def main() -> None:
    """Partition, measure, write, print."""
    options = parser().parse_args()
    partitioner = choose(options)
    check_output(options.output)
    with GraphStore.open(options.store) as store:
        report("reading the pattern")
        graph = read_pattern(store, options.relations, options.undirected)
        report(f"partitioning {graph.num_nodes} nodes, {graph.indices.size} non-zeros")
        began = time.perf_counter()
        partition = partitioner(graph, options.parts)
        seconds = time.perf_counter() - began
        metrics = asdict(measure(graph, partition.part, options.parts))
        del graph
        metrics |= {"seconds": round(seconds, 3), "method": options.method, "seed": options.seed}
        if partition.winner is not None:
            metrics["winner"] = partition.winner
        write_partitioned(
            store,
            options.output,
            partition,
            method=options.method,
            seed=options.seed,
            metrics=metrics,
            provenance=provenance(store),
        )
    show(metrics, options)


def choose(options: argparse.Namespace) -> Partitioner:
    """Return the partitioner that the options name; raise InputError where they contradict."""
    if not 1 <= options.parts < 2**31:
        raise InputError(f"--parts {options.parts}: give at least 1 and below 2**31 parts")
    if options.imbalance is not None and options.method not in BALANCED:
        raise InputError(f"--imbalance belongs to {BALANCED}, not to {options.method}")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"--seed {options.seed}: a seed is at least 0 and below 2**63")
    if options.method == "volume":
        return volume_partitioner(options)
    refuse_volume_options(options)
    if options.method == "metis":
        imbalance = DEFAULT_IMBALANCE if options.imbalance is None else options.imbalance
        return metis(options.seed, imbalance)
    return random(options.seed) if options.method == "random" else block()


def provenance(store: GraphStore) -> dict[str, Any]:
    """Return the provenance of the output: this command, and what the input had."""
    return {"command": ["hpcgnn.partition", *sys.argv[1:]], "input": store.provenance}


def show(metrics: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the metrics, as JSON or as a table."""
    if options.json:
        print_json(metrics)
        return
    print_table(f"{options.output}", ("metric", "value"), list(metrics.items()))


if __name__ == "__main__":
    run_command("partition", main)
