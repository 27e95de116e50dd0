"""What refinement starts from, by name."""

from typing import Literal, TypeAlias

from hpcgnn.partition import _volpart
from hpcgnn.partition.methods import block, random
from hpcgnn.partition.metis import metis, weighted_metis
from hpcgnn.partition.pattern import CSRGraph
from hpcgnn.typing import LocalIndices, Offsets

__all__ = ["CANDIDATES", "Candidate", "make_start"]

Candidate: TypeAlias = Literal["metis", "metis-volume", "bisection", "block", "random"]

CANDIDATES: tuple[Candidate, ...] = ("metis", "metis-volume", "bisection", "block", "random")

MAX_PARTS = 1024
METIS_SEEDS = 2**31
SMALLEST_METIS_IMBALANCE = 0.001
SKETCH_SHARE = 4
SMALLEST_SKETCH = 2**16
HEAVIEST_SKETCH = 2**30


def make_start(
    name: Candidate,
    graph: CSRGraph,
    num_parts: int,
    weights: Offsets | None,
    seed: int,
    imbalance: float,
) -> LocalIndices | None:
    """Return the partition that candidate `name` starts from, or None if the library makes it.

    Raises ValueError where the library could not make so many parts.
    """
    if not 1 <= num_parts <= MAX_PARTS:
        raise ValueError(f"num_parts is {num_parts}: 1 to {MAX_PARTS} are possible")
    if name == "bisection":
        return None
    if name == "metis":
        return _sketched_metis(graph, num_parts, weights, seed, imbalance)
    if name == "metis-volume":
        pattern = graph.to_scipy()
        if not pattern.has_canonical_format:
            # The arrays are the caller's: sorting them in place would change them.
            graph = CSRGraph.from_scipy(pattern.copy())
        partitioner = metis(seed % METIS_SEEDS, max(imbalance, SMALLEST_METIS_IMBALANCE), "volume")
    else:
        partitioner = random(seed) if name == "random" else block()
    return partitioner(graph, num_parts).part


def _sketched_metis(
    graph: CSRGraph, num_parts: int, weights: Offsets | None, seed: int, imbalance: float
) -> LocalIndices:
    """Return METIS's parts of a sketch of `graph`: on the whole it takes most of the memory."""
    max_edges = max(graph.indices.size // SKETCH_SHARE, SMALLEST_SKETCH)
    cluster, offsets, neighbours, edge_weights, node_weights = _volpart.sketch(
        num_parts, graph.indptr, graph.indices, weights, max_edges, seed
    )
    if num_parts == 1 or node_weights.size <= num_parts or not node_weights.any():
        return cluster % num_parts
    scale = -(-int(node_weights.sum()) // HEAVIEST_SKETCH)
    scaled = node_weights // max(scale, 1)
    part = weighted_metis(
        (offsets, neighbours, edge_weights, scaled),
        num_parts,
        seed % METIS_SEEDS,
        max(imbalance, SMALLEST_METIS_IMBALANCE),
    )
    found: LocalIndices = part[cluster]
    return found
