"""Vortex streets behind a cylinder on an unstructured mesh, interpolated from a lattice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import scipy

from hpcgnn import watchdog
from hpcgnn.comm import RankGroup
from hpcgnn.gallery.channel_mesh import INFLOW, OUTFLOW, ChannelMesh
from hpcgnn.gallery.lattice_boltzmann import CylinderFlow, FlowChannel
from hpcgnn.gallery.streamed import FieldSteps
from hpcgnn.storage import FieldInfo
from hpcgnn.typing import FloatArray

FLOW_INTERVAL = 0.01
"""Seconds between two steps; a shedding period at Reynolds number 100 has 33 steps."""

SETTLING = 30.0
"""Simulated time before the first step, in units of diameter over mean speed."""

_FIELDS = (
    FieldInfo("u", 2, np.dtype(np.float32), "m/s", ("x", "y")),
    FieldInfo("p", 1, np.dtype(np.float32), "m2/s2"),
)
_NEIGHBOURS = 16


@dataclass(frozen=True)
class VortexStreets:
    """Flows around the cylinder, one for each of the `reynolds` numbers, at `num_steps` steps.

    Fields are u (2 columns, m/s) and p (over density, m²/s²). Each flow starts with its own random
    vortex, drawn with `seed`. `cells` is the number of lattice cells across the cylinder.
    """

    mesh: ChannelMesh
    reynolds: tuple[float, ...]
    num_steps: int
    cells: int
    seed: int
    channel: FlowChannel

    def fields(self) -> FieldSteps:
        """Return the steps of all flows; each rank simulates some, with one in memory at a time."""
        times = FLOW_INTERVAL * np.arange(self.num_steps)
        return FieldSteps(_FIELDS, len(self.reynolds), times, self._steps)

    def _steps(self, ranks: RankGroup) -> Iterator[tuple[int, Mapping[str, FloatArray]]]:
        none = np.empty((self.num_steps, 0, 3), np.float32)
        for first in range(0, len(self.reynolds), ranks.size):
            batch = range(first, min(first + ranks.size, len(self.reynolds)))
            own = none
            with ranks.agree():
                if first + ranks.rank in batch:
                    own = self.flow(first + ranks.rank)
            for number in batch:
                for rows in own if number == first + ranks.rank else none:
                    yield 0, {"u": rows[:, :2], "p": rows[:, 2:]}

    def flow(self, number: int) -> FloatArray:
        """Return the velocity and pressure (steps, n, 3) float32 of one flow at the nodes."""
        channel, reynolds = self.channel, self.reynolds[number]
        generator = np.random.default_rng([self.seed, 6, number])
        flow = CylinderFlow(channel, reynolds, self.cells, FLOW_INTERVAL, generator)
        at_nodes = _Sampling(flow, self.mesh)
        speed = channel.mean_speed(reynolds)
        for _ in range(round(SETTLING * channel.diameter / speed / FLOW_INTERVAL)):
            flow.advance()
            watchdog.beat()
        steps = np.empty((self.num_steps, len(self.mesh.positions), 3), np.float32)
        for step in steps:
            flow.advance()
            watchdog.beat()
            step[:] = at_nodes.of(flow)
        return steps


class _Sampling:
    """Interpolates to nodes by a least-squares fit of a quadratic to the nearest cells."""

    def __init__(self, flow: CylinderFlow, mesh: ChannelMesh) -> None:
        tree = scipy.spatial.cKDTree(flow.centres)
        distances, self._near = tree.query(mesh.positions, _NEIGHBOURS)
        x, y = np.moveaxis((flow.centres[self._near] - mesh.positions[:, None]) / flow.cell, 2, 0)
        terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=2)
        weights = np.exp(-((distances / flow.cell) ** 2) / 8)
        # The polynomial's value at the node itself is its first coefficient.
        self._parts = np.linalg.pinv(terms * weights[:, :, None])[:, 0] * weights
        self._is_free = (mesh.kinds < INFLOW) | (mesh.kinds == OUTFLOW)
        speed = flow.channel.mean_speed(flow.reynolds)
        along = flow.channel.inflow(mesh.positions[:, 1], speed)
        self._prescribed = np.stack([np.where(mesh.kinds == INFLOW, along, 0), 0 * along], axis=1)

    def of(self, flow: CylinderFlow) -> FloatArray:
        """Return velocity and pressure (n, 3), with prescribed velocities on inflow and walls."""
        values = np.column_stack([flow.velocity, flow.pressure])
        sampled = np.einsum("nk,nkf->nf", self._parts, values[self._near])
        sampled[:, :2] = np.where(self._is_free[:, None], sampled[:, :2], self._prescribed)
        return sampled
