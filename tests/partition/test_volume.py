from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from hpcgnn.partition import CSRGraph, measure
from hpcgnn.partition.metrics import VolumeMetrics

Edges = list[tuple[int, int]]


def graph_of(edges: Edges, num_nodes: int) -> CSRGraph:
    rows, columns = [i for i, _ in edges], [j for _, j in edges]
    ones = np.ones(len(edges))
    return CSRGraph.from_scipy(sparse.csr_matrix((ones, (rows, columns)), (num_nodes, num_nodes)))


def recount(edges: Edges, part: list[int], num_parts: int) -> VolumeMetrics:
    """Count by the definition, one edge at a time."""
    distinct = set(edges)
    sent = {(part[j], part[i], j) for i, j in distinct if part[i] != part[j]}
    pairs = Counter((p, q) for p, q, _ in sent)
    weight = Counter(i for i, _ in distinct)
    load = Counter(part[i] for i, _ in distinct)
    average = len(distinct) / num_parts
    ratios = []
    for p in range(num_parts):
        heaviest = max((weight[i] for i in range(len(part)) if part[i] == p), default=0)
        ratios.append(load[p] / max(average, heaviest, 1e-300))
    return VolumeMetrics(
        edge_cut=sum(part[i] != part[j] for i, j in distinct),
        total_rows=len(sent),
        max_send_rows=max(Counter(p for p, _, _ in sent).values(), default=0),
        max_recv_rows=max(Counter(q for _, q, _ in sent).values(), default=0),
        max_pair_rows=max(pairs.values(), default=0),
        imbalance=pytest.approx(max(ratios) - 1) if distinct else 0.0,
        parts=num_parts,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Edges, list[int], int]:
    num_nodes = draw(st.integers(1, 12))
    num_parts = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=40))
    part = draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    return edges, part, num_parts


@given(cases())
def test_metrics_equal_a_slow_recount(case: tuple[Edges, list[int], int]) -> None:
    edges, part, num_parts = case
    found = measure(graph_of(edges, len(part)), np.array(part, np.int32), num_parts)
    assert found == recount(edges, part, num_parts)


def test_one_part_exchanges_nothing() -> None:
    graph = graph_of([(0, 1), (1, 2), (2, 0)], 3)
    found = measure(graph, np.zeros(3, np.int32), 1)
    assert (found.edge_cut, found.total_rows, found.max_pair_rows) == (0, 0, 0)


def test_a_part_array_of_another_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="2 part numbers for 3 nodes"):
        measure(graph_of([(0, 1)], 3), np.zeros(2, np.int32), 1)
