"""Partitions balanced by communication volume: the native partitioner and what it starts from.

``docs/partitioner.md`` explains the model, the algorithm and the choice of an objective.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.partition import _volpart
from hpcgnn.partition.adjacency import as_integers, as_pattern
from hpcgnn.partition.methods import Partitioner
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.pattern import CSRGraph
from hpcgnn.partition.volume import VolumeMetrics
from hpcgnn.partition.volume_starts import CANDIDATES, Candidate, make_start
from hpcgnn.typing import LocalIndices

__all__ = [
    "CANDIDATES",
    "OBJECTIVES",
    "PRESETS",
    "VolumePartition",
    "part_graph",
    "volume_balanced",
]

Objective: TypeAlias = Literal["total", "max_send", "max_recv", "max_both", "joint"]
Preset: TypeAlias = Literal["fast", "default"]
Report: TypeAlias = Callable[[str, float], None]

OBJECTIVES: tuple[Objective, ...] = ("total", "max_send", "max_recv", "max_both", "joint")
PRESETS: tuple[Preset, ...] = ("fast", "default")

MAX_THREADS = 1024
MAX_SEED = 2**63


@dataclass(frozen=True)
class VolumePartition:
    """A partition, what it costs, and which candidate it came from.

    Attributes
    ----------
    part
        int32[n], values in [0, num_parts).
    metrics
        As `hpcgnn.partition.measure` counts them; with `vweights`, the imbalance is theirs.
    winner
        Name of the start that the best result was refined from.
    """

    part: LocalIndices
    metrics: VolumeMetrics
    winner: str


def volume_balanced(
    objective: Objective = "max_both",
    imbalance: float = 0.05,
    seed: int = 0,
    threads: int = 1,
    time_limit: float | None = None,
    *,
    preset: Preset = "default",
    candidates: Sequence[Candidate] = ("metis",),
    initial: ArrayLike | None = None,
    report: Report | None = None,
) -> Partitioner:
    """Return a partitioner that minimises the rows that parts exchange; see `part_graph`."""
    _check_options(objective, preset, candidates, imbalance, seed, threads, time_limit)

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        began = time.perf_counter()
        found = part_graph(
            num_parts,
            graph,
            objective=objective,
            imbalance=imbalance,
            seed=seed,
            threads=threads,
            time_limit=time_limit,
            preset=preset,
            candidates=candidates,
            initial=initial,
            report=report,
        )
        if report is not None:
            report(f"kept the refinement of {found.winner}", time.perf_counter() - began)
        return Partition(found.part, num_parts, found.winner)

    return partition


def part_graph(
    num_parts: int,
    adjacency: Any = None,
    *,
    xadj: ArrayLike | None = None,
    adjncy: ArrayLike | None = None,
    vweights: ArrayLike | None = None,
    objective: Objective = "max_both",
    imbalance: float = 0.05,
    seed: int = 0,
    threads: int = 1,
    time_limit: float | None = None,
    preset: Preset = "default",
    candidates: Sequence[Candidate] = ("metis",),
    initial: ArrayLike | None = None,
    report: Report | None = None,
) -> VolumePartition:
    """Partition a square pattern so that the parts exchange few rows in a product with it.

    Row i lists the columns that node i reads; directed patterns, loops, repeated and unsorted
    columns are allowed. int64 offsets with int32 or int64 columns are read in place. The result
    depends on the seed and on `threads` alone, unless `time_limit` ends the run.

    Parameters
    ----------
    num_parts
        1 to 1024.
    adjacency, xadj, adjncy
        The pattern: a `CSRGraph`, a SciPy sparse matrix or array, a torch CSR tensor, a tuple
        (offsets, columns), or the two arrays by name.
    vweights
        Weight of each node, non-negative integers; by default the non-zeros of its row.
    objective
        total: rows sent in all. max_send, max_recv: of the busiest sender or receiver. max_both:
        the larger of the two. joint: as max_both for the joint exchange.
    imbalance
        Allowed weight of a part over the larger of the average and its heaviest node, minus one.
    threads
        Independent refinements of each start, run side by side; the best is kept.
    time_limit
        Seconds after which the best partition so far is returned, METIS's own time included.
    preset
        fast: about the time of METIS on top of it; default: a few times that, and better.
    candidates
        Partitions to refine, of which the best result is kept: metis (its edge cut of a small
        graph of clusters that stands for this one), metis-volume (its volume objective, on the
        whole graph: slow where there are hubs), bisection (the library's own multilevel start,
        which needs no METIS), block, random.
    initial
        int[n] partition to refine instead of all candidates. The result is not worse than it.
    report
        Called with a text and the seconds since the start of the refinement.

    Raises ValueError for a malformed pattern and for options out of range.
    """
    _check_options(objective, preset, candidates, imbalance, seed, threads, time_limit)
    graph = as_pattern(adjacency, xadj, adjncy)
    weights = None if vweights is None else as_integers("vweights", vweights, np.int64)
    began = time.perf_counter()
    starts: list[tuple[str, LocalIndices | None]]
    if initial is None:
        starts = [
            (name, make_start(name, graph, num_parts, weights, seed, imbalance))
            for name in candidates
        ]
    else:
        starts = [("initial", as_integers("initial", initial, np.int32))]
    left = np.inf if time_limit is None else time_limit - (time.perf_counter() - began)
    part, metrics, winner = _volpart.part_graph(
        num_parts,
        graph.indptr,
        graph.indices,
        weights,
        starts,
        objective,
        preset,
        imbalance,
        seed,
        threads,
        max(0.0, left),
        report,
    )
    return VolumePartition(part, VolumeMetrics(**metrics, parts=num_parts), winner)


def _check_options(
    objective: str,
    preset: str,
    candidates: Sequence[str],
    imbalance: float,
    seed: int,
    threads: int,
    time_limit: float | None,
) -> None:
    choices: list[tuple[str, str, Sequence[str]]]
    choices = [("objective", objective, OBJECTIVES), ("preset", preset, PRESETS)]
    choices += [("a candidate", name, CANDIDATES) for name in candidates]
    for what, value, known in choices:
        if value not in known:
            raise InputError(f"{what} is {value!r}: choose one of {', '.join(known)}")
    if not 0 <= imbalance < np.inf:
        raise InputError(f"imbalance is {imbalance}: at least 0 is needed, such as 0.05")
    if not 0 <= seed < MAX_SEED:
        raise InputError(f"seed is {seed}: a seed is at least 0 and below 2**63")
    if not 1 <= threads <= MAX_THREADS:
        raise InputError(f"threads is {threads}: 1 to {MAX_THREADS} are possible")
    if time_limit is not None and not time_limit >= 0:
        raise InputError(f"time_limit is {time_limit}: at least 0 seconds are needed")
