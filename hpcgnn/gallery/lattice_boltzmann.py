"""Flow around a cylinder in a channel by a lattice-Boltzmann method."""

import math
from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.typing import Array, FloatArray

LARGEST_SPEED = 0.1
"""Largest inflow speed in cells per time step; compressibility errors grow with its square."""

REYNOLDS_OF_A_CELL = 10
"""Largest ratio of Reynolds number to cells across the cylinder that was found stable."""

_VELOCITIES = np.array(
    [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1)]
)
_WEIGHTS = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
_OPPOSITE = np.array([0, 2, 1, 4, 3, 6, 5, 8, 7])
_MAGIC = 3 / 16
_LAYER, _LAYER_VISCOSITY = 1.0, 0.05
_RAMP = 3.0
_SWIRL = 1.0


@dataclass(frozen=True)
class FlowChannel:
    """The channel of benchmark 2D-2 of Schäfer and Turek (1996), in metres and seconds.

    The inflow is parabolic in y; its mean speed U gives ``Re = U diameter / viscosity``.
    """

    length: float = 2.2
    height: float = 0.41
    centre: tuple[float, float] = (0.2, 0.2)
    diameter: float = 0.1
    viscosity: float = 1e-3

    def mean_speed(self, reynolds: float) -> float:
        """Return the mean speed U of the inflow."""
        return reynolds * self.viscosity / self.diameter

    def inflow(self, y: FloatArray, mean_speed: float) -> FloatArray:
        """Return the inflow speed along x at heights y."""
        return 6 * mean_speed * y * (self.height - y) / self.height**2

    def distance(self, points: FloatArray) -> FloatArray:
        """Return the distance of points (n, 2) from the cylinder, negative inside."""
        return np.hypot(*(points - self.centre).T) - self.diameter / 2


@dataclass(frozen=True)
class _Links:
    """Lattice links across a boundary: populations leave at `leaving` and return at `arriving`.

    Both are indices into the flattened populations (9, n).
    """

    leaving: Array
    arriving: Array
    directions: Array
    cells: Array


