"""Groups of parts on ranks: their counts, and refinement whose counts stay exact."""

from itertools import pairwise

from mpi4py import MPI

import numpy as np
import pytest
from scipy import sparse

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.partition import CSRGraph, measure, metis
from hpcgnn.partition.groups import Counts, GroupShare
from hpcgnn.partition.initial import first_parts
from hpcgnn.partition.nets import Pins, fetch_pins, joint_pins
from hpcgnn.partition.pattern import BlockRow
from hpcgnn.partition.refinement import Terms, refine, separate_heavy

IMBALANCE = 0.05


def directed(num_nodes: int, num_edges: int, seed: int) -> CSRGraph:
    """Return a graph with in- and out-hubs, loops, isolated nodes and nodes without in-edges."""
    generator = np.random.default_rng(seed)
    ends = (num_nodes - 5) * generator.random((2, num_edges)) ** 2
    rows, columns = ends.astype(int)
    rows[rows % 11 == 3] = 7
    columns[columns % 7 == 5] = 2
    ones = np.ones(num_edges)
    return CSRGraph.from_scipy(sparse.csr_matrix((ones, (rows, columns)), (num_nodes, num_nodes)))


def symmetric(num_nodes: int, num_edges: int, seed: int) -> CSRGraph:
    matrix = directed(num_nodes, num_edges, seed).to_scipy()
    return CSRGraph.from_scipy(matrix + matrix.T)


def grid(side: int) -> CSRGraph:
    line = sparse.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(side, side))
    return CSRGraph.from_scipy(sparse.kronsum(line, line))


GRAPHS = {
    "directed": directed(400, 3000, 3),
    "symmetric": symmetric(300, 1200, 4),
    "grid": grid(18),
    "no edges": directed(30, 0, 5),
    "few": directed(12, 20, 6),
}


def my_rows(comm: MPI.Intracomm, graph: CSRGraph, *, is_symmetric: bool) -> BlockRow:
    """Return the rows of this rank; rank 1 of several has none."""
    cuts = np.linspace(0, graph.num_nodes, comm.size + 1).astype(np.int64)
    if comm.size > 1:
        cuts[2] = cuts[1]
        cuts[-1] = graph.num_nodes
    row_map = RowMap(cuts, comm.rank)
    first, last = graph.indptr[[row_map.start, row_map.stop]]
    indptr = graph.indptr[row_map.start : row_map.stop + 1] - first
    return BlockRow(row_map, indptr, graph.indices[first:last].astype(np.int32), is_symmetric)


def whole(comm: MPI.Intracomm, part: np.ndarray) -> np.ndarray:
    return np.concatenate(comm.allgather(part))


def joint_loads(graph: CSRGraph, part: np.ndarray, num_parts: int) -> np.ndarray:
    """Return the cost of the joint exchange, from its definition."""
    matrix = graph.to_scipy().tocoo()
    apart = matrix.row != matrix.col
    row, column = matrix.row[apart], matrix.col[apart]
    length = np.bincount(row, minlength=graph.num_nodes)
    width = np.bincount(column, minlength=graph.num_nodes)
    push = length[row] > width[column]
    moved = {(int(c), int(part[r]), 0) for r, c in zip(row[~push], column[~push], strict=True)}
    moved |= {(int(r), int(part[c]), 1) for r, c in zip(row[push], column[push], strict=True)}
    loads = np.zeros((num_parts, 2), np.int64)
    for owner, other, pushed in moved:
        if part[owner] != other:
            loads[part[owner], pushed] += 1
            loads[other, 1 - pushed] += 1
    return loads


def expect_counts(counts: Counts, graph: CSRGraph, part: np.ndarray, num_parts: int) -> None:
    found = measure(graph, part, num_parts)
    assert counts.loads[:, 0].sum() == counts.loads[:, 1].sum() == found.total_rows
    assert counts.loads.max(axis=0).tolist() == [found.max_send_rows, found.max_recv_rows]
    assert counts.max_pair_rows == found.max_pair_rows
    assert counts.cut_pins == found.edge_cut


