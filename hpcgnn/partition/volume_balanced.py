"""Partitions balanced by communication volume: the native partitioner and its starts.

``docs/partitioner.md`` explains how to choose an objective, ``partitioner/README.md`` the method.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.partition import _volpart
from hpcgnn.partition.metis import metis, weighted_metis
from hpcgnn.partition.metrics import VolumeMetrics
from hpcgnn.partition.parts import Partition, Partitioner, block, random
from hpcgnn.partition.pattern import CSRGraph, as_integers, as_pattern
from hpcgnn.typing import LocalIndices, Offsets

Objective: TypeAlias = Literal["total", "max_send", "max_recv", "max_both", "joint"]
Preset: TypeAlias = Literal["fast", "default"]
Candidate: TypeAlias = Literal["metis", "metis-volume", "bisection", "block", "random"]

Report: TypeAlias = Callable[[str, float], None]

OBJECTIVES: tuple[Objective, ...] = ("total", "max_send", "max_recv", "max_both", "joint")
PRESETS: tuple[Preset, ...] = ("fast", "default")
CANDIDATES: tuple[Candidate, ...] = ("metis", "metis-volume", "bisection", "block", "random")

PRESENT = "present"
"""Given instead of a file of parts, means the parts that the store has."""

DEFAULT_IMBALANCE = 0.05
MAX_PARTS: int = _volpart.MAX_PARTS
METIS_SEEDS = 2**31
SMALLEST_METIS_IMBALANCE = 0.001
SKETCH_SHARE = 4
SMALLEST_SKETCH = 2**16
MAX_THREADS = 1024
MAX_SEED = 2**63


@dataclass(frozen=True)
class VolumeOptions:
    """Options of `part_graph`; raises InputError for values out of range.

    The objective is `total`, the rows sent by all parts; `max_send` or `max_recv`, those by or to
    the busiest part; `max_both`, the larger of the two; or `joint`, the same for the joint
    exchange. `imbalance` is the allowed weight of a part over the larger of the average and its
    heaviest node, minus one. `threads` refine each start independently, and the best result is
    kept; after `time_limit` seconds, METIS's time included, the best partition so far is returned.
    The preset `fast` adds about the time of METIS, `default` a few times that, with better results.

    `candidates` are partitions to refine, of which the best result is kept: `metis`, its edge cut
    of a small graph of clusters that represents the graph; `metis-volume`, its volume objective on
    the whole graph, slow for graphs with hubs; `bisection`, the library's own multilevel start,
    without METIS; `block` and `random`.
    """

    objective: Objective = "max_both"
    imbalance: float = 0.05
    seed: int = 0
    threads: int = 1
    time_limit: float | None = None
    preset: Preset = "default"
    candidates: Sequence[Candidate] = ("metis",)

    def __post_init__(self) -> None:
        choices: list[tuple[str, str, Sequence[str]]]
        choices = [("objective", self.objective, OBJECTIVES), ("preset", self.preset, PRESETS)]
        choices += [("a candidate", name, CANDIDATES) for name in self.candidates]
        for name, value, allowed in choices:
            if value not in allowed:
                raise InputError(f"{name} is {value!r}: choose one of {', '.join(allowed)}")
        if not 0 <= self.imbalance < np.inf:
            raise InputError(f"imbalance is {self.imbalance}: at least 0 is needed, such as 0.05")
        if not 0 <= self.seed < MAX_SEED:
            raise InputError(f"seed is {self.seed}: a seed is at least 0 and below 2**63")
        if not 1 <= self.threads <= MAX_THREADS:
            raise InputError(f"threads is {self.threads}: 1 to {MAX_THREADS} are possible")
        if self.time_limit is not None and not self.time_limit >= 0:
            raise InputError(f"time_limit is {self.time_limit}: at least 0 seconds are needed")


@dataclass(frozen=True)
class VolumePartition:
    """A partition `part` int32[n], its metrics, and the start that it was refined from.

    `metrics` are those of `hpcgnn.partition.measure`; with `vweights` the imbalance is of these.
    """

    part: LocalIndices
    metrics: VolumeMetrics
    winner: str


def volume_balanced(
    objective: Objective = "max_both",
    *,
    initial: ArrayLike | None = None,
    report: Report | None = None,
    **options: Any,
) -> Partitioner:
    """Return a partitioner that minimises the rows that parts exchange; see `part_graph`."""
    checked = VolumeOptions(objective, **options)

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        began = time.perf_counter()
        best = _search(num_parts, as_pattern(graph), None, initial, report, checked)
        if report is not None:
            report(f"kept the refinement of {best.winner}", time.perf_counter() - began)
        return Partition(best.part, num_parts, best.winner)

    return partition


def part_graph(
    num_parts: int,
    adjacency: Any = None,
    *,
    xadj: ArrayLike | None = None,
    adjncy: ArrayLike | None = None,
    vweights: ArrayLike | None = None,
    initial: ArrayLike | None = None,
    report: Report | None = None,
    **options: Any,
) -> VolumePartition:
    """Partition a square pattern so that the parts exchange few rows in a product with it.

    Row i lists the columns that node i reads; directed patterns, loops, repeated and unsorted
    columns are allowed. int64 offsets with int32 or int64 columns are not copied. The result
    depends only on the seed and on `threads`, unless `time_limit` ends the run.

    `num_parts` is 1 to 65,536. The pattern is a `CSRGraph`, a SciPy sparse matrix or array, a torch
    CSR tensor, a tuple (offsets, columns), or the two arrays by name. `vweights` are non-negative
    integer weights of the nodes, by default the numbers of non-zeros of the rows. `initial` int[n]
    is a partition to refine instead of the candidates; the result is at least as good. `report` is
    called with a text and the seconds since the start of the refinement. `options` are the fields
    of `VolumeOptions`.

    Raises ValueError for a malformed pattern and for options out of range.
    """
    checked = VolumeOptions(**options)
    graph = as_pattern(adjacency, xadj, adjncy)
    weights = None if vweights is None else as_integers("vweights", vweights, np.int64)
    return _search(num_parts, graph, weights, initial, report, checked)


def _search(
    num_parts: int,
    graph: CSRGraph,
    weights: Offsets | None,
    initial: ArrayLike | None,
    report: Report | None,
    options: VolumeOptions,
) -> VolumePartition:
    began = time.perf_counter()
    starts: list[tuple[str, LocalIndices | None]]
    if initial is None:
        starts = [
            (name, _start(name, graph, num_parts, weights, options)) for name in options.candidates
        ]
    else:
        starts = [("initial", as_integers("initial", initial, np.int32))]
    limit = options.time_limit
    left = np.inf if limit is None else limit - (time.perf_counter() - began)
    part, metrics, winner = _volpart.part_graph(
        num_parts,
        graph.indptr,
        graph.indices,
        weights,
        starts,
        options.objective,
        options.preset,
        options.imbalance,
        options.seed,
        options.threads,
        max(0.0, left),
        report,
    )
    return VolumePartition(part, VolumeMetrics(**metrics, parts=num_parts), winner)


def _start(
    name: Candidate,
    graph: CSRGraph,
    num_parts: int,
    weights: Offsets | None,
    options: VolumeOptions,
) -> LocalIndices | None:
    """Return the partition that candidate `name` starts from, or None if the library makes it.

    Raises ValueError if the library cannot make `num_parts`.
    """
    if not 1 <= num_parts <= MAX_PARTS:
        raise ValueError(f"num_parts is {num_parts}: 1 to {MAX_PARTS} are possible")
    if name == "bisection":
        return None
    if name == "metis":
        return _sketched_metis(graph, num_parts, weights, options)
    if name == "metis-volume":
        pattern = graph.to_scipy()
        if not pattern.has_canonical_format:
            # Copy, since sorting in place would change the caller's arrays.
            graph = CSRGraph.from_scipy(pattern.copy())
        partitioner = metis(*_metis_terms(options), "volume")
    else:
        partitioner = random(options.seed) if name == "random" else block()
    return partitioner(graph, num_parts).part


def _metis_terms(options: VolumeOptions) -> tuple[int, float]:
    """Return the valid METIS seed and imbalance that are nearest to the options."""
    return options.seed % METIS_SEEDS, max(options.imbalance, SMALLEST_METIS_IMBALANCE)


def _sketched_metis(
    graph: CSRGraph, num_parts: int, weights: Offsets | None, options: VolumeOptions
) -> LocalIndices:
    """Return METIS's parts of a sketch of `graph`; METIS on the whole graph needs much memory."""
    max_edges = max(graph.indices.size // SKETCH_SHARE, SMALLEST_SKETCH)
    cluster, offsets, neighbours, edge_weights, node_weights = _volpart.sketch(
        num_parts, graph.indptr, graph.indices, weights, max_edges, options.seed
    )
    if num_parts == 1 or node_weights.size <= num_parts or not node_weights.any():
        return cluster % num_parts
    sketch = (offsets, neighbours, edge_weights, node_weights)
    part = weighted_metis(sketch, num_parts, *_metis_terms(options))
    return part[cluster]
