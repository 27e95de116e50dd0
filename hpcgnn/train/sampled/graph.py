"""The graphs that ranks sample from, and how ranks share the whole graph once per host."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures, memory_of
from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, agree, all_ranks, rows_of, share_on_hosts
from hpcgnn.errors import InputError
from hpcgnn.graph.label_inputs import LabelInputs
from hpcgnn.graph.local_graph import LocalGraph, LocalRows
from hpcgnn.nn import NodeFeatures, TypedRows, VectorOwners
from hpcgnn.sampling import Topology
from hpcgnn.sparse import EdgeTable, PatternRows, local_rows
from hpcgnn.sparse.pieces import row_pieces
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Mask, Offsets


@collective
def share_features(grid: ProcessGrid, features: NodeFeatures) -> NodeFeatures:
    """Return the features of all nodes, held once per host; each rank passes its own on the CPU."""

    def share(name: str, tensor: Tensor) -> Tensor:
        if isinstance(tensor, SparseFeatures):
            stored = tensor.matrix
            assert stored.values is not None
            counts, indices, values = (
                share_on_hosts(grid, f"sampling.{name}.{part}", array)
                for part, array in zip(
                    ("counts", "indices", "values"),
                    (np.diff(stored.indptr), stored.indices, stored.values),
                    strict=True,
                )
            )
            indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            return tensor.like(indptr, indices, values)
        memory = memory_of(tensor)
        return memory.tensor(share_on_hosts(grid, f"sampling.{name}", memory.array(tensor)))

    if not isinstance(features, TypedRows):
        return share("features", features)
    numbers, starts = _number(grid, features)
    parts = [
        share(f"features.{number}", part)
        if part.shape[1]
        else part.new_empty(int(starts[-1, number]), 0)
        for number, part in enumerate(features.parts)
    ]
    positions = share("places", torch.from_numpy(numbers))
    shared = TypedRows(tuple(parts), share("types", features.types), positions)
    if features.owners is None:
        return shared
    assert features.numbers is not None
    return replace(shared, numbers=share("numbers", features.numbers), owners=features.owners)


@collective
def fetch_features(
    grid: ProcessGrid, features: NodeFeatures, requests: Sequence[RowRequest]
) -> NodeFeatures:
    """Return the features of the requested nodes on the CPU, in the order of the requests."""
    if not isinstance(features, TypedRows):
        return torch.cat([_fetch(features, request) for request in requests])
    numbers, starts = _number(grid, features)
    pieces: list[list[Tensor]] = [[] for _ in features.parts]
    types = []
    for request in requests:
        kinds = request.rows(features.types.numpy())
        requested = request.rows(numbers)
        types.append(kinds)
        for number, part in enumerate(features.parts):
            members = requested[kinds == number]
            if part.shape[1] == 0:
                pieces[number].append(part.new_empty(len(members), 0))
                continue
            row_map = RowMap(np.ascontiguousarray(starts[:, number]), grid.layer.rank)
            # A request needs ascending numbers: these ascend with the global rows.
            pieces[number].append(_fetch(part, RowRequest.make(grid.layer, row_map, members)))
    parts = [torch.cat(piece) for piece in pieces]
    fetched = TypedRows.in_order(parts, torch.from_numpy(np.concatenate(types)))
    if features.numbers is None:
        return fetched
    vector_numbers = torch.cat([_fetch(features.numbers, request) for request in requests])
    return replace(fetched, numbers=vector_numbers, owners=features.owners)


@collective
def _fetch(rows: Tensor, request: RowRequest) -> Tensor:
    if isinstance(rows, SparseFeatures):
        stored = rows.matrix
        assert stored.values is not None
        indptr, entries = request.entries(stored.indptr, stored.indices, stored.values)
        return rows.like(indptr, *entries)
    memory = memory_of(rows)
    return memory.tensor(request.rows(memory.array(rows)))


@collective
def _number(grid: ProcessGrid, features: TypedRows) -> tuple[GlobalIndices, Offsets]:
    """Return the number (N,) of each local node among all nodes of its type.

    Also return the first number of each rank (ranks + 1, types).
    """
    counts = np.array([len(part) for part in features.parts], np.int64)
    ends = np.cumsum(grid.layer.allgather(counts), axis=0, dtype=np.int64)
    starts = np.concatenate([np.zeros((1, len(counts)), np.int64), ends])
    return starts[grid.layer.rank][features.types.numpy()] + features.part_rows.numpy(), starts


@dataclass(frozen=True, eq=False, kw_only=True)
class _NodeInputs:
    """N nodes, and the features of the edges that are aggregated over.

    `node_ids` (N,) int64 are original ids, features are on the CPU, and `trained` (N,) bool marks
    the nodes that have a loss. `table` holds the edge features that the model reads, if any;
    `relations` holds relation and weight of each entry's edges, if the model distinguishes
    relations.
    """

    node_ids: GlobalIndices
    features: NodeFeatures
    trained: Array
    table: EdgeTable | None = None
    relations: EdgeTable | None = None
    label_inputs: LabelInputs | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class HomeRows(_NodeInputs):
    """The rows of this rank's block, from which graphs to sample are made.

    The model aggregates over `edges`, with self loops if it uses them. Samplers walk `walked`, the
    same object unless the graph is directed. `labels` are (N,) or (N, C).
    """

    row_map: RowMap
    edges: PatternRows
    walked: PatternRows
    labels: Array
    num_relations: int = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledGraph(_NodeInputs):
    """Nodes and edges to sample from: the whole graph, or a part and its halo.

    The model aggregates over `edges`, with self loops if it uses them, and `weights` (E,), None for
    ones. The weights' sums are float64: by row (N,), or (R, N) by relation, and by column (N,).
    Samplers walk `walked`: `edges`, or both directions of a directed graph. `labels` are (N,) int64
    or (N, C) in the training dtype.
    """

    edges: Topology
    weights: FloatArray | None
    walked: Topology
    row_sums: FloatArray
    column_sums: FloatArray
    labels: Tensor

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        patterns = {id(pattern): pattern for pattern in (self.edges, self.walked)}.values()
        arrays = [self.weights, self.row_sums, self.column_sums, self.node_ids, self.trained]
        arrays.append(self.labels.numpy())
        for table in (self.table, self.relations):
            arrays += [] if table is None else [table.features, table.starts]
        arrays += [array for pattern in patterns for array in (pattern.indptr, pattern.indices)]
        return self.features.nbytes + sum(array.nbytes for array in arrays if array is not None)


@collective
def home_rows(graph: LocalGraph, rows: LocalRows, labels: Array, trained: Mask) -> HomeRows:
    """Return this rank's rows of the edges to aggregate over, and of those that samplers walk."""
    features = graph.features.to(torch.device("cpu"))
    if isinstance(features, TypedRows) and features.numbers is not None:
        numbers, starts = _number(graph.grid, features)
        owners = VectorOwners(graph.grid.layer, starts, graph.products.trace)
        features = replace(features, numbers=torch.from_numpy(numbers), owners=owners)
    return HomeRows(
        row_map=graph.row_map,
        edges=rows.edges,
        walked=rows.both_ways,
        features=features,
        labels=labels,
        trained=trained,
        node_ids=graph.products.node_ids,
        table=rows.table,
        relations=rows.relations,
        num_relations=max(len(graph.facts.relations), 1),
    )


