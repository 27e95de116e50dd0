"""The scaled adjacency matrices of a model, as products over all nodes or over active sets."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import DTypeLike

from hpcgnn.comm import CommPlan, ProcessGrid, all_ranks
from hpcgnn.nn import Aggregations, GraphView, LayerView
from hpcgnn.sparse import (
    AggregationOperator,
    DistCSR,
    Transposed,
    active_sets,
    column_mean,
    restrict,
    row_mean,
    symmetric,
    unscaled,
)
from hpcgnn.spmm import Exchange
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import ExchangeConfig
from hpcgnn.train.device import CPU, Device
from hpcgnn.train.operators import make_operators
from hpcgnn.typing import GlobalIndices, LocalIndices, Mask

__all__ = [
    "DIRECTIONS",
    "ActiveViews",
    "AdjacencyProducts",
    "occupied_rows",
    "rows_by_relation",
]

DIRECTIONS = {
    Aggregations.SYMMETRIC: "in",
    Aggregations.MEAN_IN: "in",
    Aggregations.MEAN_OUT: "out",
    Aggregations.SUM_IN: "in",
    Aggregations.SUM_OUT: "out",
    Aggregations.ATTENTION: "in",
    Aggregations.MEAN_BY_RELATION: "in",
}


@dataclass(frozen=True, eq=False)
class ActiveViews:
    """The aggregations of a model restricted to what some outputs need.

    Parameters
    ----------
    layers
        A view for each aggregation.
    inputs
        (input rows of the first,) int64 local nodes, on the device.
    """

    layers: tuple[LayerView, ...]
    inputs: torch.Tensor


class AdjacencyProducts:
    """The products that a model aggregates with.

    Collective.

    Parameters
    ----------
    grid, trace
        The ranks, the recorder.
    matrix
        This rank's block row; with a block of rows for each relation where the model tells them
        apart.
    wanted
        The aggregations of the model.
    exchange
        How rows travel.
    dtype
        float32 or float64.
    node_ids
        (num_local,) int64 original ids.
    device
        Where operators and views live.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        matrix: DistCSR,
        wanted: tuple[Aggregations, ...],
        exchange: ExchangeConfig,
        dtype: DTypeLike,
        trace: TraceRecorder,
        node_ids: GlobalIndices,
        device: Device = CPU,
    ) -> None:
        self._grid, self.trace, self._device = grid, trace, device
        self._make = make_operators(device, grid, exchange, trace)
        self.node_ids, self._ids = node_ids, device.ids(node_ids)
        self._plan = CommPlan.from_ghosts(grid, matrix.row_map, matrix.ghosts)
        self._matrix = matrix
        self._scaled = {kind: _scale(kind, matrix, self._plan, dtype) for kind in wanted}
        self._occupied: Mask | None = None
        whole, pattern = self._scaled, matrix
        everything = np.ones(matrix.row_map.num_local, np.bool_)
        self._relation_rows: tuple[LocalIndices, ...] = ()
        if Aggregations.MEAN_BY_RELATION in wanted:
            self._occupied = occupied_rows(matrix)
            whole = {kind: self._restricted(kind, everything, everything) for kind in self._scaled}
            pattern = whole[Aggregations.MEAN_BY_RELATION]
            self._relation_rows = self._rows_by_relation(pattern, everything)
        self.exchange: Exchange = self._make.exchange(pattern)
        self.operators = {
            kind: self._operator(kind, part, self.exchange, node_ids, node_ids)
            for kind, part in whole.items()
        }

    @property
    def view(self) -> GraphView:
        """The view of all local nodes."""
        sums = self._grid.sum_over_blocks
        return GraphView(self.operators, self._ids, sums, relation_rows=self._relation_rows)

    def active_views(self, targets: Mask, depth: int) -> ActiveViews:
        """Return views of all aggregations of a model for the outputs of `targets`.

        Collective.

        Parameters
        ----------
        targets
            (num_local,) the nodes whose outputs are wanted.
        depth
            Aggregations of the model, see `Model.num_aggregations`.
        """
        directions = {DIRECTIONS[kind] for kind in self._scaled}
        sets = active_sets(self._matrix, self._plan, targets, depth, sorted(directions))
        layers = tuple(self._layer(sets[place], sets[place + 1]) for place in range(depth))
        return ActiveViews(layers, self._device.tensor(np.flatnonzero(sets[0])))

    def _layer(self, inputs: Mask, outputs: Mask) -> LayerView:
        node_ids = self.node_ids
        if all_ranks(self._grid.world, bool(inputs.all() and outputs.all())):
            return self.view.layer(0)
        operators: dict[Aggregations, AggregationOperator] = {}
        exchanges: dict[str, Exchange] = {}
        relation_rows: tuple[LocalIndices, ...] = ()
        for kind in self._scaled:
            direction = DIRECTIONS[kind]
            part = self._restricted(kind, inputs, outputs)
            if kind is Aggregations.MEAN_BY_RELATION:
                relation_rows = self._rows_by_relation(part, outputs)
            if direction not in exchanges:
                exchanges[direction] = self._make.exchange(part)
            exchange = exchanges[direction]
            ids = node_ids[outputs], node_ids[inputs]
            operators[kind] = self._operator(kind, part, exchange, *ids)
        kept = np.cumsum(inputs)[outputs] - 1
        return LayerView(
            operators,
            self._device.ids(node_ids[inputs]),
            self._grid.sum_over_blocks,
            self._device.tensor(kept),
            relation_rows=relation_rows,
        )

    def _rows_by_relation(self, part: DistCSR, outputs: Mask) -> tuple[LocalIndices, ...]:
        return tuple(self._device.ids(each) for each in rows_by_relation(part, outputs))

    def _restricted(self, kind: Aggregations, inputs: Mask, outputs: Mask) -> DistCSR:
        rows, columns = (outputs, inputs) if DIRECTIONS[kind] == "in" else (inputs, outputs)
        if self._occupied is not None:
            rows = np.tile(rows, self._matrix.num_relations) & self._occupied
        return restrict(self._scaled[kind], self._plan, rows, columns)

    def _operator(
        self,
        kind: Aggregations,
        scaled: DistCSR,
        exchange: Exchange,
        row_ids: GlobalIndices,
        column_ids: GlobalIndices,
    ) -> AggregationOperator:
        if kind is Aggregations.ATTENTION:
            return self._make.attention(scaled, exchange, row_ids, column_ids)
        product = self._make.product(scaled, exchange)
        return Transposed(product) if DIRECTIONS[kind] == "out" else product


