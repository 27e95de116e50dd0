"""Make the graph views, with which models aggregate, of sampled subgraphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import DTypeLike

from hpcgnn.autograd import DistinctSums, GraphMembers
from hpcgnn.comm import ProcessGrid, RowMap, allreduce_sum
from hpcgnn.config.sampling import SamplingConfig
from hpcgnn.graph.context import Context
from hpcgnn.graph.operators import row_ids_of, rows_by_relation, traced_sums
from hpcgnn.nn import GraphView, LayerView, NodeFeatures, NodeTraits, TypedRows
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.sampling import FanOutLayer, LayeredSample, SampledPattern, Subgraph
from hpcgnn.sparse import DistCSR, EdgeFeatures, EdgeTable, LocalCSR
from hpcgnn.sparse.pieces import row_pieces
from hpcgnn.spmd import collective
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class _SampledEntries:
    """The entries of a sampled matrix: local rows and columns (nnz,), and weight sums of these.

    Row sums are (rows,), or (R, rows) by relation.

    `numbers` (nnz,) int64 are the numbers of the entries in the whole graph, `weights` (nnz,) those
    of the edges. Entries are multiplied by row or column factors (nnz,), so that sums over sampled
    rows or columns estimate the whole sums. `of_whole` tells if the sums are of the whole graph.
    """

    rows: LocalIndices
    columns: LocalIndices
    numbers: GlobalIndices
    weights: FloatArray
    row_sums: FloatArray
    column_sums: FloatArray
    row_factors: FloatArray
    column_factors: FloatArray
    of_whole: bool

    def values(
        self, aggregation: Aggregation, dtype: DTypeLike, *, numbered: bool
    ) -> FloatArray | None:
        """Return the values (nnz,) of the matrix scaled for `aggregation`; None for ones.

        If entries are `numbered`, for messages and attention with edge features, the values are
        their numbers: these aggregations use the sampled entries without factors.
        """
        if numbered:
            return self.numbers.astype(np.float64)
        if aggregation.powers is None:
            return None
        factors = self.column_factors if aggregation.is_reversed else self.row_factors
        values = self.weights * factors
        if aggregation.is_scaled:
            by_row, by_column = self.row_sums[self.rows], self.column_sums[self.columns]
            divisors = aggregation.divisors(by_row, by_column)
            # As in the whole graph, a weight sum of zero gives zero.
            values = np.divide(values, divisors, out=np.zeros_like(values), where=divisors != 0)
        return values.astype(dtype)

    def by_relation(
        self, table: EdgeTable, output_positions: Array, num_columns: int
    ) -> tuple["_SampledEntries", LocalIndices]:
        """Return the entries of the matrix with a block of rows for each relation, and its rows.

        Only those of the R times `num_columns` rows that have entries exist; their numbers (rows,)
        int32 are returned. `output_positions` (n,) are the columns of the output nodes, and `table`
        has the edges of all entries.
        """
        counts, numbers = table.edges_of(self.numbers)
        entries: Array = np.repeat(np.arange(len(self.rows)), counts)
        kinds, weights = table.features[numbers].astype(np.float64).T
        tall = kinds.astype(np.int64) * num_columns + output_positions[self.rows[entries]]
        order = np.lexsort((self.columns[entries], tall))
        entries, weights = entries[order], weights[order]
        occupied, rows = np.unique(tall[order], return_inverse=True)
        factors = self.row_factors[entries]
        if self.of_whole:
            relations, nodes = np.divmod(occupied, max(num_columns, 1))
            sums = self.row_sums[relations, np.searchsorted(output_positions, nodes)]
        else:
            sums = np.bincount(rows, weights * factors, len(occupied)).astype(np.float64)
        stacked = replace(
            self,
            rows=rows.astype(np.int32),
            columns=self.columns[entries],
            numbers=self.numbers[entries],
            weights=weights,
            row_sums=sums,
            row_factors=factors,
            column_factors=self.column_factors[entries],
        )
        return stacked, occupied.astype(np.int32)


class SampledViews:
    """Makes the graph views of sampled subgraphs.

    Sums of statistics run over all ranks; products are local.
    """

    def __init__(
        self, context: Context, graph: SampledGraph, aggregations: tuple[Aggregation, ...]
    ) -> None:
        grid, config, trace, device = context.grid, context.config, context.trace, context.device
        self.context, self.graph = context, graph
        self._device, self._sums = device, traced_sums(grid, trace)
        self._aggregations, self._dtype = aggregations, config.train.dtype
        make = context.operators_of_subgraphs()
        self._reads_means = False
        if graph.table is not None:
            if any(a.passes_messages for a in aggregations):
                make = replace(make, table=graph.table)
            elif all(a.attends for a in aggregations):
                features = graph.table.features
                edge_map = RowMap(np.array([0, len(features)], np.int64), 0)
                edges = EdgeFeatures(grid.alone().layer, edge_map, features)
                make = replace(make, edges=edges)
            else:
                self._reads_means = True
        self._make = make
        self._weighted = config.sampling.coverage > 0
        self._in_parts = config.sampling.topology == "partitioned"
        self._ratio = config.sampling.estimator == "ratio"
        self._mean_log_degree: torch.Tensor | None = None

    @collective
    def know_degrees(self) -> None:
        """Let layers that pass messages scale by degrees of the whole graph, as evaluations do."""
        if not any(kind.passes_messages for kind in self._aggregations):
            return
        # In pieces to save memory. Equal degrees are counted, so that the order of the nodes does
        # not change rounding.
        num_roots = self.graph.edges.num_roots
        pieces = [slice(0, 0), *row_pieces(self.graph.edges.indptr[: num_roots + 1])]
        counted = [
            np.unique(self._degrees(np.arange(rows.start, rows.stop)), return_counts=True)
            for rows in pieces
        ]
        found, counts = (np.concatenate(arrays) for arrays in zip(*counted, strict=True))
        degrees, positions = np.unique(found, return_inverse=True)
        sums = np.array([np.log1p(degrees) @ np.bincount(positions, counts), num_roots])
        if self._in_parts:
            allreduce_sum(self.context.grid.layer, sums)
        self._mean_log_degree = self._device.tensor(sums[:1] / max(sums[1], 1))

    def _degrees(self, nodes: Array) -> GlobalIndices:
        """Return the number of edges into nodes (n,), where only these are indexed."""
        ends, table = self.graph.edges.indptr, self.graph.table
        first, last = ends[:-1][nodes], ends[1:][nodes]
        if table is not None and table.starts is not None:
            first, last = table.starts[first], table.starts[last]
        return last - first

    @property
    def parts(self) -> tuple[ProcessGrid, SampledGraph, SamplingConfig]:
        """The ranks, the graph to sample, and the sampling options."""
        return self.context.grid, self.graph, self.context.config.sampling

    def features(self, nodes: LocalIndices, seeds: tuple[int, int]) -> NodeFeatures:
        """Return the features of nodes on the model's device; `seeds` are run seed and epoch."""
        features = self.graph.features[torch.from_numpy(nodes).long()]
        if self.graph.label_inputs is not None:
            self.graph.label_inputs.hide(features, self.graph.node_ids[nodes], seeds)
        return features.to(self._device.torch_device)

    def of_subgraphs(self, subgraphs: Sequence[Subgraph]) -> tuple[GraphView, Subgraph]:
        """Return the view of the disjoint union of subgraphs, in order, and the union.

        Without coefficients, means are over a subgraph's own edges, and all losses weigh the same.
        """
        # Whole graphs have no coefficients.
        weighted = (
            all(subgraph.loss_weights is not None for subgraph in subgraphs) and self._weighted
        )
        union = _side_by_side(subgraphs, weighted)
        node_ids, pattern = self.graph.node_ids[union.nodes], union.pattern
        row_map = RowMap(np.array([0, len(union.nodes)], np.int64), 0)
        matrix = DistCSR.from_rows(row_map, pattern.indptr, pattern.indices.astype(np.int64))
        entries, output_positions = self._subgraph_entries(union), np.arange(len(union.nodes))
        aggregates = self._aggregates(matrix, entries, (node_ids, node_ids), output_positions)
        traits = self._traits(entries, union.nodes, union.nodes, output_positions)
        ids = self._device.ids(node_ids)
        return GraphView(aggregates[0], ids, self._sums, aggregates[1], traits), union

    def of_graphs(self, subgraph: Subgraph, node_graph: GlobalIndices) -> GraphView:
        """Return the view of whole graphs for a read-out.

        `subgraph` has all nodes of the graphs, `node_graph` (n,) int64 the graph of each node.
        """
        (view, _), device = self.of_subgraphs([subgraph]), self._device
        ids, pieces = np.unique(node_graph, return_inverse=True)
        members = GraphMembers(
            pieces=device.tensor(pieces.astype(np.int64)),
            num_pieces=len(ids),
            graphs=device.tensor(np.arange(len(ids))),
            ids=device.ids(ids),
            request=None,
            trace=self.context.trace,
        )
        return view.of_graphs(members)

    def of_layers(self, sample: LayeredSample) -> tuple[GraphView, LocalIndices]:
        """Return the view of a layer-wise sample, and its input nodes (int32)."""
        layers = tuple(self._layer(layer) for layer in sample.layers)
        inputs = sample.layers[0].inputs
        ids = self._device.ids(self.graph.node_ids[inputs])
        return GraphView({}, ids, self._sums, active=layers), inputs

    def _layer(self, layer: FanOutLayer) -> LayerView:
        num_inputs, pattern, graph = len(layer.inputs), layer.pattern, self.graph
        shape = (len(layer.outputs), num_inputs)
        row_map = RowMap(np.array([0, num_inputs], np.int64), 0)
        nothing = _no_ghosts(shape[0])
        whole = LocalCSR(pattern.indptr, pattern.indices, None, shape)
        matrix = DistCSR(row_map, whole, nothing, np.zeros(0, np.int64), layer.output_positions)
        rows = pattern.entry_rows()
        drawn = np.diff(pattern.indptr)
        # Index these rows only, so that the cost of a step does not depend on the graph's size.
        ends, starts = graph.edges.indptr[1:], graph.edges.indptr[:-1]
        degrees = ends[layer.outputs] - starts[layer.outputs]
        factors = (degrees / np.maximum(drawn, 1))[rows]
        entries = _SampledEntries(
            rows,
            pattern.indices,
            pattern.entries,
            self._weights(pattern.entries),
            graph.row_sums[..., layer.outputs],
            graph.column_sums[layer.inputs],
            factors,
            factors,
            of_whole=True,
        )
        ids = graph.node_ids[layer.inputs], graph.node_ids[layer.outputs]
        operators, relations = self._aggregates(matrix, entries, ids[::-1], layer.output_positions)
        output_positions = self._device.tensor(layer.output_positions.astype(np.int64))
        sums = self._sums
        if not self._in_parts:
            # Pieces of a batch may have copies of the same node: count it once.
            sums = DistinctSums(sums, self.context.grid.layer, ids)
        traits = self._traits(entries, layer.inputs, layer.outputs, layer.output_positions)
        return LayerView(
            operators, self._device.ids(ids[0]), sums, relations, traits, output_positions
        )

    def _traits(
        self,
        entries: _SampledEntries,
        inputs: LocalIndices,
        outputs: LocalIndices,
        output_positions: Array,
    ) -> NodeTraits:
        """Return the traits of the input nodes, with the outputs at `output_positions` (n,)."""
        table, edges, features = self.graph.table, self.graph.edges, self.graph.features
        types = None
        if isinstance(features, TypedRows):
            types = self._device.tensor(features.types.numpy()[inputs].astype(np.int64))
        if table is None or not self._reads_means:
            mean, degrees = self._mean_log_degree, None
            if mean is not None:
                degrees = self._device.tensor(self._degrees(inputs))
            return NodeTraits(types, degrees=degrees, mean_log_degree=mean)
        counts, numbers = table.edges_of(entries.numbers)
        rows: LocalIndices = np.repeat(entries.rows, counts)
        factors: FloatArray = np.repeat(entries.row_factors, counts)
        sums = np.zeros((len(outputs), table.features.shape[1]))
        np.add.at(sums, rows, factors[:, None] * table.features[numbers])
        totals = np.bincount(rows, factors, len(outputs))
        if entries.of_whole:
            # As for means of rows, the drawn edges represent all edges of a node.
            ends = edges.indptr if table.starts is None else table.starts[edges.indptr]
            totals = (ends[1:] - ends[:-1])[outputs].astype(np.float64)
        means = np.zeros((len(inputs), sums.shape[1]), table.features.dtype)
        means[output_positions] = sums / np.where(totals > 0, totals, 1)[:, None]
        return NodeTraits(types, self._device.tensor(means))

    def _subgraph_entries(self, union: Subgraph) -> _SampledEntries:
        graph, count, factors = self.graph, len(union.nodes), union.edge_factors
        rows, columns = union.pattern.entry_rows(), union.pattern.indices
        weights = self._weights(union.pattern.entries)
        by_row: FloatArray = np.ones(len(rows))
        by_column, of_whole = by_row, False
        if factors is not None and union.loss_weights is not None:
            # The row v has the factor C_v / C_uv, the column u C_u / C_uv; loss weights are N / C.
            loss_weights = union.loss_weights
            by_row, by_column = factors, factors * loss_weights[rows] / loss_weights[columns]
            of_whole = not self._ratio
        if of_whole:
            row_sums, column_sums = graph.row_sums[..., union.nodes], graph.column_sums[union.nodes]
        else:
            row_sums = np.bincount(rows, weights * by_row, count).astype(np.float64)
            column_sums = np.bincount(columns, weights * by_column, count).astype(np.float64)
        sums, entries = (row_sums, column_sums), union.pattern.entries
        return _SampledEntries(
            rows, columns, entries, weights, *sums, by_row, by_column, of_whole=of_whole
        )

    def _weights(self, entries: GlobalIndices) -> FloatArray:
        weights = self.graph.weights
        return np.ones(len(entries)) if weights is None else weights[entries].astype(np.float64)

    def _aggregates(
        self,
        matrix: DistCSR,
        entries: _SampledEntries,
        ids: tuple[GlobalIndices, GlobalIndices],
        output_positions: Array,
    ) -> tuple[Mapping[Aggregation, AggregationOperator], tuple[LocalIndices, ...]]:
        """Return the operators and the rows of relations, see `LayerView`.

        `ids` are those of the rows and of the columns; for `output_positions`, see `_traits`.
        """
        (row_ids, column_ids), relation_rows = ids, tuple[LocalIndices, ...]()
        if self.graph.relations is not None:
            matrix, entries = self._stack(matrix, entries, output_positions)
            row_ids = row_ids_of(matrix, row_ids, column_ids)
            outputs = np.zeros(len(column_ids), np.bool_)
            outputs[output_positions] = True
            by_relation = rows_by_relation(matrix, outputs)
            relation_rows = tuple(self._device.ids(rows) for rows in by_relation)
        exchange = self._make.exchange(matrix, column_ids)
        operators: dict[Aggregation, AggregationOperator] = {}
        for kind in self._aggregations:
            numbered = kind.passes_messages or (kind.attends and self._make.edges is not None)
            values = entries.values(kind, self._dtype, numbered=numbered)
            nothing = values[:0] if numbered and values is not None else None
            scaled = matrix.with_values(values, nothing)
            operators[kind] = self._make.operator(kind, scaled, exchange, row_ids, column_ids)
        return operators, relation_rows

    def _stack(
        self, matrix: DistCSR, entries: _SampledEntries, output_positions: Array
    ) -> tuple[DistCSR, _SampledEntries]:
        """Return the matrix with a block of rows for each relation, and its entries."""
        num_columns, table = matrix.shape[1], self.graph.relations
        assert table is not None
        entries, row_nodes = entries.by_relation(table, output_positions, num_columns)
        counts = np.bincount(entries.rows, minlength=len(row_nodes))
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        pattern = LocalCSR(indptr, entries.columns, None, (len(row_nodes), num_columns))
        return replace(
            matrix,
            diagonal=pattern,
            remote=_no_ghosts(len(row_nodes)),
            row_nodes=row_nodes,
            num_relations=len(self.graph.row_sums),
        ), entries


def _no_ghosts(num_rows: int) -> LocalCSR:
    empty = np.zeros(0, np.int32)
    return LocalCSR(np.zeros(1, np.int64), empty, None, (num_rows, 0), empty)


def _side_by_side(subgraphs: Sequence[Subgraph], weighted: bool) -> Subgraph:
    sizes = np.array([len(subgraph.nodes) for subgraph in subgraphs], np.int64)
    offsets = np.cumsum(sizes) - sizes
    factors = [subgraph.edge_factors for subgraph in subgraphs if subgraph.edge_factors is not None]
    losses = [subgraph.loss_weights for subgraph in subgraphs if subgraph.loss_weights is not None]
    pattern = SampledPattern.side_by_side([subgraph.pattern for subgraph in subgraphs], offsets)
    return Subgraph(
        0,
        _join([subgraph.nodes for subgraph in subgraphs], np.int32),
        pattern,
        _join(losses, np.float32) if weighted else None,
        _join(factors, np.float32) if weighted else None,
    )


def _join(arrays: Sequence[Array], dtype: DTypeLike) -> Array:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)
