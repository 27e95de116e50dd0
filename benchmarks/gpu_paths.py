"""Backward aggregation on a GPU along execution paths, and with all rows active."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu_timing import interleave_on_device
from benchmarks.spmm_graphs import SEED, Matrix
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.device import Device
from hpcgnn.graph.operators import Adjacency, make_operators
from hpcgnn.kernels.cuda.device import load_cupy
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.sparse import DistCSR
from hpcgnn.trace import TraceRecorder

__all__ = ["path_cases"]

DEPTH = 2
OFF = TraceRecorder.off()


def path_cases(
    matrix: Matrix, widths: list[int], share: float, device: Device, repeat: int
) -> Iterator[dict[str, Any]]:
    """Yield seconds of the backward aggregations of a two-layer GCN by width, both ways.

    Parameters
    ----------
    matrix
        A graph.
    widths
        Columns of the gradients.
    share
        Share of training nodes.
    device
        The GPU, with its rule for group sizes.
    repeat
        Counted rounds.
    """
    count = matrix.num_nodes
    rng = np.random.default_rng(SEED)
    targets = rng.random(count) < share
    with ProcessGrid.of_this_process() as grid:
        row_map = RowMap(np.array([0, count], np.int64), 0)
        columns = matrix.indices.astype(np.int64)
        part = DistCSR.from_rows(row_map, matrix.indptr, columns, None)
        wanted, ids = (Aggregation.SYMMETRIC,), np.arange(count)
        make = make_operators(grid, ExchangeConfig(), OFF, device)
        made = Adjacency(make, part, wanted, "float32", ids).products()
        began = time.perf_counter()
        active = made.active_views(targets, DEPTH)
        prepare_s = time.perf_counter() - began
        whole = [made.operators[Aggregation.SYMMETRIC]] * DEPTH
        paths = [each.operators[Aggregation.SYMMETRIC] for each in active.layers]
        inputs = active.inputs.cpu().numpy()
        for width in widths:
            given = rng.normal(size=(int(targets.sum()), width)).astype(np.float32)
            everywhere = np.zeros((count, width), np.float32)
            everywhere[targets] = given
            yield {
                "kind": "paths",
                "graph": matrix.name,
                "width": width,
                "share": share,
                "entries": [each.size.num_entries for each in (*whole, *paths)],
                "prepare_s": prepare_s,
                **_compare(whole, paths, everywhere, given, inputs, repeat),
            }


def _compare(
    whole: list[AggregationOperator],
    paths: list[AggregationOperator],
    everywhere: Any,
    given: Any,
    inputs: Any,
    repeat: int,
) -> dict[str, Any]:
    cupy = load_cupy()
    starts = {"all_active": (whole, everywhere), "paths": (paths, given)}
    methods: dict[str, Callable[[], Any]] = {
        name: partial(_backward, operators, cupy.asarray(rows))
        for name, (operators, rows) in starts.items()
    }
    all_active, restricted = (cupy.asnumpy(methods[name]()) for name in starts)
    error = np.abs(all_active[inputs] - restricted).max(initial=0)
    seconds = interleave_on_device(methods, warmup=2, repeat=repeat)
    return {
        "seconds": seconds,
        "speedup": seconds["all_active"] / seconds["paths"],
        "relative_error": float(error / max(np.abs(all_active).max(initial=0), 1e-30)),
    }


def _backward(operators: list[AggregationOperator], gradient: Any) -> Any:
    for operator in reversed(operators):
        gradient = operator.apply_transpose(gradient)
    return gradient