def _scale(kind: Aggregations, matrix: DistCSR, plan: CommPlan, dtype: DTypeLike) -> DistCSR:
    if kind is Aggregations.SYMMETRIC:
        return symmetric(matrix, plan, dtype)
    if kind in (Aggregations.MEAN_IN, Aggregations.MEAN_BY_RELATION):
        return row_mean(matrix, dtype)
    if kind is Aggregations.MEAN_OUT:
        return column_mean(matrix, plan, dtype)
    if kind is Aggregations.ATTENTION:
        return matrix.with_values(None, None)
    return unscaled(matrix, dtype)


def occupied_rows(matrix: DistCSR) -> Mask:
    """Return a mask of the rows with entries: most nodes have neighbours by few relations only."""
    occupied = np.zeros(matrix.shape[0], np.bool_)
    for part in (matrix.diagonal, matrix.remote):
        occupied[part.entry_rows()] = True
    return occupied


def rows_by_relation(part: DistCSR, outputs: Mask) -> tuple[LocalIndices, ...]:
    """Return for each relation the output row (int32) of each of its rows in `part`."""
    assert part.row_nodes is not None
    relations, nodes = np.divmod(part.row_nodes, max(len(outputs), 1))
    places = (np.cumsum(outputs) - 1).astype(np.int32)[nodes]
    bounds = np.searchsorted(relations, np.arange(1, part.num_relations))
    return tuple(np.split(places, bounds))
