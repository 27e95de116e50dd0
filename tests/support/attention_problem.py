"""An attention with random values over a pattern, in any memory, compared with one process."""

from collections.abc import Callable

from mpi4py import MPI

import numpy as np
import scipy.sparse as sp

from hpcgnn.attention import (
    AdditiveScores,
    AttentionInput,
    DistributedAttention,
    DynamicScores,
    ProductScores,
    RelationScores,
    Scores,
)
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.kernels import EdgeDraw
from hpcgnn.sparse import EdgeFeatures
from hpcgnn.spmm import (
    METHODS,
    RESIDENT,
    Carrier,
    Schedule,
    make_exchange,
)
from hpcgnn.support import Trait
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, uneven_starts
from tests.support.stand_in import host

Kind = type[AdditiveScores] | type[DynamicScores] | type[ProductScores]

__all__ = [
    "DRAW",
    "EXCHANGES",
    "HEADS",
    "KINDS",
    "NUM_NODES",
    "SCHEDULES",
    "Kind",
    "Problem",
    "RelationProblem",
]

EXCHANGES = tuple(name for name, each in METHODS.items() if Trait.ADDED_PUSHES not in each.needs)
"""The exchanges that attention can use: those that push states."""
NUM_NODES, HEADS, WIDTH = 45, 3, 4
DRAW = EdgeDraw(11, 0.4, 12, 0.3)
KINDS: tuple[Kind, ...] = (AdditiveScores, DynamicScores, ProductScores)
SCHEDULES = (RESIDENT, Schedule(sequential=True), Schedule(sequential=True, prefetch=2))


class Problem:
    """Values, targets, weights and a gradient of the result for all nodes.

    With `num_features`, every entry of the matrix has this number of features.
    """

    def __init__(
        self,
        matrix: sp.csr_matrix,
        dtype: str,
        scale: float = 1.0,
        kind: Kind = AdditiveScores,
        num_features: int = 0,
    ) -> None:
        rng = np.random.default_rng(8)
        rows, columns = matrix.shape
        self.matrix = matrix
        self.values = rng.normal(size=(columns, HEADS * WIDTH * kind.parts)).astype(dtype)
        self.kind = kind
        width = HEADS if kind.narrow_targets else HEADS * WIDTH
        self.targets = (scale * rng.normal(size=(rows, width))).astype(dtype)
        self.width = 0 if kind is ProductScores else WIDTH
        more = num_features * (1 if kind is AdditiveScores else WIDTH)
        self.weights = (scale * rng.normal(size=(HEADS, self.width + more))).astype(dtype)
        self.features = rng.normal(size=(matrix.nnz, num_features)).astype(dtype)
        self.gradient = rng.normal(size=(rows, HEADS * WIDTH)).astype(dtype)
        # Masks depend on original ids, which are in random order.
        self.ids = rng.permutation(10 * rows)[:rows].astype(np.int64)

    def scores(self, weights: np.ndarray) -> Scores:
        if self.kind is ProductScores:
            return ProductScores(weights)
        return self.kind(weights, 0.2, self.width)

    def edges(self, grid: ProcessGrid, row_map: RowMap) -> EdgeFeatures | None:
        if self.features.shape[1] == 0:
            return None
        starts = self.matrix.indptr[row_map.starts].astype(np.int64)
        edge_map = RowMap(starts, row_map.block)
        return EdgeFeatures(grid.layer, edge_map, self.features[edge_map.start : edge_map.stop])

    def run(
        self,
        grid: ProcessGrid,
        exchange: str,
        wire: str = "native",
        schedule: Schedule = RESIDENT,
        draw: EdgeDraw | None = None,
        carrier: Callable[[ProcessGrid], Carrier] = Carrier,
    ) -> tuple[slice, list[np.ndarray]]:
        """Return the local rows, and results and gradients; weights' are summed over blocks."""
        starts = uneven_starts(len(self.values), grid.num_blocks, 3)
        row_map = RowMap(starts, grid.block)
        mine, trace = slice(row_map.start, row_map.stop), TraceRecorder.off()
        edges, part = self.edges(grid, row_map), block_row(self.matrix, row_map)
        if edges is None:
            part = part.with_values(None, None)
        else:
            numbered = sp.csr_matrix(self.matrix)
            numbered.data = np.arange(numbered.nnz, dtype=np.float64)
            part = block_row(numbered, row_map)
        moved = make_exchange(exchange, grid, part, trace, wire, schedule, carrier(grid))
        memory = moved.carrier.memory
        ids = self.ids[mine]
        operator = DistributedAttention(part, moved, ids, ids, edges)
        scores = self.scores(memory.put(self.weights))
        inputs = memory.put(self.values[mine]), memory.put(self.targets[mine])
        gradient = memory.put(self.gradient[mine])
        out = memory.arrays.full(gradient.shape, np.nan, gradient.dtype)
        given = AttentionInput(scores, *inputs, draw)
        softmax = operator.attend(given, out, keep=True)
        delta = memory.arrays.empty((len(gradient), HEADS), gradient.dtype)
        memory.kernels.attention_delta(gradient, out, delta)
        with grid.run_position.backward():
            found = operator.attend_transpose(given, softmax, gradient, delta)
        weights = host(found.weights).copy()
        grid.sum_over_blocks(weights)
        rest = out, softmax.lse, found.values, found.targets
        return mine, [*map(host, rest), weights]

    def check(self, comm: MPI.Intracomm, replication: int, tolerance: float, **how: object) -> None:
        with ProcessGrid(MPI.COMM_SELF) as alone:
            _, expected = self.run(alone, "aware", draw=how.get("draw"))
        with ProcessGrid(comm, replication) as grid:
            mine, found = self.run(grid, **how)
        wanted = [each[mine] for each in expected[:4]] + [expected[4]]
        for own, other in zip(found, wanted, strict=True):
            assert not np.isnan(own).any()
            scale = max(1.0, np.abs(other[np.isfinite(other)]).max(initial=0))
            np.testing.assert_allclose(own / scale, other / scale, rtol=0, atol=tolerance)


class RelationProblem(Problem):
    """The same with two relations; the last rows of a rank belong to the second.

    They depend on the ranks, and so do the results.
    """

    def __init__(self, matrix: sp.csr_matrix, dtype: str) -> None:
        super().__init__(matrix, dtype)
        size = 2 * WIDTH * (self.values.shape[1] + 1)
        weights = np.random.default_rng(9).normal(size=(HEADS, size))
        self.weights, self.bounds = weights.astype(dtype), (0, 3)

    def scores(self, weights: np.ndarray) -> Scores:
        return RelationScores(weights, self.bounds, WIDTH, 0.2)
