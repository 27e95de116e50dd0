from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.csgraph import maximum_bipartite_matching

from hpcgnn.partition import CSRGraph, exchange_volume, measure
from hpcgnn.partition.metrics import EXCHANGES

Edges = list[tuple[int, int]]
Case = tuple[Edges, list[int], int]


def graph_of(edges: Edges, num_nodes: int) -> CSRGraph:
    rows, columns = [i for i, _ in edges], [j for _, j in edges]
    ones = np.ones(len(edges))
    return CSRGraph.from_scipy(sparse.csr_matrix((ones, (rows, columns)), (num_nodes, num_nodes)))


def volumes(edges: Edges, part: list[int], num_parts: int) -> dict[str, dict[str, int]]:
    graph, parts = graph_of(edges, len(part)), np.array(part, np.int32)
    return {name: exchange_volume(graph, parts, num_parts, name) for name in EXCHANGES}


def summary(pairs: Counter[tuple[int, int]], bound: int) -> dict[str, int]:
    send, receive = Counter[int](), Counter[int]()
    for (q, p), rows in pairs.items():
        send[q] += rows
        receive[p] += rows
    return {
        "rows_total": pairs.total(),
        "rows_max_send": max(send.values(), default=0),
        "rows_max_recv": max(receive.values(), default=0),
        "rows_max_pair": max(pairs.values(), default=0),
        "lower_bound": bound,
    }


def recount(edges: Edges, part: list[int], num_parts: int) -> dict[str, dict[str, int]]:
    """Count by the definition, one block at a time."""
    aware, push, joint = (Counter[tuple[int, int]]() for _ in EXCHANGES)
    for p in range(num_parts):
        for q in range(num_parts):
            block = [(i, j) for i, j in edges if part[i] == p != q == part[j]]
            if block:
                matched = maximum_bipartite_matching(graph_of(block, len(part)).to_scipy())
                aware[q, p] = len({j for _, j in block})
                push[q, p] = len({i for i, _ in block})
                joint[q, p] = int((matched >= 0).sum())
    names = zip(EXCHANGES, (aware, push, joint), strict=True)
    return {name: summary(pairs, joint.total()) for name, pairs in names}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_nodes = draw(st.integers(1, 12))
    num_parts = draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=50))
    part = draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    return edges, part, num_parts


@given(cases())
def test_volumes_equal_a_slow_recount(case: Case) -> None:
    assert volumes(*case) == recount(*case)


@pytest.mark.parametrize("num_parts", [1, 2, 7, 64])
def test_volumes_of_a_graph_with_hubs(num_parts: int) -> None:
    rng = np.random.default_rng(97)
    n = 401
    hubs = [(i, j) for i in (3, 390) for j in range(0, n, 2)]
    spokes = [(i, j) for j in (5, 200) for i in range(1, n, 3)]
    edges = hubs + spokes + [tuple(pair) for pair in rng.integers(0, n - 9, (900, 2)).tolist()]
    part = rng.integers(0, num_parts, n).tolist()
    found = volumes(edges, part, num_parts)
    assert found == recount(edges, part, num_parts)
    joint = found["joint"]["rows_total"]
    assert joint <= min(found["aware"]["rows_total"], found["push"]["rows_total"])
    metrics = measure(graph_of(edges, n), np.array(part, np.int32), num_parts)
    assert found["aware"] == {
        "rows_total": metrics.total_rows,
        "rows_max_send": metrics.max_send_rows,
        "rows_max_recv": metrics.max_recv_rows,
        "rows_max_pair": metrics.max_pair_rows,
        "lower_bound": joint,
    }


def test_push_is_the_mirror_image_of_aware() -> None:
    rng = np.random.default_rng(13)
    edges = [tuple(pair) for pair in rng.integers(0, 60, (300, 2)).tolist()]
    part = rng.integers(0, 5, 60).tolist()
    found = volumes(edges, part, 5)
    mirrored = volumes([(j, i) for i, j in edges], part, 5)
    swapped = {"rows_max_send": "rows_max_recv", "rows_max_recv": "rows_max_send"}
    for one, other in (("aware", "push"), ("push", "aware"), ("joint", "joint")):
        assert found[one] == {k: mirrored[other][swapped.get(k, k)] for k in found[one]}


def test_a_star_is_pushed_and_its_mirror_fetched() -> None:
    leaves = range(1, 20)
    part = [0] + [1] * 19
    gathering = volumes([(0, j) for j in leaves], part, 2)
    assert [gathering[name]["rows_total"] for name in EXCHANGES] == [19, 1, 1]
    spreading = volumes([(i, 0) for i in leaves], part, 2)
    assert [spreading[name]["rows_total"] for name in EXCHANGES] == [1, 19, 1]


def test_what_does_not_fit_is_refused() -> None:
    graph = graph_of([(0, 1)], 3)
    with pytest.raises(ValueError, match="exchange must be one of aware, push, joint"):
        exchange_volume(graph, np.zeros(3, np.int32), 1, "oblivious")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 part numbers for 3 nodes"):
        exchange_volume(graph, np.zeros(2, np.int32), 1)
    with pytest.raises(ValueError, match="part"):
        exchange_volume(graph, np.array([0, 1, 2], np.int32), 2)
