"""METIS multilevel k-way partitioning, through pymetis."""

from typing import Any, Literal, TypeAlias

import numpy as np
import pymetis
from scipy import sparse

from hpcgnn.errors import InputError
from hpcgnn.partition.parts import Partition, Partitioner
from hpcgnn.partition.pattern import CSRGraph

MetisObjective: TypeAlias = Literal["cut", "volume"]


def metis(seed: int = 0, imbalance: float = 0.05, objective: MetisObjective = "cut") -> Partitioner:
    """Return a partitioner that minimises METIS's objective under a balance of work.

    The pattern is symmetrised without its diagonal; an edge stored both ways has weight two. A
    node's weight is its row's number of non-zeros (1 for an empty row). `seed` is for METIS's own
    random numbers, below 2**31. `imbalance` is the largest allowed work of a part over the average,
    minus one. The objective ``cut`` counts edges between parts; ``volume`` counts all rows that
    parts exchange, which takes METIS minutes if nodes have hundreds of neighbours.

    Raises InputError if the graph is too large for the index type that pymetis was built with, or
    for the memory.
    """
    if not imbalance > 0:
        raise InputError(f"imbalance is {imbalance}: METIS needs a value above 0, such as 0.05")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed is {seed}: METIS needs 0 <= seed < 2147483648")

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        if num_parts == 1 or graph.num_nodes <= num_parts:
            # METIS does not accept more parts than nodes; give every node its own part.
            part = np.arange(graph.num_nodes) % num_parts
            return Partition(part.astype(np.int32), num_parts)
        both = _symmetrised(graph)
        weighted = (both.indptr, both.indices, both.data, graph.row_weights())
        return Partition(weighted_metis(weighted, num_parts, seed, imbalance, objective), num_parts)

    return partition


def weighted_metis(
    weighted: tuple[Any, Any, Any, Any],
    num_parts: int,
    seed: int,
    imbalance: float,
    objective: MetisObjective = "cut",
) -> Any:
    """Return METIS's parts, int32[n], of a symmetric graph without loops.

    `weighted` is (offsets, neighbours, edge weights, node weights); parameters and errors are those
    of `metis`. Node weights are scaled down if their sum exceeds half of METIS's largest integer.
    """
    _, neighbours, edge_weights, node_weights = weighted
    index = pymetis.zero_copy_dtype()
    limit = int(np.iinfo(index).max)
    if neighbours.size > limit:
        raise InputError(
            f"metis: {neighbours.size} symmetrised non-zeros exceed the limit {limit} of this "
            f"pymetis ({index} indices); use --method volume, block or random, or a pymetis built "
            "with 64-bit indices"
        )
    scale = -(-int(node_weights.sum()) // (limit // 2))
    scaled = node_weights // max(scale, 1)
    kind = pymetis.ObjType.VOL if objective == "volume" else pymetis.ObjType.CUT
    options = pymetis.Options(seed=seed, ufactor=max(1, round(1000 * imbalance)), objtype=kind)
    adjacency = pymetis.CSRAdjacency(*(each.astype(index, copy=False) for each in weighted[:2]))
    weights = {
        "vweights": scaled.astype(index, copy=False),
        "eweights": edge_weights.astype(index, copy=False),
    }
    try:
        result = pymetis.part_graph(
            num_parts, adjacency, **weights, recursive=False, options=options
        )
    except RuntimeError:
        # pymetis does not tell which; METIS takes SIGTERM for an error of its own.
        raise InputError(
            "metis: out of memory, or stopped by a signal; give it more memory, or use --method "
            "volume on several ranks, which share the graph"
        ) from None
    return np.asarray(result.vertex_part, np.int32)


def _symmetrised(graph: CSRGraph) -> Any:
    pattern = graph.to_scipy().astype(np.int8)
    both = (pattern + pattern.T).tocsr()
    # A sparse difference stores no zeros, so this removes the diagonal from the pattern.
    both = (both - sparse.diags_array(both.diagonal(), dtype=np.int8)).tocsr()
    both.sort_indices()
    return both
