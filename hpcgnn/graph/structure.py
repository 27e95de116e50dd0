"""Features that tell of a node's place in the graph, for graphs without features or beside them.

They are functions of the graph, the original ids and a seed, whatever rank owns a node.
"""

from dataclasses import replace

import numpy as np

from hpcgnn.comm import RowMap, redistribute
from hpcgnn.graph.context import Context
from hpcgnn.graph.device import CPU
from hpcgnn.graph.products import adjacency_products, make_operators
from hpcgnn.graph.spectral import SpectralPositions
from hpcgnn.graph.stored import StoredRows
from hpcgnn.nn import draw_vectors
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.sparse import DistCSR, PatternRows, read_adjacency
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock
from hpcgnn.typing import FloatArray, GlobalIndices

_STEPS = 3
_SPARE = 8
"""Columns beyond those that are wanted: the last ones of a subspace converge slowly."""


@collective
def with_structure(stored: StoredRows, nodes: NodeBlock) -> NodeBlock:
    """Return the nodes with the features of ``graph.structure`` behind their own, if there are any.

    Raises
    ------
    CollectiveInputError
        When a block of the store does not read.
    """
    if not stored.context.config.graph.num_structural:
        return nodes
    with stored.context.trace.span("read.structure"):
        columns = structural_features(stored, nodes.original_id)
    tables = [columns] if nodes.features is None else [nodes.features, columns]
    return replace(nodes, features=np.concatenate(tables, axis=1))


@collective
def structural_features(stored: StoredRows, ids: GlobalIndices) -> FloatArray:
    """Return (num_local, columns) float64 features as ``graph.structure`` says.

    ``degree``: the logarithms of one more than the in-degree and than the out-degree.
    ``projection``: the sum over steps t = 1, 2, 3 of the rows, scaled to length 1, of ``(D⁻¹A)ᵗ R``
    with random R of k columns, over edges in both directions; nodes whose neighbourhoods overlap
    are near each other (Chen et al., "Fast and Accurate Network Embeddings via Very Sparse Random
    Projection", CIKM 2019, with equal weights and a dense R).
    ``spectral``: see `SpectralPositions`.

    Parameters
    ----------
    ids
        (num_local,) int64 original ids.

    Raises
    ------
    CollectiveInputError
        When a block of the store does not read.
    """
    context, row_map = stored.context, stored.row_map
    kind = context.config.graph.structure
    degrees = kind == "degree"
    rows = read_adjacency(
        context.grid,
        stored.store,
        row_map,
        context.config.graph.relations,
        undirected=not degrees or context.config.graph.undirected,
    )
    if context.hidden is not None:
        rows = context.hidden.drop(rows)
    if degrees:
        return _degrees(context, row_map, rows)
    return (
        _project(context, row_map, rows, ids)
        if kind == "projection"
        else _spectral(context, row_map, rows, ids)
    )


def _degrees(context: Context, row_map: RowMap, rows: PatternRows) -> FloatArray:
    columns, counts = np.unique(rows.columns, return_counts=True)
    owners = row_map.owner(columns)
    columns, counts = redistribute(context.grid.layer, owners, columns, counts.astype(np.int64))
    out = np.zeros(row_map.num_local)
    np.add.at(out, columns - row_map.start, counts)
    return np.log1p(np.stack([np.diff(rows.indptr).astype(np.float64), out], axis=1))


def _operator(
    context: Context, row_map: RowMap, rows: PatternRows, ids: GlobalIndices, kind: Aggregation
) -> AggregationOperator:
    """Return the product in float64 with the matrix of some rows; collective."""
    weights = rows.weights if context.config.graph.weights == "use" else None
    matrix = DistCSR.from_rows(row_map, rows.indptr, rows.columns, weights)
    make = make_operators(context.grid, context.config.exchange, context.trace, CPU)
    dtype = np.dtype(np.float64)
    return adjacency_products(make, matrix, (kind,), dtype, ids).operators[kind]


def _project(
    context: Context, row_map: RowMap, rows: PatternRows, ids: GlobalIndices
) -> FloatArray:
    config = context.config.graph
    mean = _operator(context, row_map, rows, ids, Aggregation.MEAN_IN)
    x = draw_vectors(ids, config.structure_columns, config.structure_seed)
    total = np.zeros_like(x)
    for _ in range(_STEPS):
        x = mean.apply(np.ascontiguousarray(x)).copy()
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        total += x / np.where(norms > 0, norms, 1)
    return total


def _spectral(
    context: Context, row_map: RowMap, rows: PatternRows, ids: GlobalIndices
) -> FloatArray:
    config = context.config.graph
    plain = _operator(context, row_map, rows, ids, Aggregation.SUM_IN)
    start = draw_vectors(ids, config.structure_columns + _SPARE, config.structure_seed)
    positions = SpectralPositions(context.grid, plain, row_map.num_rows, start)
    return positions.find(config.structure_columns)
