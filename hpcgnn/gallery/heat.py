r"""Heat in a box by linear finite elements on tetrahedra, bitwise equal on any number of ranks.

:math:`\partial_t T = a \Delta T` in the unit cube with walls at 0, by the method of Crank and
Nicolson (1947). Each step's system is solved by Chebyshev iteration with a fixed number of
products. Unlike conjugate gradients, it needs no sums over nodes, whose order depends on the ranks.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
from typing_extensions import override

from hpcgnn.comm import RankGroup, RowMap
from hpcgnn.gallery import streamed
from hpcgnn.gallery.shapes import GridEdges
from hpcgnn.storage import EdgeColumns, FieldInfo, StoreWriter
from hpcgnn.typing import Array, FloatArray, GlobalIndices

DIFFUSIVITY = 0.01
"""Thermal diffusivity in m²/s."""

HEAT_INTERVAL = 0.05
"""Seconds between two steps."""

PLACES = ("inside", "wall")
"""Names of the node features."""

_JITTER = 0.15
_MODES = 3
_TOLERANCE = 1e-12
_INFO = FieldInfo("T", 1, np.dtype(np.float32), "K")
_UP = tuple(step for step in product((0, 1), repeat=3) if any(step))
_STENCIL = (*(tuple(-ahead for ahead in step) for step in _UP[::-1]), (0, 0, 0), *_UP)


@dataclass(frozen=True)
class BoxMesh(streamed.NodeBlocks):
    """A tetrahedral mesh of the unit cube: a grid of `shape` in C order, inner nodes jittered.

    Each cell is six tetrahedra around its diagonal (Kuhn). A node moves by at most 0.15 cells along
    each axis, which inverts no tetrahedron.
    """

    shape: tuple[int, int, int]
    seed: int

    @property
    def edges(self) -> GridEdges:
        """The edges of the tetrahedra, each in one direction."""
        return GridEdges(self.shape, _UP)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of neighbours' numbers from a node's own, with 0 in the middle."""
        _, rows, columns = self.shape
        return tuple((x * rows + y) * columns + z for x, y, z in _STENCIL)

    def inside(self, nodes: range) -> Array:
        """Return a mask (m,) of the nodes that are not on the walls."""
        points = np.stack(np.unravel_index(np.arange(nodes.start, nodes.stop), self.shape), axis=1)
        return np.all((points > 0) & (points < np.array(self.shape) - 1), axis=1)

    def positions(self, nodes: range) -> FloatArray:
        """Return the coordinates (m, 3) of nodes in metres."""
        size = streamed.NODE_CHUNK
        first = nodes.start // size * size
        blocks = [
            streamed.stream(self.seed, start, 3).uniform(-_JITTER, _JITTER, (size, 3))
            for start in range(first, nodes.stop, size)
        ]
        moves = np.concatenate([np.empty((0, 3)), *blocks])
        moves = moves[nodes.start - first : nodes.stop - first]
        points = np.stack(np.unravel_index(np.arange(nodes.start, nodes.stop), self.shape), axis=1)
        moved = points + moves * self.inside(nodes)[:, None]
        return moved / (np.array(self.shape) - 1)

    @property
    def edge_columns(self) -> EdgeColumns:
        """Return the edge features: a vector and its length."""
        return EdgeColumns(num_features=4)

    def edge_features(self, targets: GlobalIndices, sources: GlobalIndices) -> FloatArray:
        """Return the vectors and lengths (m, 4) of edges, float32, in units of the finest cells."""
        ends = np.concatenate([targets, sources])
        first = int(ends.min(initial=self.edges.num_nodes))
        positions = self.positions(range(first, int(ends.max(initial=first - 1)) + 1))
        unit = 1 / (max(self.shape) - 1)
        return streamed.edge_vectors(positions[targets - first], positions[sources - first], unit)

    def append(self, writer: StoreWriter, start: int, own: slice) -> None:
        """Append the data of nodes: inside or wall as one-hot features, positions, volumes."""
        stop = min(start + streamed.NODE_CHUNK, self.edges.num_nodes)
        nodes = range(start, stop)[own]
        inside = self.inside(nodes)
        writer.append_features(np.stack([inside, ~inside], axis=1).astype(np.float32))
        writer.append_positions(self.positions(nodes), (0.0, 0.0, 0.0))
        writer.append_weights(assemble(self, nodes)[1])


@dataclass(frozen=True)
class MovedNodes(streamed.RandomNodes):
    """Random node data with the positions and edge vectors (m, 3) float16 of a `BoxMesh`."""

    mesh: BoxMesh

    @override
    def append(self, writer: StoreWriter, start: int, own: slice) -> None:
        super().append(writer, start, own)
        stop = min(start + streamed.NODE_CHUNK, self.num_nodes)
        writer.append_positions(self.mesh.positions(range(start, stop)[own]), (0.0, 0.0, 0.0))

    @property
    @override
    def edge_columns(self) -> EdgeColumns:
        return EdgeColumns(num_features=3, dtype="<f2")

    @override
    def edge_features(self, targets: GlobalIndices, sources: GlobalIndices) -> FloatArray:
        return self.mesh.edge_features(targets, sources)[:, :3].astype(np.float16)


