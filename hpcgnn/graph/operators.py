"""Make operators of a model's adjacency matrices, over all nodes or over active sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike
from typing_extensions import override

from hpcgnn.attention import DistributedAttention, ExactAttention, PushedSums
from hpcgnn.autograd import ExactArithmetic
from hpcgnn.comm import CommPlan, ProcessGrid, all_ranks
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.device import CPU, Device
from hpcgnn.messages import EdgeTable, ExactMessages, MessageOperator, OrderedMessages
from hpcgnn.nn import GraphView, LayerView, NodeTraits
from hpcgnn.operator import Aggregation, AggregationOperator, OperatorSize, RankSums, Transposed
from hpcgnn.sparse import (
    DistCSR,
    EdgeFeatures,
    Factors,
    IntegerCSR,
    active_sets,
    copies_of,
    restrict,
    round_weights,
    scale,
    scale_factors,
)
from hpcgnn.sparse.device import DeviceMemory
from hpcgnn.spmd import collective
from hpcgnn.spmm import (
    RESIDENT,
    Carrier,
    Channel,
    DistributedSpMM,
    ExactProduct,
    Exchange,
    Peers,
    Schedule,
    Wire,
    exchange_by,
    make_wire,
)
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask

_NO_TRAITS = NodeTraits()


@dataclass(frozen=True, eq=False)
class Operators:
    """A factory of exchanges and operators of one grid, on the CPU or on a GPU.

    `edges` are features for attention, `table` has the edges for messages; with either, the values
    of the matrix are entry numbers.
    """

    grid: ProcessGrid
    config: ExchangeConfig
    trace: TraceRecorder
    carrier: Carrier
    device: Device = CPU
    edges: EdgeFeatures | None = None
    table: EdgeTable | None = None

    @collective
    def of(self, aggregation: Aggregation) -> "Operators":
        """Return the factory for an aggregation: without replication if it passes messages."""
        grid = self.grid.unreplicated() if aggregation.passes_messages else self.grid
        return (
            self if grid is self.grid else replace(self, grid=grid, carrier=self.carrier.on(grid))
        )

    computes_exactly: ClassVar[bool] = False
    _messages: ClassVar[type[MessageOperator]] = MessageOperator

    def sums(self) -> RankSums:
        """Return the function that sums statistics over the block rows."""
        return traced_sums(self.grid, self.trace)

    def exact(self) -> "ExactOperators":
        """Return a factory of operators whose results are bit-identical for any distribution."""
        return ExactOperators(self.grid, self.config, self.trace, self.carrier, self.device)

    def ordered(self, arithmetic: ExactArithmetic) -> "OrderedOperators":
        """Return a factory of operators of graphs that each lie on a single rank."""
        common = self.grid, self.config, self.trace, self.carrier, self.device
        return OrderedOperators(*common, arithmetic=arithmetic)

    @collective
    def exchange(self, pattern: DistCSR, node_ids: GlobalIndices) -> Exchange:
        """Return the exchange of rows for matrices of a pattern; `node_ids` of all local nodes."""
        channel = self.channel(Peers(self.grid), node_ids)
        return exchange_by(self.config.method, channel, pattern)

    def channel(self, peers: Peers, node_ids: GlobalIndices) -> Channel:
        """Return the channel for moving rows between `peers`."""
        config = self.config
        schedule = Schedule(config.schedule == "sequential", config.prefetch)
        wire = make_wire(config.wire)
        return Channel(self.grid, wire, schedule, self.carrier, self.trace, peers, node_ids)

    @collective
    def matrices(
        self, matrix: DistCSR, aggregations: tuple[Aggregation, ...], dtype: DTypeLike
    ) -> "ScaledMatrices":
        """Return the matrices of an adjacency for `operator`."""
        scaled = IntegerMatrices if self.computes_exactly else ScaledMatrices
        numbered = self.edges is not None or self.table is not None
        return scaled(self.grid, matrix, aggregations, dtype, numbered=numbered)

    @collective
    def operator(
        self,
        aggregation: Aggregation,
        scaled: DistCSR,
        exchange: Exchange,
        row_ids: GlobalIndices,
        column_ids: GlobalIndices,
    ) -> AggregationOperator:
        """Return the operator of an aggregation.

        `scaled` is its matrix, for attention a pattern, for messages entry numbers; its pattern is
        that of the exchange. `row_ids` and `column_ids` are int64 original ids of its rows and
        columns, from which attention draws dropout masks.
        """
        if aggregation.attends:
            # Rows mapped by relations are not pushed.
            pushes = not aggregation.maps_relations
            return self._attention(scaled, exchange, row_ids, column_ids, pushes=pushes)
        if aggregation.passes_messages:
            assert self.table is not None
            again = self.config.states_again
            return self._messages(scaled, exchange, self.table, states_again=again)
        product = self._product(scaled, exchange)
        return Transposed(product) if aggregation.is_reversed else product

    @collective
    def _attention(
        self, pattern: DistCSR, exchange: Exchange, *ids: GlobalIndices, pushes: bool
    ) -> AggregationOperator:
        return DistributedAttention(pattern, exchange, ids[0], ids[1], self.edges)

    @collective
    def _product(self, scaled: DistCSR, exchange: Exchange) -> AggregationOperator:
        coded = self.config.saves_memory
        return DistributedSpMM(scaled, exchange, coded=coded)


class ExactOperators(Operators):
    """A factory of operators whose results are bit-identical for any distribution of the rows."""

    computes_exactly = True
    _messages = ExactMessages
    _pushes_sums = True

    @override
    def channel(self, peers: Peers, node_ids: GlobalIndices) -> Channel:
        channel = super().channel(peers, node_ids)
        # Rows for messages travel unchanged.
        return replace(channel, wire=Wire(integers=self.table is None))

    @property
    def _arithmetic(self) -> ExactArithmetic:
        """The arithmetic for sums over all ranks."""
        return ExactArithmetic(self.grid, self.trace)

    @collective
    def _attention(
        self, pattern: DistCSR, exchange: Exchange, *ids: GlobalIndices, pushes: bool
    ) -> AggregationOperator:
        # Replicas do the same work; rows travel unchanged and in one stage.
        grid = self.grid.unreplicated()
        channel = replace(
            super().channel(Peers(grid), ids[1]),
            grid=grid,
            carrier=self.carrier.on(grid),
            wire=Wire(integers=True),
            schedule=RESIDENT,
        )
        fetching = self._moving("aware", channel, pattern)
        pushing = partial(self._moving, "push", channel)
        common = (fetching, pushing), self.trace, self._arithmetic, self.edges
        pushed = None
        if pushes and self._pushes_sums and self.edges is None:
            pushed = PushedSums.of(grid, pattern, fetching, self.trace, self._most(pattern))
        return ExactAttention(pattern, *common, pushed=pushed, keeps=not exchange.is_sequential)

    def _most(self, pattern: DistCSR) -> float | None:
        """Return the most entries in a column of the whole pattern; None lets ranks count them."""
        return None

    @collective
    def _moving(self, method: str, channel: Channel, pattern: DistCSR) -> Exchange:
        """Return one of the two exchanges of attention."""
        return exchange_by(method, channel, pattern)

    @collective
    def _product(self, scaled: DistCSR, exchange: Exchange) -> AggregationOperator:
        assert isinstance(scaled, IntegerCSR)
        return ExactProduct(scaled, exchange)


@dataclass(frozen=True, eq=False, kw_only=True)
class OrderedOperators(ExactOperators):
    """A factory of operators of graphs that each lie on one rank, where the order of sums is fixed.

    `arithmetic` sums over all ranks; `grid` has a single rank.
    """

    arithmetic: ExactArithmetic
    _messages = OrderedMessages
    _pushes_sums = False

    @property
    @override
    def _arithmetic(self) -> ExactArithmetic:
        return self.arithmetic

    @collective
    @override
    def _product(self, scaled: DistCSR, exchange: Exchange) -> AggregationOperator:
        product = DistributedSpMM(scaled, exchange)
        # Sizes over all ranks decide the order of a layer's products, so that all use the same.
        counts = torch.tensor([*scaled.shape, scaled.nnz], dtype=torch.float64)
        self.arithmetic.sum_over_ranks(counts)
        num_rows, num_columns, num_entries = counts.long().tolist()
        product.size = OperatorSize(num_rows, num_columns, num_entries, num_moved=0)
        return product


def traced_sums(grid: ProcessGrid, trace: TraceRecorder) -> RankSums:
    """Return a function that sums an array over the block rows in place, and traces its bytes."""

    @collective
    def add_up(share: Array) -> None:
        with trace.span("reduce.statistics", bytes=share.nbytes * (grid.num_blocks > 1)):
            grid.sum_over_blocks(share)

    return add_up


def make_operators(
    grid: ProcessGrid, config: ExchangeConfig, trace: TraceRecorder, device: Device = CPU
) -> Operators:
    """Return the factory of operators for a device."""
    carrier = Carrier(grid)
    if device.transport is not None:
        carrier = Carrier(grid, DeviceMemory(device.rule), device.transport)
    return Operators(grid, config, trace, carrier, device)


@dataclass(frozen=True, eq=False)
class ActiveViews:
    """The aggregations of a model restricted to the rows that some outputs need: a view for each.

    `inputs` (input rows of the first layer,) int64 are local nodes, on the device.
    """

    layers: tuple[LayerView, ...]
    inputs: torch.Tensor


class Matrices(Protocol):
    """The matrices of a model's aggregations on one rank."""

    @property
    def whole(self) -> Mapping[Aggregation, DistCSR]:
        """The matrices over all nodes, which have one pattern."""

    @collective
    def active_sets(self, targets: Mask, depth: int, last: int) -> Sequence[Mask]:
        """Return the sets ``S_0 .. S_L`` of local nodes, see `hpcgnn.sparse.active_sets`."""

    @collective
    def restricted(self, aggregation: Aggregation, inputs: Mask, outputs: Mask) -> DistCSR | None:
        """Return the matrix over two sets; None if both are all nodes on all ranks."""


