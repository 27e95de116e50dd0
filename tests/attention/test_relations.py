"""Attention by relation over one operator whose rows are divided in several ways."""

from mpi4py import MPI

import numpy as np

from hpcgnn.attention import AttentionInput, DistributedAttention
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.spmm import make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.attention_problem import HEADS, NUM_NODES, WIDTH, RelationProblem
from tests.support.matrices import block_row, gather_rows, ugly_matrix, uneven_starts


def test_each_call_has_the_relations_of_its_own_bounds(comm: MPI.Intracomm) -> None:
    problem = RelationProblem(ugly_matrix(NUM_NODES, 5), "float64")
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 3), comm.rank)
    mine, trace = slice(row_map.start, row_map.stop), TraceRecorder.off()
    part, ids = block_row(problem.matrix, row_map).with_values(None, None), problem.ids[mine]

    def attended(operator: DistributedAttention, bound: int) -> np.ndarray:
        problem.bounds = (0, bound)
        scores, out = problem.scores(problem.weights), np.empty((len(ids), HEADS * WIDTH))
        inputs = AttentionInput(scores, problem.values[mine], problem.targets[mine])
        operator.attend(inputs, out, keep=False)
        return out

    with ProcessGrid(comm) as grid:

        def make() -> DistributedAttention:
            exchange = make_exchange("aware", grid, part, trace)
            return DistributedAttention(part, exchange, ids, ids)

        bounds = (0, len(ids) // 2, len(ids))
        kept = make()
        found = [attended(kept, bound) for bound in bounds]
        for bound, each in zip(bounds, found, strict=True):
            np.testing.assert_array_equal(each, attended(make(), bound))
    first, *_, last = (gather_rows(comm, each) for each in found)
    assert not np.array_equal(first, last)