def assemble(mesh: BoxMesh, nodes: range) -> tuple[FloatArray, FloatArray]:
    """Return the stiffness (15, m) between nodes and neighbours at `offsets`, and volumes (m,).

    A node's volume, the lumped mass, is a quarter of the volumes of its tetrahedra.
    """
    row_of = {step: number for number, step in enumerate(_STENCIL)}
    offsets, reach, total = mesh.offsets, mesh.offsets[-1], mesh.edges.num_nodes
    low, high = max(0, nodes.start - reach), min(total, nodes.stop + reach)
    positions = mesh.positions(range(low, high))
    cells = np.arange(low, nodes.stop)
    points = np.stack(np.unravel_index(cells, mesh.shape), axis=1)
    cells = cells[(points < np.array(mesh.shape) - 1).all(axis=1)]
    stiffness, volumes = np.zeros((len(_STENCIL), len(nodes))), np.zeros(len(nodes))
    for order in permutations(range(3)):
        corners = np.zeros((4, 3), int)
        for number, axis in enumerate(order):
            corners[number + 1 :, axis] = 1
        steps = [tuple(corner) for corner in corners.tolist()]
        numbers = [cells + offsets[row_of[step]] for step in steps]
        ends = np.stack([positions[nodes - low] for nodes in numbers], axis=1)
        sides = ends[:, 1:] - ends[:, :1]
        volume = np.abs(np.linalg.det(sides)) / 6
        inverse = np.linalg.inv(sides)
        slopes = np.concatenate([-inverse.sum(axis=2, keepdims=True), inverse], axis=2)
        for first, rows in enumerate(numbers):
            kept = (rows >= nodes.start) & (rows < nodes.stop)
            own = rows[kept] - nodes.start
            volumes[own] += volume[kept] / 4
            for second in range(4):
                entry = (slopes[kept, :, first] * slopes[kept, :, second]).sum(axis=1)
                step = tuple((corners[second] - corners[first]).tolist())
                stiffness[row_of[step], own] += volume[kept] * entry
    return stiffness, volumes


class HeatEquation:
    """Advances the temperatures of this rank's equal share of nodes by `seconds`; collective."""

    def __init__(self, mesh: BoxMesh, ranks: RankGroup, seconds: float = HEAT_INTERVAL) -> None:
        total = mesh.edges.num_nodes
        self.nodes, self._ranks = ranks.range_of(total), ranks
        self._row_map = RowMap(ranks.starts(total), ranks.rank)
        self._offsets, reach = mesh.offsets, mesh.offsets[-1]
        with ranks.agree():
            self._rates = np.empty((len(self._offsets), len(self.nodes)))
            for low in range(0, len(self.nodes), streamed.NODE_CHUNK):
                block = slice(low, low + streamed.NODE_CHUNK)
                stiffness, volumes = assemble(mesh, self.nodes[block])
                self._rates[:, block] = stiffness / volumes
            # Values at the walls are fixed.
            self._rates *= 0.5 * seconds * DIFFUSIVITY * mesh.inside(self.nodes)
        largest = max(ranks.gather(float(np.abs(self._rates).sum(axis=0).max(initial=0))))
        # By Gershgorin, the eigenvalues of I + rates are between 1 and this bound.
        self._bound = 1 + max(largest, _TOLERANCE)
        below = np.arange(max(0, self.nodes.start - reach), self.nodes.start)
        above = np.arange(self.nodes.stop, min(total, self.nodes.stop + reach))
        self._ghosts = np.concatenate([below, above])
        self._extended = np.zeros(len(self.nodes) + 2 * reach)
        self._ghost_rows = self._ghosts - self.nodes.start + reach

    def advance(self, values: FloatArray) -> FloatArray:
        """Return the values (m,) of this rank's nodes one step later."""
        centre, radius = (self._bound + 1) / 2, (self._bound - 1) / 2
        root = math.sqrt(self._bound)
        rounds = math.ceil(math.log(2 / _TOLERANCE) / math.log((root + 1) / (root - 1)))
        residual = -2 * self._apply(values)
        temperature, ratio = values.copy(), radius / centre
        move = residual / centre
        for _ in range(rounds):
            temperature += move
            residual -= move + self._apply(move)
            following = 1 / (2 * centre / radius - ratio)
            move = following * ratio * move + 2 * following / radius * residual
            ratio = following
        return temperature

    def _apply(self, values: FloatArray) -> FloatArray:
        """Return the product of the rates with the values (m,)."""
        extended, reach, size = self._extended, self._offsets[-1], len(self.nodes)
        extended[reach : reach + size] = values
        extended[self._ghost_rows] = self._ranks.rows_of(self._row_map, self._ghosts, values)
        out = np.zeros(size)
        for offset, rates in zip(self._offsets, self._rates, strict=True):
            out += rates * extended[reach + offset : reach + offset + size]
        return out


@dataclass(frozen=True)
class CoolingBoxes:
    """Boxes that cool from random sums of sines, for `num_steps` steps of `HEAT_INTERVAL`."""

    mesh: BoxMesh
    num_trajectories: int
    num_steps: int

    def fields(self) -> streamed.FieldSteps:
        """Return the steps of all boxes, temperatures T in kelvin."""
        times = HEAT_INTERVAL * np.arange(self.num_steps)
        return streamed.FieldSteps((_INFO,), self.num_trajectories, times, self._steps)

    def _steps(self, ranks: RankGroup) -> Iterator[tuple[int, Mapping[str, FloatArray]]]:
        equation = HeatEquation(self.mesh, ranks)
        positions = self.mesh.positions(equation.nodes)
        waves = [np.sin(np.pi * number * positions) for number in range(1, _MODES + 1)]
        for trajectory in range(self.num_trajectories):
            generator = np.random.default_rng([self.mesh.seed, 7, trajectory])
            values: FloatArray = np.zeros(len(positions))
            for modes in product(waves, repeat=3):
                heights = [wave[:, axis] for axis, wave in enumerate(modes)]
                values += generator.standard_normal() * heights[0] * heights[1] * heights[2]
            for step in range(self.num_steps):
                if step:
                    values = equation.advance(values)
                yield equation.nodes.start, {"T": values[:, None].astype(np.float32)}
