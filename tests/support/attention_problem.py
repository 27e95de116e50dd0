"""An attention of random values over a pattern, in any memory, against one process."""

from collections.abc import Callable

from mpi4py import MPI

import numpy as np
import scipy.sparse as sp

from hpcgnn.attention import (
    AdditiveScores,
    DistributedAttention,
    DynamicScores,
)
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.kernels import EdgeDraw
from hpcgnn.spmm import (
    METHODS,
    RESIDENT,
    Carrier,
    Schedule,
    make_exchange,
)
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, uneven_starts
from tests.support.stand_in import host

__all__ = ["DRAW", "EXCHANGES", "HEADS", "KINDS", "NUM_NODES", "SCHEDULES", "Problem"]

EXCHANGES = tuple(name for name, each in METHODS.items() if not each.pushes_sums)
"""Those that attention can take: it pushes states."""
NUM_NODES, HEADS, WIDTH = 45, 3, 4
DRAW = EdgeDraw(11, 0.4, 12, 0.3)
KINDS = (AdditiveScores, DynamicScores)
SCHEDULES = (RESIDENT, Schedule(sequential=True), Schedule(sequential=True, prefetch=2))


class Problem:
    """Values, targets, weights and a gradient of the result for all nodes."""

    def __init__(
        self,
        matrix: sp.csr_matrix,
        dtype: str,
        scale: float = 1.0,
        kind: type[AdditiveScores] | type[DynamicScores] = AdditiveScores,
    ) -> None:
        rng = np.random.default_rng(8)
        rows, columns = matrix.shape
        self.matrix = matrix
        self.values = rng.normal(size=(columns, HEADS * WIDTH)).astype(dtype)
        self.kind = kind
        width = HEADS if kind.narrow_targets else HEADS * WIDTH
        self.targets = (scale * rng.normal(size=(rows, width))).astype(dtype)
        self.weights = (scale * rng.normal(size=(HEADS, WIDTH))).astype(dtype)
        self.gradient = rng.normal(size=(rows, HEADS * WIDTH)).astype(dtype)
        # Masks belong to original ids, which are in no order.
        self.ids = rng.permutation(10 * rows)[:rows].astype(np.int64)

    def run(
        self,
        grid: ProcessGrid,
        exchange: str,
        wire: str = "native",
        schedule: Schedule = RESIDENT,
        draw: EdgeDraw | None = None,
        carrier: Callable[[ProcessGrid], Carrier] = Carrier,
    ) -> tuple[slice, list[np.ndarray]]:
        """Return the local rows, and results and gradients; of the weights summed over blocks."""
        starts = uneven_starts(len(self.values), grid.num_blocks, 3)
        row_map = RowMap(starts, grid.block)
        mine, trace = slice(row_map.start, row_map.stop), TraceRecorder.off()
        part = block_row(self.matrix, row_map).with_values(None, None)
        moved = make_exchange(exchange, grid, part, trace, wire, schedule, carrier(grid))
        memory = moved.carrier.memory
        ids = self.ids[mine]
        operator = DistributedAttention(grid, part, moved, trace, ids, ids)
        scores = self.kind(memory.put(self.weights), 0.2)
        inputs = memory.put(self.values[mine]), memory.put(self.targets[mine])
        gradient = memory.put(self.gradient[mine])
        out = memory.arrays.full(gradient.shape, np.nan, gradient.dtype)
        softmax = operator.attend(scores, *inputs, draw, out, keep=True)
        delta = memory.arrays.empty((len(gradient), HEADS), gradient.dtype)
        memory.kernels.attention_delta(gradient, out, delta)
        found = operator.attend_transpose(scores, *inputs, softmax, gradient, delta, draw)
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
