"""Heat in a box, compared with an analytic solution and a dense solver."""

from pathlib import Path

import numpy as np
import pytest

from hpcgnn.comm import ONE_PROCESS
from hpcgnn.gallery import BoxMesh, CoolingBoxes, heat, streamed
from hpcgnn.storage import GraphStore, StoreHeader

MESH = BoxMesh((4, 5, 6), 3)
NODES = range(120)


def dense_stiffness(mesh: BoxMesh) -> np.ndarray:
    count = mesh.edges.num_nodes
    stiffness, _ = heat.assemble(mesh, range(count))
    matrix, rows = np.zeros((count, count)), np.arange(count)
    for offset, entries in zip(mesh.offsets, stiffness, strict=True):
        there = (rows + offset >= 0) & (rows + offset < count)
        matrix[rows[there], rows[there] + offset] += entries[there]
        assert not entries[~there].any()
    return matrix


def test_elements_are_exact_for_linear_fields_and_symmetric() -> None:
    A, inside = dense_stiffness(MESH), MESH.inside(NODES)
    np.testing.assert_array_equal(A, A.T)
    np.testing.assert_allclose(A.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose((A @ MESH.positions(NODES))[inside], 0, atol=1e-12)
    # The energy of x over the unit cube.
    x = MESH.positions(NODES)[:, 0]
    assert x @ A @ x == pytest.approx(1)
    src, dst = MESH.edges.chunk(0)
    pattern = np.eye(120, dtype=bool)
    pattern[src, dst] = pattern[dst, src] = True
    # Edges between walls may be at a right angle to the whole flow that they could carry.
    np.testing.assert_array_equal((A != 0)[inside], pattern[inside])
    assert not A[~pattern].any()


def test_nodes_are_the_same_in_all_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "NODE_CHUNK", 16)
    parts = range(13), range(13, 50), range(50, 50), range(50, 120)
    positions = MESH.positions(NODES)
    stiffness, volumes = heat.assemble(MESH, NODES)
    found = [heat.assemble(MESH, part) for part in parts]
    np.testing.assert_array_equal(np.concatenate([each[1] for each in found]), volumes)
    np.testing.assert_array_equal(np.concatenate([each[0] for each in found], axis=1), stiffness)
    together = np.concatenate([MESH.positions(part) for part in parts])
    np.testing.assert_array_equal(together, positions)
    inside = MESH.inside(NODES)
    cells = np.stack(np.unravel_index(NODES, MESH.shape), axis=1) / (3, 4, 5)
    moved = np.abs(positions - cells) * (3, 4, 5)
    assert not moved[~inside].any()
    assert 0.1 < moved.max() <= 0.15
    assert volumes.sum() == pytest.approx(1)


def test_a_step_is_that_of_a_dense_solver() -> None:
    equation = heat.HeatEquation(MESH, ONE_PROCESS, seconds=2.0)
    inside = MESH.inside(NODES)
    _, volumes = heat.assemble(MESH, NODES)
    half = heat.DIFFUSIVITY * (dense_stiffness(MESH) / volumes[:, None]) * inside[:, None]
    values = np.random.default_rng(5).standard_normal(120) * inside
    expected = np.linalg.solve(np.eye(120) + half, (np.eye(120) - half) @ values)
    np.testing.assert_allclose(equation.advance(values), expected, atol=1e-10)


def test_the_error_falls_with_the_square_of_the_cells() -> None:
    errors = []
    for length in (5, 9, 17):
        mesh = BoxMesh((length, length, length), 3)
        equation = heat.HeatEquation(mesh, ONE_PROCESS)
        start = np.sin(np.pi * mesh.positions(equation.nodes)).prod(axis=1)
        values = start
        for _ in range(20):
            values = equation.advance(values)
        seconds = 20 * heat.HEAT_INTERVAL
        exact = start * np.exp(-3 * np.pi**2 * heat.DIFFUSIVITY * seconds)
        _, volumes = heat.assemble(mesh, equation.nodes)
        errors.append(np.sqrt(volumes @ (values - exact) ** 2 / (volumes @ exact**2)))
    assert errors[-1] < 2e-3
    assert errors[0] / errors[1] > 2.3
    assert errors[1] / errors[2] > 3.3


def test_edges_tell_the_ways_of_nodes(tmp_path: Path) -> None:
    graph = streamed.StreamedGraph(
        StoreHeader(name="box", num_nodes=120, undirected=True),
        MESH.edges,
        MESH,
        1 << 20,
        CoolingBoxes(MESH, 2, 3).fields(),
    )
    streamed.write_streamed(tmp_path / "box.h5", graph)
    with GraphStore.open(tmp_path / "box.h5") as store:
        rows = store.read_adjacency(0, 120)
        features = store.read_edge_data(0, 120).features
        values = store.read_field("T", 5, 0, 120)
    targets = np.repeat(NODES, np.diff(rows.indptr))
    positions = MESH.positions(NODES)
    way = 5 * (positions[rows.indices] - positions[targets])
    assert features is not None
    np.testing.assert_allclose(features[:, :3], way, atol=1e-6)
    np.testing.assert_allclose(features[:, 3] ** 2, (way**2).sum(axis=1), rtol=1e-5)
    assert values[MESH.inside(NODES)].std() > 0.1
    np.testing.assert_allclose(values[~MESH.inside(NODES)], 0, atol=1e-12)