class ScaledMatrices:
    """The scaled matrices of an adjacency; see `Matrices`.

    If `numbered`, values are entry numbers, which attention and messages keep.
    """

    @collective
    def __init__(
        self,
        grid: ProcessGrid,
        matrix: DistCSR,
        aggregations: tuple[Aggregation, ...],
        dtype: DTypeLike,
        *,
        numbered: bool = False,
    ) -> None:
        self._grid, self._dtype, self._numbered = grid, dtype, numbered
        matrix = self._matrix = self._prepared(matrix)
        self._plan = CommPlan.from_ghosts(grid, matrix.row_map, matrix.ghosts)
        self._scaled = {aggregation: self._scale(aggregation) for aggregation in aggregations}
        self._occupied: Mask | None = None
        self.whole: Mapping[Aggregation, DistCSR] = self._scaled
        if any(aggregation.by_relation for aggregation in aggregations):
            # Of the rows for every relation and node most are empty. To save memory and messages,
            # products have only the occupied rows; `relation_rows` tells which these are.
            self._occupied = occupied_rows(matrix)
            nodes = np.ones(matrix.row_map.num_local, np.bool_)
            self.whole = {
                aggregation: self._cut(aggregation, nodes, nodes) for aggregation in aggregations
            }

    @collective
    def active_sets(self, targets: Mask, depth: int, last: int) -> Sequence[Mask]:
        """Return the sets of local nodes; see `Matrices`."""
        directions = sorted({aggregation.direction for aggregation in self._scaled})
        return active_sets(self._matrix, self._plan, targets, depth, directions, last=last)

    @collective
    def restricted(self, aggregation: Aggregation, inputs: Mask, outputs: Mask) -> DistCSR | None:
        """Return the matrix over two sets; see `Matrices`."""
        # Either all ranks restrict or none, since making an exchange is collective.
        if all_ranks(self._grid.world, bool(inputs.all() and outputs.all())):
            return None
        return self._cut(aggregation, inputs, outputs)

    @collective
    def _prepared(self, matrix: DistCSR) -> DistCSR:
        """Return the adjacency from which all matrices are made."""
        return matrix

    @collective
    def _scale(self, aggregation: Aggregation) -> DistCSR:
        if aggregation.powers is None:
            return self._matrix if self._numbered else self._matrix.with_values(None, None)
        matrix = self._matrix.with_values(None, None) if self._numbered else self._matrix
        return scale(matrix, aggregation.powers, self._dtype, self._plan)

    def _cut(self, aggregation: Aggregation, inputs: Mask, outputs: Mask) -> DistCSR:
        # A reversed aggregation multiplies by the transpose, whose rows are the inputs.
        rows, columns = (inputs, outputs) if aggregation.is_reversed else (outputs, inputs)
        if self._occupied is not None:
            rows = np.tile(rows, self._matrix.num_relations) & self._occupied
        return restrict(self._scaled[aggregation], self._plan, rows, columns)


