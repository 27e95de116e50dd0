"""Random program-like graphs, as batches of the store."""

from dataclasses import replace

import numpy as np

from hpcgnn.banded import Supergraph, TypedEdges
from hpcgnn.storage import CANDIDATE_DTYPE, GRAPH_DTYPE, InstanceBatch, InstanceSplit
from hpcgnn.typing import Array

NUM_FORWARD = 3
NUM_BUCKETS = 17


def random_batch(
    sizes: list[int], reach: int, seed: int = 0, split: InstanceSplit = InstanceSplit.TRAIN
) -> InstanceBatch:
    """Return graphs whose edges join nodes at most `reach` apart, with 2 to 4 candidates.

    No node has the last bucket.
    """
    rng = np.random.default_rng(seed)
    graphs = np.zeros(len(sizes), GRAPH_DTYPE)
    graphs["num_nodes"], graphs["split"] = sizes, split
    edges, types, candidates = [], [], []
    for row, size in enumerate(sizes):
        source = rng.integers(0, size, 3 * size)
        target = np.clip(source + rng.integers(-reach, reach + 1, 3 * size), 0, size - 1)
        found = np.unique(
            np.column_stack([rng.integers(0, NUM_FORWARD, 3 * size), source, target]), axis=0
        )
        types.append(found[:, 0].astype(np.uint8))
        edges.append(found[:, 1:].astype(np.int32))
        graphs["bandwidth"][row] = np.abs(found[:, 1] - found[:, 2]).max(initial=0)
        choices = np.zeros(rng.integers(2, 5), CANDIDATE_DTYPE)
        choices["node"] = rng.permutation(max(size, 4))[: len(choices)] % size
        candidates.append(choices)
        graphs["label"][row] = rng.integers(0, len(choices))
    graphs["num_edges"] = [len(each) for each in edges]
    graphs["num_candidates"] = [len(each) for each in candidates]
    counts = rng.integers(1, 4, sum(sizes)).astype(np.uint8)
    ends = np.cumsum(sizes)
    graphs["num_subtokens"] = [
        counts[end - size : end].sum() for end, size in zip(ends, sizes, strict=True)
    ]
    return InstanceBatch(
        graphs,
        counts,
        rng.integers(0, NUM_BUCKETS - 1, int(counts.sum())).astype(np.uint16),
        np.concatenate([np.empty(0, np.uint8), *types]),
        np.concatenate([np.empty((0, 2), np.int32), *edges]),
        np.concatenate([np.empty(0, CANDIDATE_DTYPE), *candidates]),
    )


def hub_batch(sizes: list[int], hubs: int, reach: int) -> InstanceBatch:
    """Return random graphs with `hubs` nodes, from both ends on, that are next to every node."""
    batch = random_batch(sizes, reach)
    edges, types, starts = [], [], batch.starts("num_edges")
    for row, size in enumerate(sizes):
        low, high = starts[row : row + 2]
        ends = [0, size - 1, 1, size - 2][:hubs]
        stars = [(hub, node) for hub in ends for node in range(size) if node != hub]
        edges += [batch.edges[low:high], np.array(stars, np.int32)]
        types += [batch.edge_types[low:high], np.full(len(stars), row % NUM_FORWARD, np.uint8)]
        batch.graphs["num_edges"][row] += len(stars)
        batch.graphs["bandwidth"][row] = size - 1
    return replace(batch, edges=np.concatenate(edges), edge_types=np.concatenate(types))


def supergraph(sizes: list[int], reach: int, seed: int = 0) -> Supergraph:
    """Return the union of random graphs."""
    batch = random_batch(sizes, reach, seed)
    return Supergraph.build(batch, NUM_FORWARD, batch.starts("num_nodes")[:-1])


def dense(edges: TypedEdges) -> Array:
    """Return the matrices (P, n, n) of all types."""
    matrices = np.zeros((edges.num_types, edges.num_nodes, edges.num_nodes))
    np.add.at(matrices, (edges.types, edges.targets, edges.sources), 1.0)
    return matrices
