"""Structural node features (degrees, projections, spectral positions), alone or added to others.

They depend only on the graph, the original ids and a seed, not on which rank owns a node.
"""

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import ProcessGrid, RowMap, agree, redistribute
from hpcgnn.graph.context import Context
from hpcgnn.graph.feature_storage import FeatureStorage
from hpcgnn.graph.operators import Adjacency
from hpcgnn.graph.read_edges import check_weights
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.nn import draw_vectors
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.sparse import DistCSR, LocalCSR, PatternRows, read_adjacency
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock, SparseRows
from hpcgnn.typing import FloatArray, GlobalIndices

_DEGREE = 8
_ROUNDS = 8


class SpectralPositions:
    """The leading eigenvectors of ``D^-1/2 (A + t/n 1 1ᵀ) D^-1/2`` with ``D = diag(A 1) + t``.

    t is the mean degree: without it, small components and nodes with few neighbours would dominate
    the leading eigenvectors (Qin and Rohe, "Regularized spectral clustering under the
    degree-corrected stochastic blockmodel", NIPS 2013). The first one, ``D^1/2 1``, is known and
    left out.

    They are computed by subspace iteration with a Chebyshev filter (Zhou, Saad, Tiago and
    Chelikowsky, J. Comput. Phys. 219, 2006), in a fixed number of rounds, so that the result is a
    smooth function of the graph and of the initial vectors, `start` (num_local, columns) float64,
    which also determine the basis for equal eigenvalues. `adjacency` is the product with the
    symmetric A of n nodes.
    """

    @collective
    def __init__(
        self, grid: ProcessGrid, adjacency: AggregationOperator, num_nodes: int, start: FloatArray
    ) -> None:
        self._grid, self._adjacency, self._num_nodes = grid, adjacency, num_nodes
        # There are no more independent columns than nodes.
        self._start = start[:, : max(num_nodes - 1, 0)]
        degrees = adjacency.apply(np.ones((len(start), 1))).copy()
        self._more = float(self._sum(degrees)[0]) / max(num_nodes, 1)
        # Without edges all vectors are eigenvectors; any positive shift will do.
        root = np.sqrt(degrees + (self._more or 1.0))
        self._scale = 1 / root
        self._first = root / np.sqrt(self._sum(root**2))

    @collective
    def find(self, columns: int) -> FloatArray:
        """Return (num_local, columns) float64 positions, by decreasing eigenvalue.

        The length of a column is sqrt(n) times its eigenvalue, and its sign makes its product with
        the initial vector positive. Columns for eigenvalue 0 are 0, and so are the last columns if
        the graph has fewer nodes.
        """
        x = self._orthonormal(self._start)
        values: FloatArray = np.zeros(x.shape[1])
        low = 0.0
        for _ in range(_ROUNDS):
            x = self._orthonormal(self._filtered(x, low))
            small = self._inner(x, self._product(x))
            values, turn = _eigh((small + small.T) / 2)
            values, x = values[::-1], _times(x, turn[:, ::-1])
            low = float(values[-1]) if len(values) else 0.0
        count = min(columns, x.shape[1])
        side = self._sum(x * self._start)
        signs = np.where(side < 0, -1.0, 1.0)
        # Vectors for eigenvalue 0 are rounding errors, which normalisation would make large.
        signs[np.abs(values) < _ZERO] = 0
        vectors = np.zeros((len(x), columns))
        length = np.sqrt(self._num_nodes)
        vectors[:, :count] = (x * signs * values * length)[:, :count]
        return vectors

    def _product(self, x: FloatArray) -> FloatArray:
        scaled = np.ascontiguousarray(self._scale * x)
        near = self._adjacency.apply(scaled)
        mean = self._sum(scaled) / max(self._num_nodes, 1)
        return self._scale * (near + self._more * mean)

    def _filtered(self, x: FloatArray, low: float) -> FloatArray:
        """Apply the Chebyshev polynomial that is small on [-1, low], and grows above."""
        # With a filter up to 1 nothing would be amplified.
        low = min(max(low, 0.0), 0.95)
        half, centre = (low + 1) / 2, (low - 1) / 2
        before, now = x, (self._product(x) - centre * x) / half
        for _ in range(_DEGREE - 1):
            before, now = now, 2 * (self._product(now) - centre * now) / half - before
        return now

    def _orthonormal(self, x: FloatArray) -> FloatArray:
        """Return an orthonormal basis that is orthogonal to the known eigenvector."""
        # Twice, since once loses digits if columns are nearly dependent.
        for _ in range(2):
            x = x - self._first * self._inner(self._first, x)
            lengths = np.sqrt(self._sum(x**2))
            x = x / np.where(lengths > 0, lengths, 1)
            values, vectors = _eigh(self._inner(x, x))
            # Symmetric orthonormalisation changes the columns as little as possible.
            x = _times(x, _times(vectors / np.sqrt(np.maximum(values, 1e-14)), vectors.T))
        return x

    def _sum(self, rows: FloatArray) -> FloatArray:
        sums = self._grid.sum_over_blocks
        return arithmetic().sums_and_count(torch.from_numpy(rows), sums)[:-1]

    def _inner(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return ``leftᵀ right`` over the rows of all ranks, the same bits on each."""
        products = arithmetic().contract(torch.from_numpy(left), torch.from_numpy(right)).numpy()
        arithmetic().complete(products, self._grid.sum_over_blocks)
        # Sums over ranks may differ in the last bit from rank to rank.
        return self._grid.layer.bcast(products)


def _times(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    both = (torch.from_numpy(np.ascontiguousarray(array)) for array in (rows, matrix))
    return arithmetic().product(*both).numpy()


def _eigh(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    with arithmetic().on_weights():
        values, vectors = torch.linalg.eigh(torch.from_numpy(matrix))
    return values.numpy(), vectors.numpy()


_ZERO = 1e-12
"""Smaller eigenvalues count as 0; all are at most 1 in absolute value."""
_STEPS = 3
_SPARE = 8
"""Extra columns, since the last ones of a subspace converge slowly."""


@collective
def with_structure(stored: StoredRows, nodes: NodeBlock) -> NodeBlock:
    """Append the features of ``graph.structure``, if any, to those of the nodes.

    Raises `CollectiveInputError` if a block of the store cannot be read.
    """
    options = stored.context.config.graph
    if not options.num_structural:
        return nodes
    with stored.context.trace.span("read.structure"):
        columns = structural_features(stored, nodes.original_id)
    if stored.is_sparse:
        return replace(nodes, sparse=_beside(nodes.sparse, columns, stored.store.num_features))
    tables = [columns] if nodes.features is None else [nodes.features, columns]
    with agree(stored.context.grid.world):
        return replace(nodes, features=FeatureStorage(options.features_dir).beside(tables))


def _beside(rows: SparseRows | None, columns: FloatArray, width: int) -> SparseRows:
    """Append dense columns to sparse rows of `width` columns."""
    rows = rows or SparseRows.of(columns[:, :0])
    whole = LocalCSR(rows.indptr, rows.indices, rows.values, (len(columns), width)).beside(columns)
    assert whole.values is not None
    return SparseRows(whole.indptr, whole.indices, whole.values)


@collective
def structural_features(stored: StoredRows, ids: GlobalIndices) -> FloatArray:
    """Return the features (num_local, columns) float64 of ``graph.structure``, from original ids.

    ``degree``: log(1 + in-degree) and log(1 + out-degree).
    ``projection``: the sum over steps t = 1, 2, 3 of the rows, scaled to length 1, of ``(D⁻¹A)ᵗ R``
    with a random R of k columns, over edges in both directions; nodes with overlapping
    neighbourhoods are close to each other (Chen et al., "Fast and Accurate Network Embeddings via
    Very Sparse Random Projection", CIKM 2019, with equal weights and a dense R).
    ``spectral``: see `SpectralPositions`.

    Raises `CollectiveInputError` if a block of the store cannot be read.
    """
    context, row_map, options = stored.context, stored.row_map, stored.context.config.graph
    rows = read_adjacency(
        context.grid,
        stored.store,
        row_map,
        options.relations,
        undirected=options.structure != "degree" or options.undirected,
    )
    if context.hidden is not None:
        rows = context.hidden.drop(rows)
    return _KINDS[options.structure](context, row_map, rows, ids)


def _degrees(
    context: Context, row_map: RowMap, rows: PatternRows, _ids: GlobalIndices
) -> FloatArray:
    columns, counts = np.unique(rows.columns, return_counts=True)
    owners = row_map.owner(columns)
    columns, counts = redistribute(context.grid.layer, owners, columns, counts.astype(np.int64))
    out = np.zeros(row_map.num_local)
    np.add.at(out, columns - row_map.start, counts)
    return np.log1p(np.stack([np.diff(rows.indptr).astype(np.float64), out], axis=1))


def _operator(
    context: Context, row_map: RowMap, rows: PatternRows, ids: GlobalIndices, kind: Aggregation
) -> AggregationOperator:
    """Return the float64 product with the matrix of some rows; collective."""
    weights = rows.weights if context.config.graph.weights == "use" else None
    matrix = DistCSR.from_rows(row_map, rows.indptr, rows.columns, weights)
    check_weights(context, matrix)
    make, dtype = context.operators(wide=True), np.dtype(np.float64)
    return Adjacency(make, matrix, (kind,), dtype, ids).products().operators[kind]


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


_KINDS = {"degree": _degrees, "projection": _project, "spectral": _spectral}