@collective
def between(grid: ProcessGrid, home: HomeRows, mask: Mask) -> HomeRows:
    """Return the subgraph induced by the nodes of a mask (num_local,), with nodes renumbered."""
    counts = grid.layer.allgather(int(np.count_nonzero(mask)))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    # Consecutive numbers, rank after rank.
    numbers = np.where(mask, starts[grid.layer.rank] + np.cumsum(mask) - 1, -1)

    def cut(pattern: PatternRows) -> tuple[PatternRows, GlobalIndices]:
        columns = rows_of(grid.layer, home.row_map, pattern.columns, numbers)
        rows = local_rows(pattern)
        selected = mask[rows] & (columns >= 0)
        degrees = np.bincount(rows[selected], minlength=len(mask))[mask]
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        weights = None if pattern.weights is None else pattern.weights[selected]
        return PatternRows(indptr, columns[selected], weights), np.flatnonzero(selected)

    edges, entries = cut(home.edges)
    return replace(
        home,
        row_map=RowMap(starts, grid.layer.rank),
        edges=edges,
        walked=edges if home.walked is home.edges else cut(home.walked)[0],
        features=home.features[torch.from_numpy(np.flatnonzero(mask))],
        labels=home.labels[mask],
        trained=home.trained[mask],
        node_ids=home.node_ids[mask],
        table=None if home.table is None else home.table.take(entries),
        relations=None if home.relations is None else home.relations.take(entries),
    )


