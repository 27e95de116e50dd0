"""Bisection of coordinates: parts follow the definition, for any number of ranks."""

import json
from fractions import Fraction
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import MpiGroup, RankGroup
from hpcgnn.errors import InputError
from hpcgnn.partition import measure, rcb, read_pattern
from hpcgnn.partition import pattern as pattern_module
from hpcgnn.partition.rcb import PlacedNodes, ordered
from hpcgnn.partition.streaming import StreamedUnion
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from tests.support.run_here import run_here

NUM_NODES = 400


def by_definition(positions: np.ndarray, work: np.ndarray, num_parts: int) -> np.ndarray:
    """Sort each group along its longest axis, and cut where work is nearest to its share."""
    part = np.empty(len(work), np.int32)

    def cut(nodes: np.ndarray, first: int, count: int) -> None:
        part[nodes] = first
        if count == 1:
            return
        placed, half = positions[nodes], count // 2
        axis = int(np.argmax(np.ptp(placed / 2, axis=0)))
        # By number if coordinates are equal, as the sort is stable.
        nodes = nodes[np.argsort(placed[:, axis], kind="stable")]
        before = np.append(0, np.cumsum(work[nodes], dtype=object))
        share = Fraction(before[-1] * half, count)
        # Of two equally near cuts the later one.
        near = min(range(len(before)), key=lambda place: (abs(before[place] - share), -place))
        near = min(max(near, half), len(nodes) - (count - half))
        cut(np.sort(nodes[:near]), first, half)
        cut(np.sort(nodes[near:]), first + half, count - half)

    cut(np.arange(len(work)), 0, num_parts)
    return part


