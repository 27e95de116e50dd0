"""The partitioning command: permute a store into K parts and report what they exchange."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.comm import Communicator, RankGroup, RowMap
from hpcgnn.console import (
    print_json,
    print_values,
    report,
    report_next,
)
from hpcgnn.errors import InputError
from hpcgnn.partition.distributed_volume import by_all_ranks
from hpcgnn.partition.metis import metis
from hpcgnn.partition.metrics import measure
from hpcgnn.partition.parts import FROM_FILE, Partitioned, Partitioner, block, given, random
from hpcgnn.partition.pattern import choose_relations, read_pattern
from hpcgnn.partition.permute import NewOrder, write_in_order
from hpcgnn.partition.rcb import by_coordinates
from hpcgnn.partition.streaming import StreamedUnion
from hpcgnn.partition.volume_balanced import (
    DEFAULT_IMBALANCE,
    MAX_PARTS,
    PRESENT,
    volume_balanced,
)
from hpcgnn.storage import GraphStore, StoreWriter, check_output
from hpcgnn.typing import LocalIndices, Offsets

BALANCED = ("metis", "volume", "streaming")

VOLUME_OPTIONS = ("objective", "preset", "candidates", "threads", "time_limit")
"""The options of ``--method volume`` that are fields of `VolumeOptions`."""


def main(options: argparse.Namespace, comm: "Communicator | None") -> int:
    """Partition, measure, write and print; return the exit status."""
    ranks = RankGroup.of(comm)
    with ranks.agree():
        if ranks.rank == 0:
            check_output(options.output, options.store)
        store = GraphStore.open(options.store)
    with store:
        if options.method == "volume" and comm is not None:
            partition = by_all_ranks(comm, store, options)
        elif options.method == "rcb":
            with ranks.agree():
                choose(options, store)
            partition = by_coordinates(ranks, store, options)
        else:
            partition = by_first_rank(ranks, store, options)
        metrics = partition.metrics | {"method": options.method, "seed": options.seed}
        order = NewOrder.of(ranks, partition.row_map, partition.part, partition.work)
        if ranks.rank == 0:
            report(f"writing {options.output}")

        def record(writer: StoreWriter) -> None:
            writer.set_partition(order.row_starts, options.method, options.seed, metrics)

        write_in_order(ranks, store, options.output, order, provenance(store), record)
    if ranks.rank == 0:
        show(metrics, options)
    return 0


def by_first_rank(ranks: RankGroup, store: GraphStore, options: argparse.Namespace) -> Partitioned:
    """Partition the whole graph on the first rank; InputError if options contradict."""
    # The other ranks wait while partitioners run, which report no progress.
    watchdog.set_limit(0)

    def partition() -> tuple[LocalIndices, Offsets, dict[str, Any]]:
        partitioner = choose(options, store)
        report("reading the pattern")
        # Check the original, because the copy gets new checksums.
        store.verify()
        if partitioner is None:
            return by_streaming(store, options)
        graph = read_pattern(store, options.relations, options.undirected)
        report(f"partitioning {graph.num_nodes:,} nodes, {graph.indices.size:,} non-zeros")
        began = time.perf_counter()
        partition = partitioner(graph, options.parts)
        seconds = time.perf_counter() - began
        metrics = asdict(measure(graph, partition.part, options.parts))
        metrics["seconds"] = round(seconds, 3)
        if partition.winner is not None:
            metrics["winner"] = partition.winner
        work = np.bincount(partition.part, graph.row_weights(), options.parts)
        return partition.part, work.astype(np.int64), metrics

    part, work, metrics = ranks.from_first(partition)
    row_map = RowMap(ranks.starts(store.num_nodes), ranks.rank)
    return Partitioned(row_map, part[row_map.start : row_map.stop], work, metrics)


def by_streaming(
    store: GraphStore, options: argparse.Namespace
) -> tuple[LocalIndices, Offsets, dict[str, Any]]:
    """Return the parts, their work and the metrics; the edges are read anew in every pass."""
    relations, scratch = choose_relations(store, options.relations), options.output.parent
    graph = StreamedUnion(store, relations, options.undirected, scratch)
    began = time.perf_counter()
    imbalance = DEFAULT_IMBALANCE if options.imbalance is None else options.imbalance
    part, work = graph.partition(options.parts, imbalance)
    seconds = round(time.perf_counter() - began, 3)
    metrics = asdict(graph.measure(part, options.parts)) | {"seconds": seconds}
    return part, work, metrics


def choose(options: argparse.Namespace, store: GraphStore) -> Partitioner | None:
    """Return the partitioner that the options name; raise InputError if they contradict.

    Returns None for ``streaming`` and ``rcb``, which do not load the whole graph. Sets
    `options.parts` from existing parts if it is None.
    """
    existing = None
    if options.method.startswith(FROM_FILE):
        existing = in_order_of(store, Path(options.method.removeprefix(FROM_FILE)))
    elif options.refine == Path(PRESENT):
        sizes = np.diff(store.row_starts)
        existing = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    elif options.refine is not None:
        existing = read_parts(options.refine)
    if options.parts is None:
        if existing is None or options.refine not in (None, Path(PRESENT)):
            raise InputError("--parts K is missing: give the number of parts")
        options.parts = int(existing.max(initial=0)) + 1
    if not 1 <= options.parts < 2**31:
        raise InputError(f"--parts {options.parts}: give at least 1 and below 2**31 parts")
    if options.imbalance is not None and options.method not in BALANCED:
        raise InputError(f"--imbalance belongs to {BALANCED}, not to {options.method}")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"--seed {options.seed}: a seed is at least 0 and below 2**63")
    imbalance = DEFAULT_IMBALANCE if options.imbalance is None else options.imbalance
    if options.method == "volume" and options.parts > MAX_PARTS:
        raise InputError(
            f"--parts {options.parts}: --method volume makes at most {MAX_PARTS}; use metis"
        )
    if existing is None and options.parts > max(1, store.num_nodes):
        raise InputError(
            f"--parts {options.parts}: {options.store} has {store.num_nodes} nodes, and some parts "
            "would have none"
        )
    if options.method == "volume":
        volume = {name: getattr(options, name) for name in VOLUME_OPTIONS}
        return volume_balanced(
            imbalance=imbalance,
            seed=options.seed,
            initial=existing,
            report=lambda text, seconds: report(f"{seconds:8.1f} s  {text}"),
            **{name: value for name, value in volume.items() if value is not None},
        )
    for name in (*VOLUME_OPTIONS, "refine"):
        if getattr(options, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} belongs to --method volume, not to {options.method}")
    if options.method in ("streaming", "rcb"):
        return None
    if existing is not None:
        return given(existing)
    if options.method == "metis":
        return metis(options.seed, imbalance)
    return random(options.seed) if options.method == "random" else block()


def in_order_of(store: GraphStore, path: Path) -> LocalIndices:
    """Return the parts (n,) of a store's nodes from a file that is in the order of original ids."""
    numbers = read_parts(path)
    ids = store.read_original_id(0, store.num_nodes)
    order = np.argsort(ids, kind="stable")
    if len(numbers) != len(ids):
        raise InputError(
            f"{path}: has {len(numbers):,} part numbers; give one for each of {store.path}'s "
            f"{len(ids):,} nodes"
        )
    if (np.diff(ids[order]) == 0).any():
        raise InputError(f"{store.path}: nodes of several types share original ids; use --refine")
    parts = np.empty_like(numbers)
    parts[order] = numbers
    return parts


def read_parts(path: Path) -> LocalIndices:
    """Read part numbers int32[n] from a .npy file, or from text with one on each line."""
    try:
        text = path.suffix != ".npy"
        numbers = np.array(path.read_text().split(), np.int64) if text else np.load(path)
    except (OSError, EOFError, OverflowError, ValueError) as error:
        raise InputError(f"{path}: no part numbers could be read: {error}") from error
    if not isinstance(numbers, np.ndarray) or numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InputError(f"{path}: a vector of integers is needed")
    limits = np.iinfo(np.int32)
    if numbers.size and not limits.min <= int(numbers.min()) <= int(numbers.max()) <= limits.max:
        raise InputError(f"{path}: a part number does not fit into 32 bits")
    return numbers.astype(np.int32)


def provenance(store: GraphStore) -> dict[str, Any]:
    """Return the provenance of the output: this command, and the provenance of the input."""
    return {"command": ["hpcgnn.partition", *sys.argv[1:]], "input": store.provenance}


def show(metrics: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the metrics, as JSON or as a table."""
    if options.json:
        print_json(metrics)
        return
    print_values(f"{options.output}", metrics, made=True)
    report_next("init", options.output)
