"""Partitioning by volume on many ranks, each of which holds only its share of the graph.

Distributed coarsening (`coarsening`) gives a small graph, which METIS partitions (`initial`). Then
every rank gets a group of parts and refines them with the serial library's V-cycle (`groups`), all
ranks at the same time, with different groups in every round (`refinement`).
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import (
    Communicator,
    MpiGroup,
    ProcessGrid,
    agree,
    allreduce_max,
    allreduce_sum,
)
from hpcgnn.console import report
from hpcgnn.errors import InputError
from hpcgnn.kernels import return_freed_arrays
from hpcgnn.partition.groups import Counts, GroupShare
from hpcgnn.partition.initial import first_parts
from hpcgnn.partition.metrics import VolumeMetrics, work_of
from hpcgnn.partition.nets import Pins, fetch_pins, joint_pins
from hpcgnn.partition.parts import Partitioned
from hpcgnn.partition.pattern import BlockRow, read_rows
from hpcgnn.partition.refinement import Terms, refine
from hpcgnn.partition.volume_balanced import MAX_PARTS, PRESENT, VolumeOptions
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.storage.by_ranks import verify_by_ranks
from hpcgnn.typing import LocalIndices, Offsets

ONE_PROCESS = ("candidates", "threads", "time_limit")
"""Options of ``--method volume`` that only a single process supports."""


@collective
def by_all_ranks(comm: Communicator, store: GraphStore, options: argparse.Namespace) -> Partitioned:
    """Partition by volume; CollectiveInputError for options that many ranks do not support."""
    return_freed_arrays()
    tell = report if comm.rank == 0 else lambda _: None
    with ProcessGrid(comm) as grid:
        with agree(comm):
            terms = _terms(options, store)
        verify_by_ranks(MpiGroup(comm), store)
        tell(f"{terms.num_parts} parts on {comm.size} ranks: reading the pattern")
        rows = read_rows(MpiGroup(comm), store, options.relations, options.undirected)
        row_map, lengths = rows.row_map, np.diff(rows.indptr)
        began = time.perf_counter()
        pins, part = _start(grid, store, rows, terms, options, tell)
        # Free the memory for refinement.
        del rows
        best = refine(grid.layer, pins, part, terms, tell)
        seconds = time.perf_counter() - began
        counts = best.counts
        if terms.objective == "joint":
            rows = read_rows(MpiGroup(comm), store, options.relations, options.undirected)
            group = (np.arange(terms.num_parts) % comm.size).astype(np.int32)
            counts = GroupShare(comm, fetch_pins(comm, rows), group, best.part).count(best.part)
        metrics = asdict(_metrics(comm, lengths, counts, best.part))
    metrics |= {"seconds": round(seconds, 3), "ranks": comm.size}
    return Partitioned(row_map, best.part, best.counts.work, metrics)


def _terms(options: argparse.Namespace, store: GraphStore) -> Terms:
    """Return the options as `Terms`; raise InputError for what many ranks do not support."""
    for name in ONE_PROCESS:
        if getattr(options, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} belongs to one process: leave it out, or start one only")
    if options.refine not in (None, Path(PRESENT)):
        raise InputError(f"--refine {options.refine}: many ranks refine {PRESENT} parts only")
    parts = options.parts
    if options.refine is not None:
        parts = store.num_parts if parts is None else parts
        if parts < store.num_parts:
            raise InputError(f"--parts {parts}: {options.store} has {store.num_parts} parts")
    if parts is None:
        raise InputError("--parts K is missing: give the number of parts")
    if not 1 <= parts <= min(MAX_PARTS, store.num_nodes):
        raise InputError(
            f"--parts {parts}: --method volume makes 1 to {MAX_PARTS} parts on many ranks, and not "
            f"more than the {store.num_nodes} nodes"
        )
    names = ("objective", "preset", "imbalance")
    terms = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    chosen = VolumeOptions(seed=options.seed, **terms)
    return Terms(parts, chosen.objective, chosen.preset, chosen.imbalance, chosen.seed)


@collective
def _start(
    grid: ProcessGrid,
    store: GraphStore,
    rows: BlockRow,
    terms: Terms,
    options: argparse.Namespace,
    tell: Any,
) -> tuple[Pins, LocalIndices]:
    comm = grid.layer
    pins = joint_pins(comm, rows) if terms.objective == "joint" else fetch_pins(comm, rows)
    if options.refine is not None:
        nodes = np.arange(rows.row_map.start, rows.row_map.stop)
        part = np.searchsorted(store.row_starts, nodes, side="right") - 1
        return pins, part.astype(np.int32)
    tell("clustering")
    return pins, first_parts(grid, rows, pins.weights, terms.num_parts, terms.seed, terms.imbalance)


@collective
def _metrics(
    comm: Communicator, lengths: Offsets, counts: Counts, part: LocalIndices
) -> VolumeMetrics:
    """Return the metrics of `hpcgnn.partition.measure`, which are those of the aware exchange.

    `lengths` (num_local,) int64 are the numbers of non-zeros of this rank's rows.
    """
    work, heaviest = work_of(lengths, part, len(counts.loads))
    allreduce_sum(comm, work)
    allreduce_max(comm, heaviest)
    loads, most = counts.loads.T, counts.max_pair_rows
    return VolumeMetrics.of(counts.cut_pins, loads, most, work, heaviest)