class CylinderFlow:
    r"""The D2Q9 lattice-Boltzmann method with two relaxation times (Ginzburg and others, 2008).

    Pressure replaces density as in He and Luo (1997). The cylinder's boundary is interpolated
    linearly along each link (Bouzidi, 2001); walls and inflow are half a cell beyond the last
    cells. The outflow is transparent to plane pressure waves, :math:`p = c_s (\bar u - U)`. The
    flow starts from rest with a random vortex behind the cylinder, which decides the phase of the
    shedding.

    `reynolds` is the Reynolds number of the mean inflow, `cells` the approximate number of cells
    across the cylinder, and `interval` the seconds that one `advance` simulates.
    """

    def __init__(
        self,
        channel: FlowChannel,
        reynolds: float,
        cells: int,
        interval: float,
        generator: np.random.Generator,
    ) -> None:
        self.channel, self.reynolds = channel, reynolds
        rows = round(channel.height / channel.diameter * cells)
        self.cell = channel.height / rows
        columns = round(channel.length / self.cell)
        mean_speed = channel.mean_speed(reynolds)
        self._steps = math.ceil(1.5 * mean_speed * interval / (LARGEST_SPEED * self.cell))
        seconds = interval / self._steps
        self._unit = self.cell / seconds
        self._mean_speed = mean_speed / self._unit
        viscosity = channel.viscosity * seconds / self.cell**2
        self._ramp_steps = _RAMP * channel.diameter / mean_speed / seconds
        x, y = (np.arange(-1, count + 1) + 0.5 for count in (columns, rows))
        self._shape = x.size, y.size
        # A layer of high viscosity stabilises the inflow, whose parabola does not depend on it.
        layer = _LAYER_VISCOSITY * (1 - x * self.cell / (_LAYER * channel.diameter))
        relaxing = 3 * np.maximum(viscosity, layer)[:, None]
        self._rates = 1 / (relaxing + 0.5), 1 / (0.5 + _MAGIC / relaxing)
        self._offsets = _VELOCITIES @ (y.size, 1)
        centres = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2) * self.cell
        outside = channel.distance(centres) >= 0
        within = np.zeros(self._shape, bool)
        within[1:-1, 1:-1] = True
        self._fluid = within.ravel() & outside
        self._dead = np.flatnonzero(~self._fluid)
        self.cells = np.flatnonzero(self._fluid)
        self.centres = centres[self.cells]
        self._find_boundaries(centres, within.ravel() & ~outside)
        self._velocity = self._initial_vortex(centres, generator)
        self._pressure = np.zeros(self._shape)
        self._work = [np.empty(self._shape) for _ in range(4)]
        self._done = 0
        self.force = np.zeros(2)
        u, v = self._velocity
        along = np.multiply.outer(_VELOCITIES[:, 0], u) + np.multiply.outer(_VELOCITIES[:, 1], v)
        squares = 4.5 * along**2 - 1.5 * (u * u + v * v)
        self._populations = _WEIGHTS[:, None, None] * (3 * along + squares)
        self._streamed = np.zeros_like(self._populations)

    def advance(self) -> None:
        """Simulate one interval; raises `InputError` if the lattice is too coarse."""
        for _ in range(self._steps):
            self._step()
        if not np.isfinite(self.force).all():
            raise InputError(
                f"Reynolds number {self.reynolds:g}: the cells are too coarse; give more cells "
                "across the cylinder, or a smaller Reynolds number"
            )

    @property
    def velocity(self) -> FloatArray:
        """The velocity (cells, 2) at `centres` in metres per second."""
        return self._velocity.reshape(2, -1)[:, self.cells].T * self._unit

    @property
    def pressure(self) -> FloatArray:
        """The pressure over density (cells,) at `centres`, in m²/s²; about 0 at the outflow."""
        return self._pressure.ravel()[self.cells] / 3 * self._unit**2

    @property
    def coefficients(self) -> FloatArray:
        """The drag and lift coefficients (2,), ``2 F / (U² diameter)``."""
        diameter = self.channel.diameter / self.cell
        return 2 * self.force / (self._mean_speed**2 * diameter)

    def _find_boundaries(self, centres: FloatArray, cylinder: Array) -> None:
        """Group the links that leave the fluid by the boundary that they cross."""
        size = len(centres)
        directions = np.repeat(np.arange(1, 9), self.cells.size)
        cells = np.tile(self.cells, 8)
        ahead = cells + self._offsets[directions]
        bound = ~self._fluid[ahead]
        directions, cells, ahead = directions[bound], cells[bound], ahead[bound]
        x, y = centres[ahead].T
        on_cylinder, beside = cylinder[ahead], (y < 0) | (y > self.channel.height)

        def links(chosen: Array) -> _Links:
            out, cell = directions[chosen], cells[chosen]
            return _Links(out * size + cell, _OPPOSITE[out] * size + cell, out, cell)

        self._around, self._walls = links(on_cylinder), links(beside)
        inner = ~on_cylinder & ~beside
        self._inflow, self._outflow = links(inner & (x < 0)), links(inner & (x > 0))
        around = self._around
        # The share q of each link inside the fluid: |start + q step| equals the radius.
        start = (centres[around.cells] - self.channel.centre) / self.cell
        step = _VELOCITIES[around.directions]
        square, product = (step**2).sum(axis=1), (start * step).sum(axis=1)
        rest = (start**2).sum(axis=1) - (self.channel.diameter / 2 / self.cell) ** 2
        share = (-product - np.sqrt(product**2 - square * rest)) / square
        near = share < 0.5
        behind = around.leaving - self._offsets[around.directions]
        self._second = np.where(near, behind, around.arriving)
        self._first_part = np.where(near, 2 * share, 1 / (2 * share))
        inflow = self._inflow
        step = _VELOCITIES[inflow.directions]
        heights = centres[inflow.cells, 1] + step[:, 1] * self.cell / 2
        speeds = self.channel.inflow(heights, self._mean_speed)
        self._inflow_momentum = -6 * _WEIGHTS[inflow.directions] * step[:, 0] * speeds

    def _initial_vortex(self, centres: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Return the divergence-free initial velocity, in cells per time step."""
        behind, above = generator.uniform(1.5, 2.5), generator.uniform(-0.5, 0.5)
        strength = _SWIRL * generator.choice([-1.0, 1.0]) * self._mean_speed
        x, y = ((centres - self.channel.centre) / self.channel.diameter - (behind, above)).T
        stream = strength * np.exp(-(x**2) - y**2)
        velocity = np.stack([-2 * y * stream, 2 * x * stream])
        velocity[:, ~self._fluid] = 0
        return velocity.reshape(2, *self._shape)

    def _step(self) -> None:
        ramp = math.sin(min(self._done / self._ramp_steps, 1) * math.pi / 2) ** 2
        self._done += 1
        self._find_moments()
        self._collide()
        flat = self._populations.reshape(-1)
        around, outflow = self._around, self._outflow
        first = self._first_part
        returned = first * flat[around.leaving] + (1 - first) * flat[self._second]
        self.force = _VELOCITIES[around.directions].T @ (flat[around.leaving] + returned)
        u, v = self._velocity.reshape(2, -1)[:, outflow.cells]
        along = _VELOCITIES[outflow.directions, 0] * u + _VELOCITIES[outflow.directions, 1] * v
        excess = self._velocity[0, -2, 1:-1].mean() - ramp * self._mean_speed
        # 3 p = 3 c_s (mean u - U), with c_s² = 1/3.
        even = math.sqrt(3) * excess + 4.5 * along**2 - 1.5 * (u * u + v * v)
        values = (
            (around, returned),
            (self._walls, flat[self._walls.leaving]),
            (self._inflow, flat[self._inflow.leaving] + ramp * self._inflow_momentum),
            (outflow, 2 * _WEIGHTS[outflow.directions] * even - flat[outflow.leaving]),
        )
        self._stream()
        flat = self._populations.reshape(-1)
        for links, arriving in values:
            flat[links.arriving] = arriving

    def _find_moments(self) -> None:
        f, pressure, (u, v) = self._populations, self._pressure, self._velocity
        right, left = self._work[:2]
        np.add(f[5], f[7], out=right)
        right += f[1]
        np.add(f[6], f[8], out=left)
        left += f[2]
        np.subtract(right, left, out=u)
        np.add(right, left, out=pressure)
        for direction in (0, 3, 4):
            pressure += f[direction]
        np.subtract(f[3], f[4], out=v)
        for direction, add in ((5, np.add), (6, np.subtract), (7, np.subtract), (8, np.add)):
            add(v, f[direction], out=v)

    def _collide(self) -> None:
        """Relax the even and odd parts of opposite populations, each at its own rate."""
        f, (even_rate, odd_rate) = self._populations, self._rates
        (u, v), (base, even, odd, term) = self._velocity, self._work
        np.multiply(u, u, out=base)
        np.multiply(v, v, out=term)
        base += term
        base *= -1.5
        base += self._pressure
        f[0] *= 1 - even_rate
        np.multiply(base, _WEIGHTS[0] * even_rate, out=term)
        f[0] += term
        for direction in (1, 3, 5, 7):
            weight, ahead, back = _WEIGHTS[direction], f[direction], f[direction + 1]
            np.add(ahead, back, out=even)
            even *= -0.5 * even_rate
            np.subtract(ahead, back, out=odd)
            odd *= -0.5 * odd_rate
            across, up = _VELOCITIES[direction]
            np.multiply(u, across, out=term)
            if up:
                term += up * v
            ahead += odd
            back -= odd
            np.multiply(term, 3 * weight * odd_rate, out=odd)
            ahead += odd
            back -= odd
            term *= term
            term *= 4.5
            term += base
            term *= weight * even_rate
            even += term
            ahead += even
            back += even

    def _stream(self) -> None:
        size = self._pressure.size
        old = self._populations.reshape(9, -1)
        new = self._streamed.reshape(9, -1)
        for before, after, offset in zip(old, new, self._offsets, strict=True):
            after[max(0, offset) : size + min(0, offset)] = before[
                max(0, -offset) : size - max(0, offset)
            ]
        # Populations outside the fluid would grow.
        new[:, self._dead] = 0
        self._populations, self._streamed = self._streamed, self._populations
