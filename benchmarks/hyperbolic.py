"""Random hyperbolic graphs: power-law degrees, clusters, and a few hubs at the centre of a disc."""

import numpy as np

from hpcgnn.gallery import GalleryGraph
from hpcgnn.gallery.graph import both_ways
from hpcgnn.typing import FloatArray, GlobalIndices


def hyperbolic(
    num_nodes: int, seed: int, mean_degree: float, exponent: float = 2.5
) -> GalleryGraph:
    """Connect random points of a hyperbolic disc whose distance is below its radius.

    Degrees follow a power law with `exponent` > 2; their mean tends to `mean_degree` for many nodes
    (Krioukov et al., Physical Review E 82, 2010, equations 11 to 22).
    """
    alpha = (exponent - 1) / 2
    share = (exponent - 1) / (exponent - 2)
    disc = 2 * float(np.log(2 * num_nodes * share**2 / (np.pi * mean_degree)))
    generator = np.random.default_rng(seed)
    angle = np.sort(generator.random(num_nodes) * 2 * np.pi)
    radius = np.arccosh(1 + (np.cosh(alpha * disc) - 1) * generator.random(num_nodes)) / alpha
    ends = [inward(angle, radius, inner, disc) for inner in range(int(disc) + 1)]
    src, dst = (np.concatenate(side) for side in zip(*ends, strict=True))
    edges = both_ways(src, dst, num_nodes)
    return GalleryGraph(name="hyperbolic", num_nodes=num_nodes, edges={"": edges}, undirected=True)


def inward(
    angle: FloatArray, radius: FloatArray, inner: int, disc: float
) -> tuple[GlobalIndices, GlobalIndices]:
    """Return the edges from points at least as far out to those of the ring [inner, inner + 1)."""
    ring = np.flatnonzero(radius.astype(int) == inner)
    outer = np.flatnonzero(radius >= inner)
    # Angles repeat, so that a range around 0 needs no case of its own.
    around = np.concatenate([angle[ring] - 2 * np.pi, angle[ring], angle[ring] + 2 * np.pi])
    widest = spread(radius[outer], np.full(outer.size, max(inner, 1e-9)), disc)
    first = np.searchsorted(around, angle[outer] - widest)
    counts = np.minimum(np.searchsorted(around, angle[outer] + widest) - first, ring.size)
    src = np.repeat(outer, counts)
    steps = np.arange(src.size) - np.repeat(np.cumsum(counts) - counts, counts)
    dst = ring[(np.repeat(first, counts) + steps) % max(ring.size, 1)]
    apart = np.abs(angle[src] - angle[dst])
    near = np.minimum(apart, 2 * np.pi - apart) <= spread(radius[src], radius[dst], disc)
    return src[near], dst[near]


def spread(first: FloatArray, second: FloatArray, disc: float) -> FloatArray:
    """Return the angle below which points at two radii are closer than `disc`."""
    cosine = np.cosh(first) * np.cosh(second) - np.cosh(disc)
    return np.arccos(np.clip(cosine / (np.sinh(first) * np.sinh(second)), -1, 1))