class IntegerMatrices(ScaledMatrices):
    """The same as integer matrices (`IntegerCSR`), with separate scale factors."""

    @collective
    def _prepared(self, matrix: DistCSR) -> DistCSR:
        self._numbers = matrix
        matrix = matrix.with_values(None, None) if self._numbered else matrix
        integers, self._unit = round_weights(self._grid, matrix)
        self._factors: dict[Aggregation, Factors] = {}
        return integers

    def _scale(self, aggregation: Aggregation) -> DistCSR:
        matrix = self._matrix
        if aggregation.powers is None:
            self._factors[aggregation] = Factors()
            return self._numbers if self._numbered else matrix.with_values(None, None)
        # Degrees are sums of integers too, so that their order does not matter.
        rows, columns = scale_factors(matrix, aggregation.powers, self._plan)
        unit = self._unit ** (1 - sum(aggregation.powers))
        self._factors[aggregation] = Factors(rows, columns, unit)
        return IntegerCSR.of(matrix, self._factors[aggregation])

    def _cut(self, aggregation: Aggregation, inputs: Mask, outputs: Mask) -> DistCSR:
        return IntegerCSR.of(super()._cut(aggregation, inputs, outputs), self._factors[aggregation])


class Products:
    """The products of a model's aggregations with some matrices.

    `node_ids` (num_local,) int64 are original ids; `traits` are those of the local nodes, on the
    device.
    """

    @collective
    def __init__(
        self,
        make: Operators,
        matrices: Matrices,
        node_ids: GlobalIndices,
        traits: NodeTraits = _NO_TRAITS,
    ) -> None:
        self._make, self.trace, self._traits = make, make.trace, traits
        self._matrices: Matrices | None = matrices
        self.node_ids, self._ids = node_ids, make.device.ids(node_ids)
        whole = matrices.whole
        self._relation_rows = self._rows_by_relation(whole, np.ones(len(node_ids), np.bool_))
        # Aggregations differ only in values, so one exchange serves all, in both directions.
        exchanges: dict[ProcessGrid, Exchange] = {}
        self.operators: dict[Aggregation, AggregationOperator] = {}
        for kind, part in whole.items():
            of_kind, row_ids = make.of(kind), row_ids_of(part, node_ids, node_ids)
            if of_kind.grid not in exchanges:
                exchanges[of_kind.grid] = of_kind.exchange(part, node_ids)
            exchange = exchanges[of_kind.grid]
            self.operators[kind] = of_kind.operator(kind, part, exchange, row_ids, node_ids)
        self.exchange: Exchange = next(iter(exchanges.values()))

    @property
    def view(self) -> GraphView:
        """The view of all local nodes."""
        sums, rows = self._make.sums(), self._relation_rows
        traits = self._traits
        return GraphView(self.operators, self._ids, sums, relation_rows=rows, traits=traits)

    def forget_matrices(self) -> None:
        """Free the matrices, which only active views need; products have entries of their own."""
        self._matrices, self._make = None, replace(self._make, edges=None, table=None)

    @collective
    def active_views(self, targets: Mask, depth: int, last: int | None = None) -> ActiveViews:
        """Return views of all aggregations of a model for the outputs of `targets`, (num_local,).

        `depth` is the number of aggregations, see `Model.num_aggregations`; only the `last` of them
        are restricted (None: all). Not allowed after `forget_matrices`.
        """
        assert self._matrices is not None
        sets = self._matrices.active_sets(targets, depth, depth if last is None else last)
        layers = tuple(self._layer(sets[layer], sets[layer + 1]) for layer in range(depth))
        return ActiveViews(layers, self._make.device.tensor(np.flatnonzero(sets[0])))

    def _layer(self, inputs: Mask, outputs: Mask) -> LayerView:
        parts: dict[Aggregation, DistCSR] = {}
        assert self._matrices is not None
        for aggregation in self.operators:
            part = self._matrices.restricted(aggregation, inputs, outputs)
            if part is None:
                # All nodes of all ranks are active: use the whole operators, with their buffers and
                # kept products.
                return self.view.layer(0)
            parts[aggregation] = part
        ids = self.node_ids[outputs], self.node_ids[inputs]
        operators: dict[Aggregation, AggregationOperator] = {}
        exchanges: dict[tuple[ProcessGrid, str], Exchange] = {}
        for aggregation, part in parts.items():
            # Restricted matrices of in- and out-edges differ, and move different rows.
            make, row_ids = self._make.of(aggregation), row_ids_of(part, ids[0], self.node_ids)
            key = make.grid, aggregation.direction
            if key not in exchanges:
                exchanges[key] = make.exchange(part, self.node_ids)
            operators[aggregation] = make.operator(
                aggregation, part, exchanges[key], row_ids, ids[1]
            )
        positions = np.cumsum(inputs)[outputs] - 1
        return LayerView(
            operators,
            self._make.device.ids(ids[1]),
            self._make.sums(),
            output_positions=self._make.device.tensor(positions),
            relation_rows=self._rows_by_relation(parts, outputs),
            traits=self._traits[self._make.device.tensor(np.flatnonzero(inputs))],
        )

    def _rows_by_relation(
        self, parts: Mapping[Aggregation, DistCSR], outputs: Mask
    ) -> tuple[LocalIndices, ...]:
        tall = next((part for aggregation, part in parts.items() if aggregation.by_relation), None)
        if tall is None:
            return ()
        rows = rows_by_relation(tall, outputs)
        return tuple(self._make.device.ids(relation_rows) for relation_rows in rows)