def relation_sums(edges: Topology, relations: EdgeTable, count: int) -> FloatArray:
    """Return the row sums of the weights of `count` relations, (count, N) float64."""
    sums = np.zeros((count, edges.num_nodes))
    for rows in row_pieces(edges.indptr):
        indptr = edges.indptr[rows.start : rows.stop + 1]
        counts, numbers = relations.edges_of(np.arange(indptr[0], indptr[-1]))
        local = np.repeat(np.arange(rows.start, rows.stop), np.diff(indptr))
        edge_relations, weights = relations.features[numbers].T
        np.add.at(sums, (edge_relations.astype(np.int64), np.repeat(local, counts)), weights)
    return sums


def weight_sums(edges: Topology, weights: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Return the row and the column sums (N,) float64 of weights (E,), None for ones.

    The edges may be in memory shared by the ranks of a host: no other array of that size is made.
    """
    by_row, by_column = np.zeros((2, edges.num_nodes))
    for rows in row_pieces(edges.indptr):
        indptr = edges.indptr[rows.start : rows.stop + 1]
        entries = slice(indptr[0], indptr[-1])
        values = None if weights is None else weights[entries]
        local = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        by_row[rows] = np.bincount(local, values, minlength=len(indptr) - 1)
        # Add one entry after another, so that the pieces do not change rounding.
        np.add.at(by_column, edges.indices[entries], 1.0 if values is None else values)
    return by_row, by_column


@collective
def share_whole(grid: ProcessGrid, home: HomeRows) -> SampledGraph:
    """Gather the rows of all ranks in shared memory on every host.

    Raises `CollectiveInputError` if the graph has too many nodes to sample.
    """
    with agree(grid.world):
        if home.row_map.num_rows > np.iinfo(np.int32).max:
            raise InputError(
                f"{home.row_map.num_rows} nodes: sampling numbers nodes with 31 bits; "
                "set sampling.topology=partitioned"
            )
    edges = _share_topology(grid, "sampling.edges", home.edges)
    weights = None
    if home.edges.weights is not None:
        weights = share_on_hosts(grid, "sampling.edges.weights", home.edges.weights)
    walked = edges
    if home.walked is not home.edges:
        walked = _share_topology(grid, "sampling.walked", home.walked)
    row_sums, column_sums = weight_sums(edges, weights)
    table, relations = (
        None if table is None else _share_table(grid, f"sampling.{name}", table)
        for name, table in (("features", home.table), ("relations", home.relations))
    )
    if relations is not None:
        row_sums = relation_sums(edges, relations, home.num_relations)
    labels = share_on_hosts(grid, "sampling.labels", home.labels)
    return SampledGraph(
        edges=edges,
        weights=weights,
        walked=walked,
        row_sums=row_sums,
        column_sums=column_sums,
        node_ids=share_on_hosts(grid, "sampling.ids", home.node_ids),
        features=share_features(grid, home.features),
        labels=torch.from_numpy(labels),
        trained=share_on_hosts(grid, "sampling.trained", home.trained),
        table=table,
        relations=relations,
        label_inputs=home.label_inputs,
    )


def _share_table(grid: ProcessGrid, name: str, table: EdgeTable) -> EdgeTable:
    features = share_on_hosts(grid, f"{name}.edges", table.features)
    if all_ranks(grid.layer, table.starts is None):
        return EdgeTable(features)
    return EdgeTable.of_counts(share_on_hosts(grid, f"{name}.counts", table.counts), features)


def _share_topology(grid: ProcessGrid, name: str, rows: PatternRows) -> Topology:
    indices = share_on_hosts(grid, f"{name}.indices", rows.columns.astype(np.int32, copy=False))
    degrees = share_on_hosts(grid, f"{name}.degrees", np.diff(rows.indptr))
    return Topology(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64), indices)