def expect_nearest(counts: Counts, graph: CSRGraph, part: np.ndarray) -> None:
    """Require the parts that own most of what each part reads, with -1 for missing ones."""
    num_parts = len(counts.loads)
    read = np.zeros((num_parts, num_parts), np.int64)
    for node, rows in enumerate(np.split(*by_column(graph))):
        read[np.setdiff1d(part[rows], part[node]), part[node]] += 1
    for mine, near, nets in zip(read, counts.nearest, counts.nearest_nets, strict=True):
        known = near[near >= 0]
        assert len(np.unique(known)) == len(known) == np.count_nonzero(mine)
        assert (near[len(known) :] == -1).all()
        assert nets[: len(known)].tolist() == mine[known].tolist() == sorted(mine[known])[::-1]
        assert not nets[len(known) :].any()


@pytest.mark.parametrize("name", GRAPHS)
def test_counts_are_those_of_the_definition(comm: MPI.Intracomm, name: str) -> None:
    graph, num_parts = GRAPHS[name], 7
    rows = my_rows(comm, graph, is_symmetric=False)
    part = np.random.default_rng(8).integers(0, num_parts, graph.num_nodes).astype(np.int32)
    mine = part[rows.row_map.start : rows.row_map.stop]
    group = np.random.default_rng(9).integers(0, comm.size, num_parts).astype(np.int32)
    counts = GroupShare(comm, fetch_pins(comm, rows), group, mine).count(mine)
    expect_counts(counts, graph, part, num_parts)
    expect_nearest(counts, graph, part)
    joint = GroupShare(comm, joint_pins(comm, rows), group, mine).count(mine)
    np.testing.assert_array_equal(joint.loads, joint_loads(graph, part, num_parts))


def limits_kept(graph: CSRGraph, part: np.ndarray, num_parts: int) -> bool:
    """Return whether no part exceeds its allowed weight."""
    read = np.bincount(graph.indices, minlength=graph.num_nodes) > 0
    weights = np.maximum(np.diff(graph.indptr), read)
    work = np.bincount(part, weights, num_parts)
    heaviest = np.zeros(num_parts)
    np.maximum.at(heaviest, part, weights)
    limit = (1 + IMBALANCE) * np.maximum(weights.sum() / num_parts, heaviest)
    return bool((work <= limit + 1e-9).all())


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("directed", "max_send"),
        ("directed", "joint"),
        ("symmetric", "max_both"),
        ("grid", "max_both"),
    ],
)
def test_refinement_keeps_limits_and_counts_exactly(
    comm: MPI.Intracomm, name: str, objective: str
) -> None:
    graph, num_parts = GRAPHS[name], 6
    rows = my_rows(comm, graph, is_symmetric=name != "directed")
    pins = joint_pins(comm, rows) if objective == "joint" else fetch_pins(comm, rows)
    terms = Terms(num_parts, objective, "fast", IMBALANCE, 3)
    with ProcessGrid(comm) as ranks:
        first = first_parts(ranks, rows, pins.weights, num_parts, 3, IMBALANCE)
        told: list[str] = []
        found = refine(ranks.layer, pins, first, terms, told.append)
        again = refine(ranks.layer, pins, first, terms, lambda _: None)
    part = whole(comm, found.part)
    assert 0 <= part.min() <= part.max() < num_parts
    assert limits_kept(graph, part, num_parts)
    assert found.counts.excess(IMBALANCE) == 0
    np.testing.assert_array_equal(found.part, again.part)
    if objective == "joint":
        np.testing.assert_array_equal(found.counts.loads, joint_loads(graph, part, num_parts))
    else:
        expect_counts(found.counts, graph, part, num_parts)
    assert len(told) > 1


