"""The vortex street: its mesh, its solver compared with published figures, and its samples."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcgnn.comm import ONE_PROCESS
from hpcgnn.errors import InputError
from hpcgnn.gallery import FlowChannel, VortexStreets, channel_mesh, flow
from hpcgnn.gallery.channel_mesh import CYLINDER, INFLOW, INTERIOR, OUTFLOW, WALL
from hpcgnn.gallery.lattice_boltzmann import CylinderFlow

CHANNEL = FlowChannel()
MESH = channel_mesh(CHANNEL, 250, 3)


def solver(reynolds: float, cells: int, interval: float, seed: int = 1) -> CylinderFlow:
    return CylinderFlow(CHANNEL, reynolds, cells, interval, np.random.default_rng(seed))


def test_triangles_fill_the_channel_around_the_cylinder() -> None:
    sides = MESH.positions[MESH.triangles] - MESH.positions[np.roll(MESH.triangles, 1, axis=1)]
    lengths = np.hypot(*np.moveaxis(sides, 2, 0))
    others = np.roll(lengths, 1, axis=1), np.roll(lengths, 2, axis=1)
    cosines = (others[0] ** 2 + others[1] ** 2 - lengths**2) / (2 * others[0] * others[1])
    on_circle = np.count_nonzero(MESH.kinds == CYLINDER)
    hole = on_circle / 2 * np.sin(2 * np.pi / on_circle) * 0.05**2
    assert MESH.num_nodes == 250
    assert MESH.areas.sum() == pytest.approx(2.2 * 0.41 - hole)
    assert MESH.areas.min() > 0
    assert np.degrees(np.arccos(cosines)).min() > 20
    near = CHANNEL.distance(MESH.positions[MESH.triangles].mean(axis=1)) < 0.05
    assert lengths.mean(axis=1)[near].mean() < lengths.mean() / 1.5


def test_kinds_are_places_on_the_boundary() -> None:
    x, y = MESH.positions.T
    side = (y == 0) | (y == 0.41)
    round_about = np.abs(CHANNEL.distance(MESH.positions)) < 1e-12
    expected = {
        INFLOW: (x == 0) & ~side,
        OUTFLOW: (x == 2.2) & ~side,
        WALL: side,
        CYLINDER: round_about,
    }
    for kind, places in expected.items():
        np.testing.assert_array_equal(MESH.kinds == kind, places)
        assert places.any()
    assert np.count_nonzero(MESH.kinds == INTERIOR) > 100


def test_few_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="--nodes 99"):
        channel_mesh(CHANNEL, 99, 0)


def test_the_drag_of_a_steady_flow_is_that_of_the_benchmark() -> None:
    # Schäfer and Turek, 2D-1: 5.57 to 5.59; lift 0.0104 to 0.0110.
    flow = solver(20, 8, 0.05)
    for _ in range(100):
        flow.advance()
    drag, lift = flow.coefficients
    assert drag == pytest.approx(5.58, rel=0.035)
    assert abs(lift) < 0.1


@pytest.mark.slow
def test_vortices_are_shed_as_in_the_benchmark() -> None:
    # Schäfer and Turek, 2D-2: Strouhal number 0.295 to 0.305, drag up to 3.22 to 3.24.
    flow = solver(100, 20, 0.001)
    found = np.array([flow.advance() or flow.coefficients for _ in range(4500)])[3300:]
    drag, lift = found.T
    spectrum = np.abs(np.fft.rfft((lift - lift.mean()) * np.hanning(lift.size), 1 << 16))
    frequency = np.fft.rfftfreq(1 << 16, 0.001)[spectrum.argmax()]
    assert 0.290 < frequency * 0.1 / 1.0 < 0.305
    assert drag.max() == pytest.approx(3.23, rel=0.04)
    assert np.abs(lift).max() == pytest.approx(1.0, rel=0.1)


def test_a_lattice_that_is_too_coarse_is_told() -> None:
    flow = solver(3000, 8, 0.02)
    flow._velocity[:] = 9
    flow._populations[:] = 9
    with np.errstate(all="ignore"), pytest.raises(InputError, match="too coarse"):
        flow.advance()


def test_nodes_get_the_values_of_quadratic_fields() -> None:
    solved = solver(40, 8, 0.01)
    sampling = flow._Sampling(solved, MESH)

    def quadratic(points: np.ndarray) -> np.ndarray:
        x, y = points.T
        return np.stack([1 + x * y, 2 - y * y, x * x - 3 * y], axis=1)

    values = quadratic(solved.centres)
    found = sampling.of(SimpleNamespace(velocity=values[:, :2], pressure=values[:, 2]))
    free = np.isin(MESH.kinds, (INTERIOR, OUTFLOW))
    expected = quadratic(MESH.positions)
    np.testing.assert_allclose(found[free], expected[free], atol=1e-9)
    np.testing.assert_allclose(found[:, 2], expected[:, 2], atol=1e-9)


def test_prescribed_velocities_stand_at_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "SETTLING", 0.2)
    fields = VortexStreets(MESH, (20.0, 40.0), 2, 8, 5, CHANNEL).fields()
    found = [values for _, values in fields.steps(ONE_PROCESS)]
    assert len(found) == fields.num_trajectories * len(fields.times) == 4
    for number, speed in ((1, 0.2), (3, 0.4)):
        velocity = found[number]["u"]
        assert found[number]["p"].shape == (250, 1)
        assert not velocity[np.isin(MESH.kinds, (WALL, CYLINDER))].any()
        y = MESH.positions[MESH.kinds == INFLOW, 1]
        parabola = 6 * speed * y * (0.41 - y) / 0.41**2
        np.testing.assert_allclose(velocity[MESH.kinds == INFLOW, 0], parabola, rtol=1e-6)
        assert not velocity[MESH.kinds == INFLOW, 1].any()