@dataclass(frozen=True, eq=False)
class Adjacency:
    """All that is needed to make the products of a graph; see `Products`.

    `matrix` is this rank's block row, with a block of rows for each relation if the model
    distinguishes them. `dtype` is float32 or float64.
    """

    make: Operators
    matrix: DistCSR
    aggregations: tuple[Aggregation, ...]
    dtype: DTypeLike
    node_ids: GlobalIndices
    traits: NodeTraits = _NO_TRAITS

    @collective
    def products(self) -> Products:
        """Return the products of the graph."""
        matrices = self.make.matrices(self.matrix, self.aggregations, self.dtype)
        return Products(self.make, matrices, self.node_ids, self.traits)

    @collective
    def side_by_side(self, numbers: Sequence[int]) -> Products:
        """Return the products of copies of the graph, whose rows travel in the same messages.

        Row ``c n + i`` is node i of copy c, as in `copies_of`. `numbers` identify copies: those
        with different numbers have different dropout masks.
        """
        make, count = self.make, len(numbers)
        matrix = copies_of(self.matrix, count, make.edges or make.table)
        edges = None if make.edges is None else make.edges.copies(count)
        table = None if make.table is None else make.table.copies(count)
        ids, traits = self.copied_nodes(numbers)
        make = replace(make, edges=edges, table=table)
        return replace(self, make=make, matrix=matrix, node_ids=ids, traits=traits).products()

    def copied_nodes(self, numbers: Sequence[int]) -> tuple[GlobalIndices, NodeTraits]:
        """Return the ids and the traits of the nodes of copies; see `side_by_side`."""
        ids = self.node_ids + np.array(numbers, np.int64)[:, None] * _APART
        return ids.reshape(-1), self.traits[torch.arange(len(self.node_ids)).repeat(len(numbers))]


