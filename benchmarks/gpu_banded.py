"""Steps of the banded GGNN on a GPU by block size and precision, and of the sparse pattern."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_timing import interleave_on_device
from benchmarks.spmm_graphs import SEED
from hpcgnn.autograd.band import BAND_PRECISIONS
from hpcgnn.banded import TypedEdges, both_ways
from hpcgnn.nn import make_propagator
from hpcgnn.nn.models.ggnn import Propagator
from hpcgnn.trace import TraceRecorder

__all__ = ["banded_cases"]

FORWARD_TYPES, DEGREE, GRAPH_NODES = 8, 2, 256
OFF = TraceRecorder.off()


def banded_cases(
    blocks: list[int], num_nodes: int, hidden: int, place: torch.device, repeat: int
) -> Iterator[dict[str, Any]]:
    """Yield seconds of one step of messages, forward and backward, for each block size.

    The graphs are random, of 256 nodes each, with edges that fit the smallest block size, so that
    every propagator computes the same.

    Parameters
    ----------
    blocks
        Sizes S, ascending.
    num_nodes
        Nodes of the supergraph.
    hidden
        Width of node states.
    place
        The GPU.
    repeat
        Counted rounds.
    """
    edges = random_edges(num_nodes, blocks[0])
    torch.manual_seed(SEED)
    kinds = 2 * FORWARD_TYPES
    shapes = (num_nodes, hidden), (kinds, hidden, hidden), (kinds, hidden)
    operands = [torch.randn(shape, device=place, requires_grad=True) for shape in shapes]
    settings = {"sparse": ("sparse", 0, "native")} | {
        f"{precision}:{block}": ("banded", block, precision)
        for block in blocks
        for precision in BAND_PRECISIONS
    }
    made = {
        name: make_propagator(kind, edges, block=block, dtype=torch.float32, trace=OFF).on_gpu(
            place, precision
        )
        for name, (kind, block, precision) in settings.items()
    }
    methods: dict[str, Callable[[], object]] = {
        name: partial(step, propagator, operands) for name, propagator in made.items()
    }
    results = {name: propagator(*operands).detach() for name, propagator in made.items()}
    seconds = interleave_on_device(methods, warmup=2, repeat=repeat)
    scale = float(results["sparse"].abs().max())
    for name, (_, block, precision) in settings.items():
        error = float((results[name] - results["sparse"]).abs().max())
        yield {
            "kind": "banded",
            "propagator": name,
            "block": block,
            "precision": precision,
            "nodes": num_nodes,
            "edges": len(edges),
            "hidden": hidden,
            "step_s": seconds[name],
            "graphs_per_s": num_nodes / GRAPH_NODES / seconds[name],
            "speedup_over_sparse": seconds["sparse"] / seconds[name],
            "relative_error": error / scale,
        }


def random_edges(num_nodes: int, reach: int) -> TypedEdges:
    """Return edges of random graphs, both ways, between nodes closer than `reach`."""
    rng = np.random.default_rng(SEED)
    sources = rng.integers(0, num_nodes, DEGREE * num_nodes)
    targets = sources + rng.integers(1 - reach, reach, len(sources))
    inside = (targets // GRAPH_NODES == sources // GRAPH_NODES) & (targets >= 0)
    ends = np.column_stack([sources, targets])[inside & (targets < num_nodes)].astype(np.int32)
    types = rng.integers(0, FORWARD_TYPES, len(ends)).astype(np.int32)
    return both_ways(types, ends, num_nodes, FORWARD_TYPES)


def step(propagator: Propagator, operands: list[torch.Tensor]) -> None:
    """Propagate, and differentiate with respect to all operands."""
    for each in operands:
        each.grad = None
    propagator(*operands).sum().backward()  # type: ignore[no-untyped-call]
