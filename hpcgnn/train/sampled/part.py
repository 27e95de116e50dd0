"""A part of the graph with its halo, from which a rank samples in partitioned training.

The home of a node is the rank that has its rows of the store and evaluates models on them. For a
period of epochs, a node belongs to the part of its home or, for a share of the nodes, of a random
rank. A rank fetches the rows of its part and of all nodes within some steps of it, and trains on
the graph of these nodes: it never holds more than its home rows, its part and the halo.
"""

from collections.abc import Sequence

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, agree, redistribute
from hpcgnn.comm.row_map import found_among
from hpcgnn.errors import InputError
from hpcgnn.sampling import Topology
from hpcgnn.sparse import EdgeTable, PatternRows
from hpcgnn.spmd import collective
from hpcgnn.train.sampled.graph import (
    HomeRows,
    SampledGraph,
    fetch_features,
    relation_sums,
    weight_sums,
)
from hpcgnn.typing import Array, FloatArray, GlobalIndices


@collective
def choose_part(
    grid: ProcessGrid, row_map: RowMap, share: float, seed: int, period: int
) -> GlobalIndices:
    """Return this rank's part as ascending int64 rows, a function of seed and period.

    `share` is the probability that a node moves to a random rank; none moves in period 0. Periods
    count reshuffles.
    """
    rows = np.arange(row_map.start, row_map.stop, dtype=np.int64)
    owners = np.full(len(rows), grid.block, np.int32)
    if period > 0:
        draws = np.random.default_rng([seed, period, grid.block])
        moves = draws.random(len(rows)) < share
        targets = draws.integers(0, grid.num_blocks, len(rows), dtype=np.int32)
        owners = np.where(moves, targets, owners)
    # Rows are received in the order of ranks, and homes ascend with ranks: the part is sorted.
    (part,) = redistribute(grid.layer, owners, rows)
    return part


@collective
def fetch_part(
    grid: ProcessGrid, home: HomeRows, part: GlobalIndices, halo: int
) -> tuple[SampledGraph, int]:
    """Return the graph of a part and its halo, the part first, and the number of rows sent.

    Edges to nodes beyond the halo are left out, also from the row sums. `part` is (n,) ascending
    int64 rows; the halo is all nodes within `halo` steps of it along `home.walked`.

    Raises `CollectiveInputError` if a part and its halo have too many nodes to sample.
    """
    requests, rows = [], []
    nodes, reached = [part], part
    for depth in range(halo + 1):
        requests.append(RowRequest.make(grid.layer, home.row_map, reached))
        rows.append(_rows_of(requests[-1], home.walked))
        if depth < halo:
            reached = np.setdiff1d(rows[-1].columns, np.concatenate(nodes))
            nodes.append(reached)
    ids = np.concatenate(nodes)
    with agree(grid.world):
        if len(ids) > np.iinfo(np.int32).max:
            count = f"{len(ids)} nodes of a part and its halo: sampling numbers nodes with 31 bits"
            raise InputError(f"{count}; lower sampling.halo, or use more ranks")
    walked, weights, entries = _cut(ids, rows, len(part))
    edges = walked
    if home.edges is not home.walked:
        pieces = [_rows_of(request, home.edges) for request in requests]
        edges, weights, entries = _cut(ids, pieces, len(part))
    table, relations = (
        None if table is None else _table_of(requests, home.edges, table).take(entries)
        for table in (home.table, home.relations)
    )
    trained = _node_rows(requests, home.trained)
    trained[len(part) :] = False
    row_sums, column_sums = weight_sums(edges, weights)
    if relations is not None:
        row_sums = relation_sums(edges, relations, home.num_relations)
    graph = SampledGraph(
        edges=edges,
        weights=weights,
        walked=walked,
        row_sums=row_sums,
        column_sums=column_sums,
        node_ids=_node_rows(requests, home.node_ids),
        features=fetch_features(grid, home.features, requests),
        labels=torch.from_numpy(_node_rows(requests, home.labels)),
        trained=trained,
        table=table,
        relations=relations,
        label_inputs=home.label_inputs,
    )
    return graph, sum(request.num_sent for request in requests)


def _rows_of(request: RowRequest, rows: PatternRows) -> PatternRows:
    if rows.weights is None:
        indptr, (columns,) = request.entries(rows.indptr, rows.columns)
        return PatternRows(indptr, columns, None)
    indptr, (columns, weights) = request.entries(rows.indptr, rows.columns, rows.weights)
    return PatternRows(indptr, columns, weights)


def _table_of(requests: Sequence[RowRequest], rows: PatternRows, table: EdgeTable) -> EdgeTable:
    """Return the edges of the entries of all requested rows."""
    counts: list[Array] = []
    features: list[Array] = []
    ends = np.concatenate([[0], np.cumsum(table.counts)])
    for request in requests:
        counts += request.entries(rows.indptr, table.counts)[1]
        features += request.entries(ends[rows.indptr], table.features)[1]
    return EdgeTable.of_counts(np.concatenate(counts), np.concatenate(features))


def _node_rows(requests: Sequence[RowRequest], array: Array) -> Array:
    return np.concatenate([request.rows(array) for request in requests])


def _cut(
    ids: GlobalIndices, pieces: Sequence[PatternRows], num_roots: int
) -> tuple[Topology, FloatArray | None, GlobalIndices]:
    """Return the graph of `ids` without other columns, its weights, and the entries kept."""
    lengths = np.concatenate([np.diff(piece.indptr) for piece in pieces])
    columns = np.concatenate([piece.columns for piece in pieces])
    rows = np.repeat(np.arange(len(ids), dtype=np.int32), lengths)
    by_id = np.argsort(ids).astype(np.int32)
    nearest, present = found_among(ids[by_id], columns)
    positions, rows = by_id[nearest[present]], rows[present]
    # Sort the columns of each row: positions do not ascend with global rows, as the halo follows.
    order = np.lexsort((positions, rows))
    weights = None
    if pieces[0].weights is not None:
        joined = np.concatenate([piece.weights for piece in pieces if piece.weights is not None])
        weights = joined[present][order]
    ends = np.cumsum(np.bincount(rows, minlength=len(ids)))
    indptr = np.concatenate([[0], ends]).astype(np.int64)
    return Topology(indptr, positions[order], num_roots), weights, np.flatnonzero(present)[order]
