"""Active sets: the rows that the training loss depends on, layer by layer.

With training nodes V and L layers, the loss reads rows ``S_L = V`` of the last layer's output, and
a layer with output rows ``S_l`` reads the input rows ``S_{l-1}``: ``S_l`` itself and its
neighbours. The execution paths of "Accelerating GNN training by execution path preparing" are these
sets in the backward pass, and message-flow graphs are the same sets in the forward pass. Products
restricted to them skip only exact zeros and unused rows, so results do not change; the restricted
matrices have exchange plans of their own, so fewer bytes are sent too.
"""

from collections.abc import Sequence

import numpy as np

from hpcgnn.comm import CommPlan
from hpcgnn.sparse.matrix import DistCSR, positions_of
from hpcgnn.spmd import neighborwise_collective
from hpcgnn.typing import LocalIndices, Mask


@neighborwise_collective
def active_sets(
    matrix: DistCSR,
    plan: CommPlan,
    targets: Mask,
    num_layers: int,
    directions: Sequence[str],
    *,
    last: int | None = None,
) -> list[Mask]:
    """Return the masks ``S_0 .. S_L`` of local nodes.

    `plan` delivers `matrix.ghosts`; `targets` (num_local,) are the nodes whose outputs are needed,
    `num_layers` is L. `directions` are "in" if layers aggregate along rows, "out" if along columns,
    or both; for "out" the matrix has one relation. Only the `last` layers are restricted (None:
    all); layers before them use all nodes, for example because of statistics over their rows.
    """
    last = num_layers if last is None else last
    sets = [targets]
    for _ in range(last):
        reached = sets[0].copy()
        if "in" in directions:
            rows = np.tile(sets[0], matrix.num_relations)
            reached |= _read_by_rows(matrix, plan, rows)
        if "out" in directions:
            reached |= _read_by_columns(matrix, plan, sets[0])
        sets.insert(0, reached)
    if last < num_layers:
        sets[0] = np.ones_like(targets)
    return [np.ones_like(targets) for _ in range(num_layers - last)] + sets


@neighborwise_collective
def restrict(matrix: DistCSR, plan: CommPlan, rows: Mask, columns: Mask) -> DistCSR:
    """Return the entries in active rows and active columns, as a matrix over those nodes only.

    `matrix` is over all nodes, `plan` delivers its ghosts; the masks are over this rank's rows and
    columns.
    """
    row_nodes = np.flatnonzero(rows).astype(np.int32)
    column_nodes = np.flatnonzero(columns).astype(np.int32)
    row_positions = _positions(row_nodes, len(rows))
    # Only its owner knows whether a ghost is active, and sends it as one float.
    ghost_active = plan.forward(columns.astype(np.float32)[:, None])[:, 0] > 0
    diagonal = matrix.diagonal.select(
        _positions(column_nodes, len(columns)),
        len(column_nodes),
        rows=row_positions,
        num_rows=len(row_nodes),
    )
    # Drop ghosts that only other ranks need.
    reached = ghost_active & (matrix.remote.marks(rows)[:, 0] > 0)
    ghosts = np.flatnonzero(reached).astype(np.int32)
    numbers = positions_of(ghosts, len(reached))
    assert numbers is not None
    remote = matrix.remote.select(numbers, len(ghosts), rows=row_positions, num_rows=len(row_nodes))
    return DistCSR(
        matrix.row_map,
        diagonal,
        remote,
        matrix.ghosts[reached],
        row_nodes,
        column_nodes,
        matrix.num_relations,
    )


def _positions(nodes: LocalIndices, num_places: int) -> LocalIndices:
    positions = positions_of(nodes, num_places)
    assert positions is not None
    return positions


def _read_by_rows(matrix: DistCSR, plan: CommPlan, rows: Mask) -> Mask:
    """Return the local nodes whose column has an entry in one of the rows, on any rank."""
    # Marks are counts of entries; rounding in float32 keeps them positive, which is enough.
    marks = matrix.diagonal.marks(rows)
    plan.reverse_add(matrix.remote.marks(rows), marks)
    return marks[:, 0] > 0


def _read_by_columns(matrix: DistCSR, plan: CommPlan, columns: Mask) -> Mask:
    """Return the local nodes whose row has an entry in one of the columns, on any rank."""
    factors = columns.astype(np.float32)[:, None]
    marks = np.empty_like(factors)
    pattern = matrix.with_values(None, None)
    pattern.diagonal.matmul(factors, marks)
    pattern.remote.matmul(plan.forward(factors), marks, accumulate=True)
    return marks[:, 0] > 0
