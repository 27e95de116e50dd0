"""Passes over a store: the greedy rule against its definition, exact counts, few edges cut."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from hpcgnn.gallery.communities import planted
from hpcgnn.partition import CSRGraph, measure, metis
from hpcgnn.partition import pattern as pattern_module
from hpcgnn.partition.streaming import PASSES, StreamedGraph
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays


def _write(path: Path, graph: CSRGraph) -> GraphStore:
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edges = {"": (graph.indices, targets)}
    store_from_arrays(path, GraphArrays(name="ugly", num_nodes=graph.num_nodes, edges=edges))
    return GraphStore.open(path)


def _ugly(num_nodes: int, seed: int) -> CSRGraph:
    """A hub, loops, nodes without neighbours."""
    draws = np.random.default_rng(seed)
    matrix = sparse.random(num_nodes, num_nodes, 0.03, random_state=draws, format="lil")
    matrix[:, 3] = 1
    matrix[5] = 1
    matrix.setdiag(draws.integers(0, 2, num_nodes))
    matrix[7:11] = 0
    return CSRGraph.from_scipy(matrix.tocsr())


def _by_definition(graph: CSRGraph, num_parts: int, imbalance: float, passes: int) -> np.ndarray:
    work = graph.row_weights()
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
            # Of equal ones the present part, and then that of the first neighbour, counts.
            order = [before] if before >= 0 else []
            order += [p for p in dict.fromkeys(near[near >= 0]) if p != before]
            best = max((p for p in order if may[p]), key=lambda p: score[p], default=-1)
            if best < 0:
                best = int(np.argmin(load))
            part[node] = best
            load[best] += work[node]
    return part


@pytest.mark.parametrize("num_parts", [1, 3, 70])
def test_it_is_the_greedy_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_parts: int
) -> None:
    monkeypatch.setattr(pattern_module, "ENTRIES_PER_STEP", 50)
    monkeypatch.setattr("hpcgnn.partition.streaming.SETTLED", -1)
    graph = _ugly(150, num_parts)
    with _write(tmp_path / "g.h5", graph) as store:
        found, load = StreamedGraph(store, store.relations).partition(num_parts, 0.1)
    assert np.array_equal(load, np.bincount(found, graph.row_weights(), num_parts))
    assert np.array_equal(found, _by_definition(graph, num_parts, 0.1, PASSES))


@pytest.mark.parametrize("num_parts", [1, 5, 64, 130])
def test_counts_are_those_of_the_whole_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_parts: int
) -> None:
    monkeypatch.setattr(pattern_module, "ENTRIES_PER_STEP", 50)
    graph = _ugly(200, 1)
    part = np.random.default_rng(2).integers(0, num_parts, 200).astype(np.int32)
    with _write(tmp_path / "g.h5", graph) as store:
        streamed = StreamedGraph(store, store.relations)
        assert streamed.measure(part, num_parts) == measure(graph, part, num_parts)


def test_communities_are_found(tmp_path: Path) -> None:
    graph = planted(6000, 4, 16, 3)
    store_from_arrays(tmp_path / "g.h5", graph)
    with GraphStore.open(tmp_path / "g.h5") as store:
        streamed = StreamedGraph(store, store.relations)
        part, _ = streamed.partition(8, 0.05)
        found = streamed.measure(part, 8)
        block = store.read_adjacency(0, store.num_nodes)
    whole = CSRGraph(block.indptr, block.indices, 6000)
    best = measure(whole, metis(0, 0.05)(whole, 8).part, 8)
    shuffled = measure(whole, np.random.default_rng(0).permutation(part), 8)
    assert found.imbalance < 0.06
    assert found.total_rows < 1.3 * best.total_rows < 0.8 * shuffled.total_rows