def draw(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(53)
    positions, work = rng.standard_normal((NUM_NODES, 3)), rng.integers(1, 9, NUM_NODES)
    if kind == "equal":
        positions[:] = 2.5
    elif kind == "lattice":
        positions = np.round(positions) * [1, -0.0, 1]
    elif kind == "line":
        positions = positions[:, :1] ** 5
    elif kind == "far":
        positions = np.concatenate([positions[:-3], np.full((3, 3), 1.7e308)])
        positions[0] = -1.7e308
    elif kind == "near":
        positions = np.nextafter(1.0, 2.0) - 2.0**-52 * rng.integers(0, 3, (NUM_NODES, 3))
    elif kind == "heavy":
        work[[7, 200]] = 2**40
    elif kind == "heavy at equal places":
        positions, work[::3] = positions // 4, 1000
    return positions, work


KINDS = ("random", "equal", "lattice", "line", "far", "near", "heavy", "heavy at equal places")


@pytest.mark.parametrize("num_parts", [1, 2, 7, 64, 391, NUM_NODES])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_those_of_the_definition(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, kind: str, num_parts: int
) -> None:
    monkeypatch.setattr(rcb, "NODES_PER_STEP", 37)
    monkeypatch.setattr(rcb, "BINS", 64)
    positions, work = draw(kind)
    expected = by_definition(positions, work, num_parts)
    # Even shares, and one of all nodes: other ranks have none.
    even = NUM_NODES * np.arange(comm.size + 1) // comm.size
    for starts in {tuple(even), (*[0] * comm.size, NUM_NODES)}:
        own = slice(*starts[comm.rank : comm.rank + 2])
        found = PlacedNodes(MpiGroup(comm), positions[own], work[own]).bisect(num_parts)
        np.testing.assert_array_equal(found, expected[own])
    if comm.rank == 0:
        alone = PlacedNodes(RankGroup(), positions, work).bisect(num_parts)
        np.testing.assert_array_equal(alone, expected)
    assert np.bincount(expected, minlength=num_parts).min() > 0


def test_numbers_are_in_the_order_of_coordinates() -> None:
    values = np.array([-1.7e308, -1.0, -5e-324, 0.0, 5e-324, 1e-9, 1.0, 1.7e308])
    numbers = ordered(values)
    assert (np.diff(numbers.astype(object)) > 0).all()
    assert ordered(np.array([-0.0])) == numbers[3]


def torus(path: Path, sides: tuple[int, ...], **more: object) -> None:
    """Write a grid with periodic boundaries: all nodes have equal work."""
    numbers = np.arange(np.prod(sides)).reshape(sides)
    ahead = [np.roll(numbers, -1, axis).ravel() for axis in range(len(sides))]
    edges = {"": (np.tile(numbers.ravel(), len(sides)), np.concatenate(ahead))}
    positions = np.stack(np.unravel_index(numbers.ravel(), sides), axis=1)
    given = {"positions": positions, "undirected": True} | more
    store_from_arrays(path, GraphArrays(name="g", num_nodes=numbers.size, edges=edges, **given))


def cut(source: Path, out: Path, *words: object) -> dict[str, int]:
    ended = run_here("partition", source, *words, "--json", "-o", out)
    found: dict[str, int] = json.loads(ended.stdout)
    return found


def test_a_grid_is_cut_into_boxes(tmp_path: Path) -> None:
    torus(tmp_path / "in.h5", (16, 16, 8))
    out = tmp_path / "out.h5"
    found = cut(tmp_path / "in.h5", out, "--method", "rcb", "--parts", 16)
    # 4 x 4 boxes of 4 x 4 x 8 nodes, each with 4 faces of 4 x 8.
    assert found["max_send_rows"] == found["max_recv_rows"] == 4 * 32
    assert found["total_rows"] == found["edge_cut"] == 16 * 4 * 32
    assert found["imbalance"] == 0
    with GraphStore.open(out) as store:
        assert store.partition_info["method"] == "rcb"
        for start, stop in zip(store.row_starts[:-1], store.row_starts[1:], strict=True):
            lengths = np.ptp(store.read_positions(start, stop), axis=0) + 1
            assert lengths.tolist() == [4, 4, 8]
            assert stop - start == 128


def test_a_moved_grid_sends_little_more_than_its_faces(tmp_path: Path) -> None:
    made = tmp_path / "made.h5"
    run_here("generate", "grid3d", "--shape", "16,16,16", "--edge-features", "-o", made)
    found = cut(made, tmp_path / "out.h5", "--method", "rcb", "--parts", 8)
    # Three planes of 16 x 16, crossed in both directions.
    assert 3 * 2 * 256 <= found["total_rows"] < 1.1 * 3 * 2 * 256
    assert found["imbalance"] < 0.01


def test_volume_refines_boxes(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    edges = {"": tuple(rng.integers(0, 300, (2, 900)))}
    graph = GraphArrays(name="g", num_nodes=300, edges=edges, positions=rng.random((300, 2)))
    store_from_arrays(tmp_path / "in.h5", graph)
    words = ("--parts", 6, "--method")
    first, second = tmp_path / "first.h5", tmp_path / "second.h5"
    boxes = cut(tmp_path / "in.h5", first, *words, "rcb")
    refined = cut(first, second, *words, "volume", "--refine", "present")
    assert refined["max_send_rows"] < boxes["max_send_rows"]
    assert refined["imbalance"] < 0.06


@pytest.mark.parametrize("num_parts", [5, 70])
@pytest.mark.parametrize("undirected", [False, True])
def test_ranks_count_what_the_whole_graph_costs(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_parts: int,
    undirected: bool,
) -> None:
    monkeypatch.setattr(pattern_module, "ENTRIES_PER_STEP", 7)
    rng = np.random.default_rng(11)
    if comm.rank == 0:
        edges = {name: tuple(rng.integers(0, 90, (2, 200)) // 2 * 2) for name in "ab"}
        store_from_arrays(comm_tmp_path / "g.h5", GraphArrays(name="g", num_nodes=90, edges=edges))
    comm.Barrier()
    part = np.random.default_rng(2).integers(0, num_parts, 90).astype(np.int32)
    with GraphStore.open(comm_tmp_path / "g.h5") as store:
        whole = read_pattern(store, (), undirected)
        ranks = MpiGroup(comm)
        graph = StreamedUnion(store, store.relations, undirected, comm_tmp_path, ranks)
        rows = graph.row_map
        own = slice(rows.start, rows.stop)
        np.testing.assert_array_equal(graph.lengths(), np.diff(whole.indptr)[own])
        assert graph.measure(part[own], num_parts) == measure(whole, part, num_parts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--parts", 2), "nodes have no positions to cut by; convert with --positions"),
        (("--parts", 25), "some parts would have none"),
        (("--parts", 2, "--imbalance", 0.1), "--imbalance belongs to"),
        (("--parts", 2, "--refine", "present"), "--refine belongs to --method volume"),
        ((), "--parts K is missing"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, words: tuple[object, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"positions": None} if "positions" in message else {}
    torus(tmp_path / "in.h5", (4, 6), **more)
    monkeypatch.setattr(GraphStore, "verify", None)
    ended = run_here(
        "partition", tmp_path / "in.h5", "--method", "rcb", *words, "-o", tmp_path / "out.h5"
    )
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not (tmp_path / "out.h5").exists()


def test_coordinates_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    places = np.zeros((24, 2))
    places[5, 1] = np.nan
    with pytest.raises(InputError, match="node 5 has the value nan in column 1"):
        torus(tmp_path / "in.h5", (4, 6), positions=places)