_APART = 1 << 40
"""The difference between the ids of a node's copies."""


def occupied_rows(matrix: DistCSR) -> Mask:
    """Return a mask of non-empty rows; most nodes have neighbours in few relations."""
    occupied = np.zeros(matrix.shape[0], np.bool_)
    for part in (matrix.diagonal, matrix.remote):
        occupied[part.entry_rows()] = True
    return occupied


def row_ids_of(part: DistCSR, output_ids: GlobalIndices, node_ids: GlobalIndices) -> GlobalIndices:
    """Return a unique id for each row of a matrix, from its node and its relation.

    `node_ids` are those of all local nodes, `output_ids` those of the rows of a single relation.
    """
    if part.num_relations == 1 or part.row_nodes is None:
        return output_ids
    relations, nodes = np.divmod(part.row_nodes, max(len(node_ids), 1))
    return node_ids[nodes] * part.num_relations + relations


def rows_by_relation(part: DistCSR, outputs: Mask) -> tuple[LocalIndices, ...]:
    """Return for each relation the output row (int32) of each of its rows in `part`."""
    assert part.row_nodes is not None
    relations, nodes = np.divmod(part.row_nodes, max(len(outputs), 1))
    output_rows = (np.cumsum(outputs) - 1).astype(np.int32)[nodes]
    bounds = np.searchsorted(relations, np.arange(1, part.num_relations))
    return tuple(np.split(output_rows, bounds))