def test_the_busiest_sender_is_below_metis(comm: MPI.Intracomm) -> None:
    graph, num_parts = grid(30), 16
    rows = my_rows(comm, graph, is_symmetric=True)
    pins = fetch_pins(comm, rows)
    with ProcessGrid(comm) as ranks:
        first = first_parts(ranks, rows, pins.weights, num_parts, 1, IMBALANCE)
        terms = Terms(num_parts, "max_send", "fast", IMBALANCE, 1)
        found = refine(ranks.layer, pins, first, terms, lambda _: None)
    peers = [metis(seed)(graph, num_parts).part for seed in range(3)]
    sent = [measure(graph, each, num_parts).max_send_rows for each in peers]
    assert found.counts.loads[:, 0].max() <= 0.95 * np.median(sent)


def test_heavy_nodes_get_parts_of_their_own(comm: MPI.Intracomm) -> None:
    weights = np.array([50, 3, 60, 2, 55, 1, 4, 2])
    row_map = RowMap(np.linspace(0, 8, comm.size + 1).astype(np.int64), comm.rank)
    mine = slice(row_map.start, row_map.stop)
    empty = *np.zeros((2, row_map.num_local), np.int64), np.zeros(0, np.int32)
    pins = Pins(row_map, *empty, 1, weights[mine])
    part = whole(comm, separate_heavy(comm, pins, np.zeros(8, np.int32)[mine], 4))
    assert len(set(part[[0, 2, 4]])) == 3
    assert part[2] == 0
    assert not part[[1, 3, 5, 6, 7]].any()


def test_changes_inside_a_share_are_exact() -> None:
    """The changes that a share reports at its end, plus the initial loads, are those of all."""
    from hpcgnn.partition import _volpart

    graph, num_parts, num_own = GRAPHS["directed"], 6, 3
    matrix = graph.to_scipy().tolil()
    matrix.setdiag(False)
    graph = CSRGraph.from_scipy(matrix.tocsr())
    part = np.random.default_rng(2).integers(0, num_parts, graph.num_nodes).astype(np.int32)
    loads = joint_free_loads(graph, part, num_parts)
    nodes = np.flatnonzero(part < num_own)
    local = graph.to_scipy()[nodes].tocsr()
    readers = [set(part[graph_rows]) for graph_rows in np.split(*by_column(graph))]
    outside = np.zeros((len(nodes), 2), np.int64)
    outside[:, 0] = [sum(p >= num_own for p in readers[node]) for node in nodes]
    place = np.full(graph.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    owner = np.where(place >= 0, place, len(nodes) + part - num_own).astype(np.int32)
    share = (
        num_parts,
        num_own,
        local.indptr.astype(np.int64),
        _volpart.pack(local.indices.astype(np.int32), len(owner)),
        owner,
        np.zeros(graph.num_nodes, np.uint8),
        np.maximum(np.diff(local.indptr), 1).astype(np.int64),
        part[nodes],
    )
    told: list[np.ndarray] = []

    def alone(own: np.ndarray) -> np.ndarray:
        told.append(own.copy())
        return own

    total = int(np.maximum(np.diff(graph.indptr), 1).sum())
    terms = (0, "max_both", "default", 0.3, 5, (0, 1))
    moved = part.copy()
    moved[nodes] = _volpart.refine_share(
        share, total, outside.reshape(-1), loads.reshape(-1), *terms, alone
    )
    nets = _volpart.unpack(share[3], len(owner), np.arange(local.nnz))
    for begin, end in pairwise(local.indptr):
        assert sorted(nets[begin:end]) == sorted(local.indices[begin:end])
    assert np.count_nonzero(moved != part) > 10
    assert (moved[nodes] < num_own).all()
    expected = joint_free_loads(graph, moved, num_parts)
    np.testing.assert_array_equal(loads.reshape(-1) + told[-1] - told[0], expected.reshape(-1))


def by_column(graph: CSRGraph) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that read each node, node by node, and their offsets."""
    columns = graph.to_scipy().tocsc()
    return columns.indices, columns.indptr[1:-1]


def joint_free_loads(graph: CSRGraph, part: np.ndarray, num_parts: int) -> np.ndarray:
    loads = np.zeros((num_parts, 2), np.int64)
    for node, rows in enumerate(np.split(*by_column(graph))):
        others = np.setdiff1d(part[rows], part[node])
        loads[part[node], 0] += len(others)
        loads[others, 1] += 1
    return loads
