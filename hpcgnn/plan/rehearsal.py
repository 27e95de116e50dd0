"""The epochs of one rank, rehearsed: memory and seconds of computing, and what would travel."""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid
from hpcgnn.kernels import reused_memory
from hpcgnn.nn import Aggregations, GraphView, LayerView
from hpcgnn.plan.share import Share
from hpcgnn.plan.world import Movement, RehearsedExchange, RehearsedGrid
from hpcgnn.sparse import AggregationOperator, DistCSR, Transposed
from hpcgnn.spmm import DistributedAttention, DistributedSpMM
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.local_graph import LocalGraph
from hpcgnn.train.node_inputs import make_inputs
from hpcgnn.train.node_task import NodeTask
from hpcgnn.train.products import (
    DIRECTIONS,
    ActiveViews,
    AdjacencyProducts,
    rows_by_relation,
)
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.threads import set_threads
from hpcgnn.typing import GlobalIndices, LocalIndices, Mask

__all__ = ["Rehearsal", "rehearse", "status_bytes"]

_UNSCALED = frozenset({Aggregations.ATTENTION, Aggregations.SUM_IN, Aggregations.SUM_OUT})


@dataclass(frozen=True)
class Rehearsal:
    """What one rank needed.

    Parameters
    ----------
    idle_bytes, peak_bytes
        Resident set before the share was read, and at most.
    ghost_bytes
        Rows of other ranks in memory at one time, at most.
    epoch_s, evaluate_s
        Seconds of computing and copying in a training epoch (median) and in an evaluation.
    once, epoch, evaluation
        The exchanges before the first epoch, of one epoch, and of one evaluation.
    """

    idle_bytes: int
    peak_bytes: int
    ghost_bytes: int
    epoch_s: float
    evaluate_s: float
    once: tuple[Movement, ...]
    epoch: tuple[Movement, ...]
    evaluation: tuple[Movement, ...]


def rehearse(alone: ProcessGrid, share: Share, epochs: int, idle_bytes: int) -> Rehearsal:
    """Train a share as its rank would.

    Collective over `alone`, a grid of one rank.

    Parameters
    ----------
    alone
        This process.
    share
        What the rank holds.
    epochs
        To train, at least 2: the first one also makes transposes and buffers.
    idle_bytes
        Resident set of this process before it held the share.
    """
    # This rank may have no validation node, which other ranks have.
    whole_run = replace(share.config.train, patience=0)
    training = replace(whole_run, epochs=epochs, evaluate_every=epochs)
    config = replace(share.config, train=training)
    trace = TraceRecorder.off()
    with RehearsedGrid(alone, share) as grid, reused_memory():
        set_threads(grid, config.run.threads)
        moved: list[Movement] = []
        products = _Products(grid, share, trace, moved)
        moved.clear()
        # What comes before training depends on the epochs of the run, not of the rehearsal.
        exchange = replace(config.exchange, prepare="before")
        prepared = replace(share.config, exchange=exchange, train=whole_run)
        task = NodeTask(_local_graph(grid, share, products), prepared)
        once = tuple(moved)
        run = SeedRun(task, config, config.train.seeds[0], trace)
        rows, movements = [], []
        for _ in range(epochs):
            moved.clear()
            rows.append(run.run_epoch(stop=False)[0])
            movements.append(tuple(moved))
        training_moves, last = movements[-2], movements[-1]
        assert last[: len(training_moves)] == training_moves, "epochs exchange alike"
        steady = [row["epoch_s"] for row in rows[1:]]
        return Rehearsal(
            idle_bytes=idle_bytes,
            peak_bytes=status_bytes("VmHWM"),
            ghost_bytes=grid.buffers.ghosts.peak,
            epoch_s=statistics.median(steady),
            evaluate_s=rows[-1]["evaluate_s"],
            once=once,
            epoch=training_moves,
            evaluation=last[len(training_moves) :],
        )


