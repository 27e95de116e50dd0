import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from hpcgnn.errors import InputError
from hpcgnn.partition import CSRGraph, measure, metis, part_graph, volume_balanced
from hpcgnn.partition.command import read_parts
from hpcgnn.partition.metrics import VolumeMetrics
from hpcgnn.partition.pattern import as_integers, as_pattern
from hpcgnn.partition.volume_balanced import CANDIDATES, OBJECTIVES, Candidate
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from tests.support.run_here import run_here

CSR = tuple[np.ndarray, np.ndarray]
KEYS = {
    "total": ["total_rows"],
    "max_send": ["max_send_rows"],
    "max_recv": ["max_recv_rows"],
    "max_both": ["max_send_rows", "max_recv_rows"],
}


def hubs(num_nodes: int, seed: int) -> sparse.csr_matrix:
    """Return a directed pattern whose columns have a power law of non-zeros."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, num_nodes, 8 * num_nodes)
    columns = (num_nodes * generator.random(8 * num_nodes) ** 3).astype(int)
    return sparse.csr_matrix((np.ones(rows.size), (rows, columns)), (num_nodes, num_nodes))


def busiest(metrics: VolumeMetrics, objective: str) -> int:
    return max(getattr(metrics, key) for key in KEYS[objective])


@st.composite
def patterns(draw: st.DrawFn) -> CSR:
    """Any pattern: empty, disconnected, with loops, repeats, hubs or unsorted columns."""
    num_nodes = draw(st.integers(0, 14))
    column = st.integers(0, max(num_nodes - 1, 0))
    rows = [draw(st.lists(column, max_size=20)) for _ in range(num_nodes)]
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    indices = np.array([column for row in rows for column in row], draw(st.sampled_from("il")))
    return indptr, indices


def recounted(csr: CSR, part: np.ndarray, num_parts: int) -> tuple[int, int, int, int]:
    indptr, indices = csr
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    ends = zip(part[indices], part[rows], indices, strict=True)
    sent = {(int(p), int(q), int(j)) for p, q, j in ends if p != q}
    pairs = np.zeros((num_parts, num_parts), int)
    for p, q, _ in sent:
        pairs[p, q] += 1
    return len(sent), pairs.sum(1).max(), pairs.sum(0).max(), pairs.max()


@settings(deadline=None)
@given(patterns(), st.integers(1, 20), st.sampled_from(OBJECTIVES), st.data())
def test_any_pattern_is_partitioned_no_worse_than_its_start(
    csr: CSR, num_parts: int, objective: str, data: st.DataObject
) -> None:
    num_nodes = csr[0].size - 1
    numbers = st.integers(0, num_parts - 1)
    start = data.draw(st.lists(numbers, min_size=num_nodes, max_size=num_nodes))
    weights = np.diff(csr[0])
    found = part_graph(
        num_parts, csr, objective=objective, initial=start, vweights=weights, imbalance=0.1
    )
    assert found.part.dtype == np.int32
    assert found.part.size == num_nodes
    assert np.all((found.part >= 0) & (found.part < num_parts))
    counted = found.metrics
    assert recounted(csr, found.part, num_parts) == (
        counted.total_rows,
        counted.max_send_rows,
        counted.max_recv_rows,
        counted.max_pair_rows,
    )
    limit = 0.1 + 1e-9
    before = measure(as_pattern(csr), np.array(start, np.int32), num_parts)
    if before.imbalance <= limit:
        assert counted.imbalance <= limit
        if objective != "joint":
            assert busiest(counted, objective) <= busiest(before, objective)


@settings(deadline=None, max_examples=40)
@given(patterns(), st.integers(1, 20))
def test_any_pattern_gets_a_start_from_metis(csr: CSR, num_parts: int) -> None:
    kept = csr[1].copy()
    found = part_graph(num_parts, csr)
    assert found.winner == "metis"
    assert found.part.size == csr[0].size - 1
    assert np.array_equal(csr[1], kept)


@given(
    st.lists(st.integers(-3, 9), max_size=8), st.lists(st.integers(-3, 9), max_size=8), patterns()
)
def test_malformed_arrays_never_crash(offsets: list[int], columns: list[int], other: CSR) -> None:
    for csr in ((offsets, columns), (offsets, other[1]), (other[0], columns)):
        try:
            graph = as_pattern(csr)
        except ValueError:
            continue
        assert graph.indptr[-1] == graph.indices.size
        assert np.all(graph.indices < graph.num_nodes)


@pytest.mark.parametrize("objective", sorted(KEYS))
def test_metrics_are_those_of_measure_and_beat_metis(objective: str) -> None:
    graph = CSRGraph.from_scipy(hubs(1500, 3))
    found = part_graph(8, graph, objective=objective)
    assert found.metrics == measure(graph, found.part, 8)
    assert found.metrics.imbalance < 0.06
    start = measure(graph, metis()(graph, 8).part, 8)
    assert busiest(found.metrics, objective) < busiest(start, objective)


def test_factory_equals_part_graph_and_repeats_itself() -> None:
    graph = CSRGraph.from_scipy(hubs(900, 5))
    said: list[str] = []
    partitioner = volume_balanced(
        "max_send", seed=7, threads=2, report=lambda text, _: said.append(text)
    )
    partition = partitioner(graph, 6)
    partition.validate()
    again = part_graph(6, graph, objective="max_send", seed=7, threads=2)
    assert np.array_equal(partition.part, again.part)
    assert said[-1] == "kept the refinement of metis"
    other = part_graph(6, graph, objective="max_send", seed=8, initial=partition.part)
    assert other.metrics.max_send_rows <= again.metrics.max_send_rows


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_ends_balanced(name: Candidate) -> None:
    graph = CSRGraph.from_scipy(hubs(1200, 8))
    found = part_graph(7, graph, candidates=[name])
    assert found.winner == name
    assert found.metrics.imbalance < 0.06
    assert np.unique(found.part).size == 7


def test_the_best_candidate_is_kept() -> None:
    graph = CSRGraph.from_scipy(hubs(1200, 8))
    each = [part_graph(7, graph, candidates=[name], objective="total") for name in CANDIDATES]
    best = part_graph(7, graph, candidates=CANDIDATES, objective="total")
    assert best.metrics.total_rows == min(found.metrics.total_rows for found in each)
    assert best.winner in [f.winner for f in each if f.metrics == best.metrics]


@given(patterns(), st.integers(1, 20))
@settings(deadline=None, max_examples=40)
def test_any_pattern_is_bisected(csr: CSR, num_parts: int) -> None:
    found = part_graph(num_parts, csr, candidates=["bisection"])
    assert found.part.size == csr[0].size - 1
    assert np.all((found.part >= 0) & (found.part < num_parts))


def test_presets_and_time_limits_are_obeyed() -> None:
    graph = CSRGraph.from_scipy(hubs(2000, 6))
    start = metis()(graph, 12).part
    assert np.array_equal(part_graph(12, graph, initial=start, time_limit=0.0).part, start)
    fast = part_graph(12, graph, initial=start, preset="fast")
    assert busiest(fast.metrics, "max_both") < busiest(measure(graph, start, 12), "max_both")


def test_adjacencies_of_all_kinds_mean_the_same() -> None:
    matrix = hubs(300, 9)
    matrix.sum_duplicates()
    wide = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
    crow, col = torch.from_numpy(wide[0]), torch.from_numpy(wide[1])
    expected = part_graph(4, matrix).part
    with warnings.catch_warnings():
        # torch warns that its CSR tensors are in beta, and that their checks are optional.
        warnings.simplefilter("ignore")
        tensor = torch.sparse_csr_tensor(crow, col, torch.ones(col.numel()), matrix.shape)
    for adjacency in (matrix.tocoo(), sparse.csr_array(matrix), wide, tensor):
        assert np.array_equal(part_graph(4, adjacency).part, expected)
    assert np.array_equal(part_graph(4, xadj=wide[0], adjncy=wide[1]).part, expected)
    assert as_pattern(wide).indices is wide[1]


@pytest.mark.parametrize("unit", [1, 1 << 24])
def test_node_weights_are_balanced_instead_of_non_zeros(unit: int) -> None:
    """Weights may have any unit: the larger ones add up to more than 2^31."""
    weights = np.random.default_rng(4).integers(0, 9, 800) * unit
    found = part_graph(5, hubs(800, 2), vweights=weights)
    load = np.bincount(found.part, weights, 5)
    assert load.max() / load.mean() - 1 == pytest.approx(found.metrics.imbalance)
    assert found.metrics.imbalance < 0.06


@pytest.mark.parametrize("num_parts", [2048, pytest.param(4096, marks=pytest.mark.slow)])
def test_more_parts_than_a_thousand(num_parts: int) -> None:
    graph = CSRGraph.from_scipy(hubs(9000, 6))
    found = part_graph(num_parts, graph, objective="max_send", preset="fast")
    counted = measure(graph, found.part, num_parts)
    assert 0 <= found.part.min() <= found.part.max() < num_parts
    assert counted.max_send_rows == found.metrics.max_send_rows
    assert counted.max_pair_rows == found.metrics.max_pair_rows
    assert (
        counted.max_send_rows
        < measure(graph, metis()(graph, num_parts).part, num_parts).max_send_rows
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "least"}, "choose one of total, max_send"),
        ({"candidates": ["own"]}, "a candidate is 'own': choose one of metis, metis-volume"),
        ({"candidates": []}, "at least one start"),
        ({"preset": "slow"}, "choose one of fast, default"),
        ({"imbalance": -0.1}, "imbalance is -0.1"),
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"time_limit": -1.0}, "time_limit is -1.0"),
        ({"num_parts": 0}, "num_parts is 0"),
        ({"num_parts": 65537}, "num_parts is 65537"),
        ({"initial": [0, 1]}, "2 part numbers for 3 rows"),
        ({"initial": [0, 1, 2]}, "part number 2"),
        ({"vweights": [1, 2]}, "one weight for each row"),
        ({"vweights": [1, -1, 1]}, "a weight must be"),
        ({"vweights": [0.5, 1, 1]}, "not a vector of integers"),
        ({"adjacency": None}, "either adjacency is needed"),
        ({"xadj": [0]}, "adjacency excludes"),
        ({"adjacency": sparse.csr_matrix((2, 3))}, "must be square"),
        ({"adjacency": ([0, 1], [1])}, "column 1 at position 0"),
        ({"adjacency": ([0, 2, 1], [0])}, "indptr decreases at row 1"),
        ({"adjacency": ([1, 1], [])}, "indptr starts at 1"),
        ({"adjacency": ([[0, 1]], [0])}, "not a vector of integers"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"num_parts": 2, "adjacency": sparse.eye_array(3, format="csr")}
    with pytest.raises(ValueError, match=message):
        part_graph(**(arguments | options))  # type: ignore[arg-type]


def test_an_unknown_adjacency_is_refused() -> None:
    with pytest.raises(TypeError, match="adjacency is a str"):
        part_graph(2, "graph")


def test_integers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into int32"):
        as_integers("x", np.array([2**31]), np.int32)
    assert as_integers("x", np.array([5], np.uint64), np.int32).dtype == np.int32


def test_the_command_refines_a_file(tmp_path: Path) -> None:
    matrix = hubs(200, 12).tocoo()
    store, out, start = tmp_path / "g.h5", tmp_path / "p.h5", tmp_path / "start.txt"
    edges = {"": (matrix.col.astype(np.int64), matrix.row.astype(np.int64))}
    store_from_arrays(store, GraphArrays(name="hubs", num_nodes=200, edges=edges))
    start.write_text("\n".join(str(v % 3) for v in range(200)))
    options = ["--method", "volume", "--objective", "max_recv", "--refine", start, "--threads", 2]
    words = (store, "-o", out, "--parts", 3)
    done = run_here("partition", *words, "--json", "--time-limit", 30, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["winner"] == "initial"
    with GraphStore.open(out) as partitioned:
        assert partitioned.row_starts.size == 4
        assert partitioned.partition_info["method"] == "volume"
    wrong = run_here("partition", *words, "--objective", "total")
    assert wrong.returncode == 2
    assert "--objective belongs to --method volume" in wrong.stderr


@pytest.mark.parametrize("text", ["", "0\nx\n", "0.5\n"])
def test_unreadable_part_files_are_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "parts.npy"
    file.write_text(text)
    with pytest.raises(InputError, match="no part numbers could be read"):
        read_parts(file)
    np.save(file, np.ones(3))
    with pytest.raises(InputError, match="a vector of integers"):
        read_parts(file)
