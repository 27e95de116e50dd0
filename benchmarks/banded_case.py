"""The cases timed by `bench_banded`: supergraphs that fit in memory, with their propagators."""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.banded import Supergraph, first_fit_decreasing, held_edges, lay_out
from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.nn import Propagator, PropagatorName, make_propagator
from hpcgnn.storage import InstanceSplit, InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import GlobalIndices

__all__ = ["Case", "Kind", "make_case"]

OFF = TraceRecorder.open(None, 0, {})
NUMBER_BYTES = 4
GRU_ROWS = 10
"""Approximate number of hidden rows that the GRU cell stores for each node and step."""
SAMPLE_GRAPHS = 2000
SAMPLE_SUPERGRAPHS = 16


@dataclass(frozen=True)
class Kind:
    """A propagator, its block size, and the most supernodes of a graph."""

    name: PropagatorName
    block: int
    supernodes: int


@dataclass(frozen=True)
class Case:
    """A propagator on one supergraph per rank, the times of its steps, and counts of a sample.

    `mean_graphs` is the mean over all supergraphs; `sample` counts over some of each rank.
    """

    kind: Kind
    node_budget: int
    mean_graphs: float
    sample: Counter[str]
    graph: Supergraph
    propagator: Propagator
    layout_s: float
    build_s: float
    wall: list[float]
    cpu: list[float]


def make_case(grid: ProcessGrid, store: InstanceStore, kind: Kind, options: Any) -> Case:
    """Pack a shuffled sample of graphs; count some of this rank's supergraphs, build the first."""
    budget = _node_budget(store, kind, options)
    bins = _pack(store, kind, budget, lossless=options.lossless)
    if len(bins) < grid.size:
        raise InputError(f"{store.path}: fills {len(bins)} supergraphs of {budget} nodes only")
    own_bins = bins[grid.rank :: grid.size][:SAMPLE_SUPERGRAPHS]
    supergraphs = [_supergraph(store, kind, numbers) for numbers in own_bins]
    sample: Counter[str] = Counter()
    for supergraph, _ in supergraphs:
        sample.update(_counts(kind, supergraph))
    graph, layout_s = supergraphs[0]
    began = time.perf_counter()
    propagator = make_propagator(
        kind.name,
        graph.edges,
        block=kind.block,
        dtype=torch.float32,
        trace=OFF,
        supernodes=graph.supernodes,
    )
    build_s = time.perf_counter() - began
    mean_graphs = sum(map(len, bins)) / len(bins)
    return Case(kind, budget, mean_graphs, sample, graph, propagator, layout_s, build_s, [], [])


def _node_budget(store: InstanceStore, kind: Kind, options: Any) -> int:
    """Return the number of nodes whose blocks and stored rows fit in memory."""
    types, steps = 2 * len(store.header.edge_names), store.header.steps
    if kind.name == "sparse":
        edges = 2 * store.graphs["num_edges"].sum() / store.graphs["num_nodes"].sum()
        node_bytes = steps * (edges + GRU_ROWS) * options.hidden * NUMBER_BYTES
    else:
        node_bytes = steps * (types + GRU_ROWS) * options.hidden * NUMBER_BYTES
        node_bytes += (3 * kind.block + 2 * kind.supernodes) * types * NUMBER_BYTES
    return int((options.memory << 20) / node_bytes)


def _pack(store: InstanceStore, kind: Kind, budget: int, *, lossless: bool) -> list[GlobalIndices]:
    """Return the sorted graphs of each supergraph; supergraphs are in random order."""
    low, high = store.split_range(InstanceSplit.TRAIN)
    graphs = store.graphs[low:high]
    fits = graphs["num_nodes"] <= budget
    if lossless and kind.block:
        fits &= graphs["bandwidth"] < kind.block
    chosen = np.random.default_rng(1).permutation(np.flatnonzero(fits))[:SAMPLE_GRAPHS]
    bins = first_fit_decreasing(graphs["num_nodes"][chosen], budget)
    # The first bins hold the largest graphs: mix them with the others.
    order = np.random.default_rng(2).permutation(len(bins))
    return [low + np.sort(chosen[bins[index]]) for index in order]


def _supergraph(
    store: InstanceStore, kind: Kind, numbers: GlobalIndices
) -> tuple[Supergraph, float]:
    """Return the supergraph of these graphs, and the seconds that its layout took."""
    batch = store.read_graphs(numbers)
    began = time.perf_counter()
    layout = lay_out(batch, kind.block, kind.supernodes) if kind.supernodes else None
    layout_s = time.perf_counter() - began
    # Node ids only seed dropout, which is off.
    ids = np.zeros_like(numbers)
    return Supergraph.build(batch, len(store.header.edge_names), ids, layout), layout_s


def _counts(kind: Kind, graph: Supergraph) -> dict[str, int]:
    edges, supernodes = graph.edges, graph.supernodes
    drops = kind.block > 0 and kind.name != "hybrid"
    held = int(held_edges(edges, kind.block, supernodes).sum()) if drops else len(edges)
    return {
        "supergraphs": 1,
        "graphs": graph.num_graphs,
        "nodes": graph.num_nodes,
        "edges": len(edges),
        "dropped_edges": len(edges) - held,
        "supernode_edges": 0 if supernodes is None else int(supernodes.touch(edges).sum()),
    }