def status_bytes(name: str) -> int:
    """Return a line of /proc/self/status that is in kB: VmHWM, the most resident at one time.

    Not collective. The rusage of a process counts what its parent held before it, too.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class _Products:
    """The products of a share: what `AdjacencyProducts` is to a rank."""

    def __init__(
        self, grid: ProcessGrid, share: Share, trace: TraceRecorder, moved: list[Movement]
    ) -> None:
        self.trace, self.node_ids = trace, share.nodes.original_id
        self._grid, self._share = grid, share
        exchange = share.config.exchange
        self._exchanges = {
            key: RehearsedExchange(grid, key, each, exchange, trace, moved.append)
            for key, each in share.patterns.items()
        }
        ids = self.node_ids
        self._rows: tuple[LocalIndices, ...] = ()
        if Aggregations.MEAN_BY_RELATION in share.aggregations:
            self._rows = rows_by_relation(share.patterns["all"].block, np.ones(len(ids), np.bool_))
        self._operators = {
            kind: self._operator(kind, "all", ids, ids) for kind in share.aggregations
        }

    @property
    def view(self) -> GraphView:
        """The view of all nodes of the rank."""
        sums = self._grid.sum_over_blocks
        ids = self.node_ids
        return GraphView(self._operators, ids, sums, relation_rows=self._rows)

    def active_views(self, targets: Mask, depth: int) -> ActiveViews:
        """Return views of the active sets; see `AdjacencyProducts.active_views`.

        Not collective.
        """
        sets = self._share.sets
        assert len(sets) == depth + 1
        assert np.array_equal(targets, sets[-1])
        layers = tuple(self._layer(place, *sets[place : place + 2]) for place in range(depth))
        return ActiveViews(layers, torch.from_numpy(np.flatnonzero(sets[0])))

    def _layer(self, place: int, inputs: Mask, outputs: Mask) -> LayerView:
        share = self._share
        if f"{place} in" not in share.patterns and f"{place} out" not in share.patterns:
            return self.view.layer(0)
        ids = self.node_ids[outputs], self.node_ids[inputs]
        operators: dict[Aggregations, AggregationOperator] = {}
        relation_rows: tuple[LocalIndices, ...] = ()
        for kind in share.aggregations:
            key = f"{place} {DIRECTIONS[kind]}"
            operators[kind] = self._operator(kind, key, *ids)
            if kind is Aggregations.MEAN_BY_RELATION:
                relation_rows = rows_by_relation(share.patterns[key].block, outputs)
        kept = torch.from_numpy(np.cumsum(inputs)[outputs] - 1)
        sums = self._grid.sum_over_blocks
        return LayerView(operators, ids[1], sums, kept, relation_rows=relation_rows)

    def _operator(
        self, kind: Aggregations, key: str, row_ids: GlobalIndices, column_ids: GlobalIndices
    ) -> AggregationOperator:
        pattern, exchange = self._share.patterns[key], self._exchanges[key]
        matrix = _scaled(pattern.block, kind, self._share.config.train.dtype)
        product: DistributedSpMM
        if kind is Aggregations.ATTENTION:
            product = DistributedAttention(
                self._grid, matrix, exchange, self.trace, row_ids, column_ids
            )
        else:
            product = DistributedSpMM(self._grid, matrix, exchange, self.trace)
        # Ranks choose the order of products by the sizes of the whole matrix.
        product.size = pattern.size
        return Transposed(product) if DIRECTIONS[kind] == "out" else product


def _scaled(block: DistCSR, kind: Aggregations, dtype: str) -> DistCSR:
    """Return the matrix with values where training has them: their size matters, not they."""
    if kind is Aggregations.ATTENTION:
        return block.with_values(None, None)
    parts = block.diagonal, block.remote
    if kind in _UNSCALED and all(part.values is None for part in parts):
        return block
    return block.with_values(*(np.ones(part.nnz, dtype) for part in parts))


def _local_graph(grid: ProcessGrid, share: Share, products: "_Products") -> LocalGraph:
    inputs = make_inputs(grid, share.config, share.facts, share.nodes, None)
    return LocalGraph(
        grid=grid,
        row_map=share.row_map,
        facts=share.facts,
        view=products.view,
        # The task asks for active views and the trace, which both kinds of products have.
        products=cast("AdjacencyProducts", products),
        features=inputs.features,
        scales=inputs.scales,
        labels=share.nodes.labels,
        split=share.nodes.split,
        smoother=None,
        details={},
    )
