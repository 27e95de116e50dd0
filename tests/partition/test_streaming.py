"""Passes over a store: the greedy rule equals its definition, exact counts, few cut edges."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from hpcgnn.gallery.communities import planted
from hpcgnn.partition import CSRGraph, measure, metis
from hpcgnn.partition import pattern as pattern_module
from hpcgnn.partition.streaming import PASSES, StreamedUnion
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays


def _write(path: Path, graph: CSRGraph) -> GraphStore:
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edges = {"": (graph.indices, targets)}
    store_from_arrays(path, GraphArrays(name="ugly", num_nodes=graph.num_nodes, edges=edges))
    return GraphStore.open(path)


def _ugly(num_nodes: int, seed: int) -> CSRGraph:
    """A graph with a hub, loops and nodes without neighbours."""
    draws = np.random.default_rng(seed)
    matrix = sparse.random(num_nodes, num_nodes, 0.03, random_state=draws, format="lil")
    matrix[:, 3] = 1
    matrix[5] = 1
    matrix.setdiag(draws.integers(0, 2, num_nodes))
    matrix[7:11] = 0
    return CSRGraph.from_scipy(matrix.tocsr())


def _both_ways(graph: CSRGraph) -> CSRGraph:
    return CSRGraph.from_scipy(graph.to_scipy() + graph.to_scipy().T)


def _by_definition(
    graph: CSRGraph, work: np.ndarray, num_parts: int, imbalance: float, passes: int
) -> np.ndarray:
    capacity = (1 + imbalance) * work.sum() / num_parts
    part, load = np.full(graph.num_nodes, -1), np.zeros(num_parts)
    for _ in range(passes):
        for node in range(graph.num_nodes):
            before = part[node]
            if before >= 0:
                load[before] -= work[node]
            row = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            near = part[row[(row != node)]]
            count = np.bincount(near[near >= 0], minlength=num_parts)
            score = count * (1 - np.minimum(load / capacity, 1) ** 16)
            may = (load + work[node] <= capacity) & (count > 0)
            if before >= 0:
                may[before] = True
            # Ties go to the present part, then to that of the first neighbour.
            order = [before] if before >= 0 else []
            order += [p for p in dict.fromkeys(near[near >= 0]) if p != before]
            best = max((p for p in order if may[p]), key=lambda p: score[p], default=-1)
            if best < 0:
                best = int(np.argmin(load))
            part[node] = best
            load[best] += work[node]
    return part


@pytest.mark.parametrize("num_parts", [1, 3, 70])
@pytest.mark.parametrize("undirected", [False, True])
def test_it_is_the_greedy_rule_on_sources_and_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_parts: int, undirected: bool
) -> None:
    monkeypatch.setattr(pattern_module, "ENTRIES_PER_STEP", 50)
    monkeypatch.setattr("hpcgnn.partition.streaming.SETTLED", -1)
    graph = _ugly(150, num_parts)
    with _write(tmp_path / "g.h5", graph) as store:
        streamed = StreamedUnion(store, store.relations, undirected, tmp_path)
        found, load = streamed.partition(num_parts, 0.1)
    both = _both_ways(graph)
    work = (both if undirected else graph).row_weights()
    assert np.array_equal(load, np.bincount(found, work, num_parts))
    assert np.array_equal(found, _by_definition(both, work, num_parts, 0.1, PASSES))


@pytest.mark.parametrize("num_parts", [1, 5, 64, 130])
def test_counts_are_those_of_the_whole_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_parts: int
) -> None:
    monkeypatch.setattr(pattern_module, "ENTRIES_PER_STEP", 50)
    graph = _ugly(200, 1)
    part = np.random.default_rng(2).integers(0, num_parts, 200).astype(np.int32)
    with _write(tmp_path / "g.h5", graph) as store:
        for undirected, pattern in ((False, graph), (True, _both_ways(graph))):
            streamed = StreamedUnion(store, store.relations, undirected, tmp_path)
            assert streamed.measure(part, num_parts) == measure(pattern, part, num_parts)


@pytest.mark.parametrize("directed", [False, True])
def test_communities_are_found(tmp_path: Path, directed: bool) -> None:
    store_from_arrays(tmp_path / "g.h5", planted(6000, 4, 16, 3))
    with GraphStore.open(tmp_path / "g.h5") as store:
        block = store.read_adjacency(0, store.num_nodes)
    whole = CSRGraph(block.indptr, block.indices, 6000)
    if directed:
        # Each edge in one direction, so that a node's sources are half of its neighbours.
        upper = sparse.triu(whole.to_scipy(), format="coo")
        turned = np.random.default_rng(1).integers(0, 2, upper.nnz).astype(bool)
        ends = np.where(turned, (upper.row, upper.col), (upper.col, upper.row))
        whole = CSRGraph.from_scipy(sparse.coo_matrix((upper.data, ends), (6000, 6000)))
    with _write(tmp_path / "same.h5", whole) as store:
        streamed = StreamedUnion(store, store.relations)
        part, _ = streamed.partition(8, 0.05)
        found = streamed.measure(part, 8)
    best = measure(whole, metis(0, 0.05)(whole, 8).part, 8)
    shuffled = measure(whole, np.random.default_rng(0).permutation(part), 8)
    assert found.imbalance < 0.06
    assert found.total_rows < 1.3 * best.total_rows < 0.8 * shuffled.total_rows
