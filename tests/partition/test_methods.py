import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pymetis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from hpcgnn.errors import InputError
from hpcgnn.partition import CSRGraph, Partition, Partitioner, block, measure, metis, random
from hpcgnn.partition.metis import weighted_metis
from hpcgnn.partition.parts import cut_evenly

FACTORIES = {
    "block": block,
    "random": lambda: random(271),
    "metis": lambda: metis(271),
    "metis-volume": lambda: metis(271, objective="volume"),
}


def pattern(rows: list[int], columns: list[int], num_nodes: int) -> CSRGraph:
    ones = np.ones(len(rows))
    return CSRGraph.from_scipy(sparse.csr_matrix((ones, (rows, columns)), (num_nodes, num_nodes)))


def ring(num_nodes: int) -> CSRGraph:
    nodes = np.arange(num_nodes)
    near = (nodes + 1) % num_nodes
    return pattern([*nodes, *near], [*near, *nodes], num_nodes)


def star(num_leaves: int) -> CSRGraph:
    leaves = list(range(1, num_leaves + 1))
    hub = [0] * num_leaves
    return pattern(hub + leaves, leaves + hub, num_leaves + 1)


@pytest.fixture(params=FACTORIES, ids=str)
def partitioner(request: pytest.FixtureRequest) -> Partitioner:
    return FACTORIES[request.param]()


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 53, 54, 60])
@pytest.mark.parametrize(
    "graph",
    [ring(53), star(52), pattern([], [], 53), pattern([0, 5, 5], [0, 5, 9], 53), ring(1)],
    ids=["ring", "star", "empty", "loops", "single"],
)
def test_every_node_gets_a_part(
    partitioner: Partitioner, graph: CSRGraph, num_parts: int, capfd: pytest.CaptureFixture[str]
) -> None:
    partition = partitioner(graph, num_parts)
    partition.validate()
    assert partition.num_nodes == graph.num_nodes
    assert partition.num_parts == num_parts
    assert np.array_equal(np.sort(partition.permutation()), np.arange(graph.num_nodes))
    assert capfd.readouterr().out == ""


def test_same_seed_same_parts(partitioner: Partitioner) -> None:
    graph = ring(101)
    assert np.array_equal(partitioner(graph, 4).part, partitioner(graph, 4).part)


def test_random_depends_on_its_seed() -> None:
    graph = ring(101)
    assert not np.array_equal(random(5)(graph, 4).part, random(6)(graph, 4).part)


def test_parts_are_balanced_by_work(partitioner: Partitioner) -> None:
    generator = np.random.default_rng(911)
    rows = (2000 * generator.random(30_000) ** 2).astype(int)
    graph = pattern(list(rows), list(generator.integers(0, 2000, 30_000)), 2000)
    found = measure(graph, partitioner(graph, 8).part, 8)
    assert 0 <= found.imbalance < 0.08


def test_metis_cuts_a_ring_where_it_must() -> None:
    graph = ring(400)
    found = measure(graph, metis(3)(graph, 4).part, 4)
    assert found.edge_cut == 8
    assert found.total_rows == 8


def test_metis_names_the_limit_of_its_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymetis, "zero_copy_dtype", lambda: np.dtype(np.int8))
    with pytest.raises(InputError, match=r"limit 127 .*--method volume, block or random"):
        metis()(ring(100), 2)


LACKS_MEMORY = """
import resource
import numpy as np
from pathlib import Path
from hpcgnn.partition.metis import weighted_metis
ends = np.arange(1_000_000)
# A ring.
neighbours = np.sort(np.stack([(ends - 1) % 1_000_000, (ends + 1) % 1_000_000], 1)).astype(np.int32)
offsets, ones = 2 * np.arange(1_000_001, dtype=np.int32), np.ones(2_000_000, np.int32)
pages = int(Path("/proc/self/statm").read_text().split()[0])
size = pages * resource.getpagesize() + (56 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
weighted_metis((offsets, neighbours.ravel(), ones, ones[:1_000_000]), 4, 0, 0.05)
"""


def test_metis_without_memory_says_so() -> None:
    words = [sys.executable, "-c", LACKS_MEMORY]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert "InputError: metis: out of memory, or stopped by a signal; give" in done.stderr


def test_metis_balances_weights_beyond_what_it_counts_to() -> None:
    both = ring(400).to_scipy()
    weights = np.full(400, 2**40)
    weights[:100] *= 3
    graph = (both.indptr, both.indices, np.ones(len(both.indices)), weights)
    part = weighted_metis(graph, 4, 3, 0.01)
    loads = np.bincount(part, weights, 4)
    assert loads.max() <= 1.02 * loads.mean()
    row = np.repeat(np.arange(400), np.diff(both.indptr))
    assert np.count_nonzero(part[row] != part[both.indices]) == 8


def test_weights_are_scaled_to_what_metis_counts_to(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []

    def part_graph(_parts: int, _graph: object, **given: np.ndarray) -> SimpleNamespace:
        seen.append(given["vweights"])
        return SimpleNamespace(vertex_part=[0, 1, 1])

    monkeypatch.setattr(pymetis, "zero_copy_dtype", lambda: np.dtype(np.int16))
    monkeypatch.setattr(pymetis, "CSRAdjacency", lambda *arrays: arrays)
    monkeypatch.setattr(pymetis, "part_graph", part_graph)
    offsets, neighbours = np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1])
    for weights, scale in (([1, 2, 3], 1), ([100_000, 40, 20_000], 8), ([0, 0, 0], 1)):
        graph = (offsets, neighbours, np.ones(4), np.array(weights))
        assert weighted_metis(graph, 2, 0, 0.05).tolist() == [0, 1, 1]
        assert seen[-1].tolist() == [each // scale for each in weights]


@pytest.mark.parametrize(("seed", "imbalance"), [(0, 0.0), (0, -1.0), (0, np.nan), (-1, 0.05)])
def test_metis_refuses_wrong_options(seed: int, imbalance: float) -> None:
    with pytest.raises(InputError, match="METIS needs"):
        metis(seed, imbalance)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 45))
def test_cuts_leave_no_part_without_need(weights: list[int], num_parts: int) -> None:
    part = cut_evenly(np.array(weights, np.int64), num_parts)
    assert part.size == len(weights)
    assert np.all(np.diff(part) >= 0)
    assert np.unique(part).size == min(num_parts, len(weights))


def test_a_heavy_item_does_not_starve_the_parts_after_it() -> None:
    weights = np.array([1] * 10 + [1000] + [1] * 30, np.int64)
    assert np.bincount(cut_evenly(weights, 4)).tolist() == [10, 1, 15, 15]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (np.array([0, 1, 3], np.int32), "node 2 is in part 3 of 3"),
        (np.array([0, -1, 1], np.int32), "node 1 is in part -1 of 3"),
        (np.array([0, 1, 2]), "int64"),
    ],
)
def test_wrong_partitions_are_found(part: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Partition(part, 3).validate()


def test_permutation_is_stable() -> None:
    partition = Partition(np.array([2, 0, 2, 0, 3], np.int32), 4)
    assert partition.permutation().tolist() == [1, 3, 0, 2, 4]
    assert partition.row_starts().tolist() == [0, 2, 2, 4, 5]
