"""Read a rank's edges: its block row of the adjacency, and features of edges."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from hpcgnn.comm import agree
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.edge_inputs import scaled_edges, with_positions
from hpcgnn.graph.facts import num_edge_features
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.operator import Aggregation, on_graph
from hpcgnn.sparse import (
    DistCSR,
    EdgeFeatures,
    EdgeRows,
    EdgeTable,
    PatternRows,
    read_adjacency,
    read_edge_rows,
    read_relations,
    stack_relations,
)
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.typing import FloatArray


@collective
def read_edge_rows_of(stored: StoredRows) -> EdgeRows:
    """Return the edges of this rank's rows, with features scaled for the model.

    Raises `CollectiveInputError` if a block cannot be read.
    """
    edges = _read_edges(stored)
    dtype = stored.context.config.train.dtype
    return replace(edges, features=edges.features.astype(dtype, copy=False))


@collective
def _read_edges(stored: StoredRows) -> EdgeRows:
    """Do the same as `read_edge_rows_of`, but leave features in float16 if they are not scaled."""
    context = stored.context
    rows = stored.row_map, stored.relations, context.hidden
    edges = read_edge_rows(context.grid, stored.store, *rows, partial(scaled_edges, stored))
    if context.config.graph.positions == "relative":
        edges = with_positions(stored, edges)
    return edges


@collective
def _edge_table(stored: StoredRows, rows: PatternRows) -> EdgeTable:
    """Return the edges for messages; features may stay in float16 if rows are bfloat16."""
    config = stored.context.config
    narrow = config.train.precision == "bfloat16" and not config.fields.read_of_edges
    edges = _read_edges(stored) if narrow else read_edge_rows_of(stored)
    return EdgeTable.of_pattern(stored.row_map, rows, edges)


@collective
def check_weights(context: Context, matrix: DistCSR) -> None:
    """Raise `CollectiveInputError` if a matrix that must be scaled has negative weights."""
    with agree(context.grid.world):
        for part in (matrix.diagonal, matrix.remote):
            if part.values is not None and part.values.min(initial=0) < 0:
                raise InputError(
                    f"{context.config.graph.store}: with negative edge weights there is no mean, "
                    "since their sum may be zero or negative; set graph.weights=ignore, or "
                    "model.name=gin, which adds, or convert with weights >= 0"
                )


@dataclass(frozen=True, eq=False)
class ReadMatrix:
    """The adjacency of a rank and the data of its edges.

    The matrix was made from `rows`: for each relation if it distinguishes them, else for their
    union. `edges` are features for attention, `table` edges for messages, or None; with either, the
    values of the matrix are entry numbers. `edge_means` (num_local, F) are the mean features of the
    edges of each row, if the model reads them.
    """

    aggregations: tuple[Aggregation, ...]
    matrix: DistCSR
    rows: tuple[PatternRows, ...]
    edges: EdgeFeatures | None
    table: EdgeTable | None
    edge_means: FloatArray | None


@collective
def read_matrix(stored: StoredRows) -> ReadMatrix:
    """Return this rank's block row of the matrix for the aggregations.

    Raises `CollectiveInputError` if a block cannot be read, one matrix cannot serve all
    aggregations, or weights are negative in a mean.
    """
    context, store, row_map = stored.context, stored.store, stored.row_map
    grid, config, directed = context.grid, context.config, stored.directed
    aggregations = on_graph(context.required_aggregations, directed=directed)
    with agree(grid.world):
        # Models without attention or messages read edge features as means, from the view.
        reads_edges = config.reads_edges and num_edge_features(config, store) > 0
    undirected, edges, means = config.graph.undirected, None, None
    table, attends = None, all(a.attends for a in aggregations)
    messages = any(a.passes_messages for a in aggregations)
    if reads_edges and not attends and not messages:
        means = _read_edges(stored).means(row_map.num_local, config.train.dtype)
    if any(a.by_relation for a in aggregations):
        relations = read_relations(
            grid,
            store,
            row_map,
            stored.relations,
            undirected=undirected,
            reverse=directed and config.graph.reverse,
        )
        if context.hidden is not None:
            relations = [context.hidden.drop(rows) for rows in relations]
        all_rows = tuple(_weighted(config, rows) for rows in relations)
        matrix = stack_relations(row_map, all_rows)
    else:
        rows = read_union(stored, aggregations, undirected=undirected)
        values = rows.weights
        if reads_edges and attends:
            mean_loops = any(a.self_loops for a in aggregations)
            edges = EdgeFeatures.of_pattern(
                grid,
                row_map,
                rows,
                read_edge_rows_of(stored),
                mean_loops=mean_loops,
                moving=bool(config.fields.read_of_edges),
            )
            values = edges.numbers
        if messages:
            table = _edge_table(stored, rows)
            values = table.numbers
        matrix = DistCSR.from_rows(row_map, rows.indptr, rows.columns, values)
        # Entry numbers differ from those of the reverse edges.
        matrix = replace(matrix, symmetric=not directed and values is rows.weights)
        all_rows = (rows,)
    if any(a.is_scaled for a in aggregations):
        check_weights(context, matrix)
    return ReadMatrix(aggregations, matrix, all_rows, edges, table, means)


def read_union(
    stored: StoredRows, aggregations: tuple[Aggregation, ...], *, undirected: bool
) -> PatternRows:
    """Return the rows of the union of relations; collective."""
    context = stored.context
    rows = read_adjacency(
        context.grid,
        stored.store,
        stored.row_map,
        context.config.graph.relations,
        undirected=undirected,
        self_loops=any(a.self_loops for a in aggregations),
    )
    rows = rows if context.hidden is None else context.hidden.drop(rows)
    return _weighted(context.config, rows)


def _weighted(config: Config, rows: PatternRows) -> PatternRows:
    """Return rows without weights if ``graph.weights`` is "ignore"."""
    return replace(rows, weights=None) if config.graph.weights == "ignore" else rows


def relation_names(
    config: Config, store: GraphStore, aggregations: Collection[Aggregation], *, directed: bool
) -> tuple[str, ...]:
    """Return the names of the relations that `aggregations` distinguishes; () if it unites them."""
    if not any(a.by_relation for a in aggregations):
        return ()
    names = tuple(config.graph.relations or store.relations)
    if directed and config.graph.reverse:
        names += tuple(f"{name} reversed" for name in names)
    return names
