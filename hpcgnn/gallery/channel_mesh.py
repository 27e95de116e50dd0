"""A triangle mesh of a channel around a cylinder, finer near the cylinder."""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from hpcgnn.errors import InputError
from hpcgnn.gallery import streamed
from hpcgnn.gallery.lattice_boltzmann import FlowChannel
from hpcgnn.storage import EdgeColumns, StoreWriter
from hpcgnn.typing import FloatArray, GlobalIndices

INTERIOR, INFLOW, OUTFLOW, WALL, CYLINDER = range(5)
KINDS = ("interior", "inflow", "outflow", "wall", "cylinder")
"""Names of the node features."""

_COARSEST = 4.0
_GROWTH = 0.8
_STRETCH = 5.0
_SWEEPS = 60
_STEP = 0.2
_FEWEST_NODES = 100


@dataclass(frozen=True, eq=False)
class ChannelMesh(streamed.NodeBlocks):
    """A mesh with node `positions` (n, 2) in metres, node `kinds` (n,) and `triangles` (m, 3).

    Its edges are one chunk; a side of two triangles occurs twice. Nodes have one-hot kinds as
    features, float32, and their areas as weights; edges have the vectors from target to source, in
    units of the square root of the mean node area.
    """

    positions: FloatArray
    kinds: NDArray[np.uint8]
    triangles: GlobalIndices
    num_chunks: int = 1

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.positions)

    @property
    def num_edges(self) -> int:
        """Return the number of edges."""
        return self.triangles.size

    def chunk(self, _: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst), int64."""
        return self.triangles.ravel(), np.roll(self.triangles, 1, axis=1).ravel()

    @property
    def areas(self) -> FloatArray:
        """The areas (n,) of the nodes: a third of each adjacent triangle."""
        shares = np.repeat(areas_of(self.positions, self.triangles) / 3, 3)
        areas = np.zeros(self.num_nodes)
        np.add.at(areas, self.triangles.ravel(), shares)
        return areas

    @property
    def edge_columns(self) -> EdgeColumns:
        """Return the edge features: a vector and its length."""
        return EdgeColumns(num_features=3)

    def edge_features(self, targets: GlobalIndices, sources: GlobalIndices) -> FloatArray:
        """Return the vectors and lengths (m, 3) of edges, float32."""
        unit = float(np.sqrt(areas_of(self.positions, self.triangles).sum() / self.num_nodes))
        return streamed.edge_vectors(self.positions[targets], self.positions[sources], unit)

    def append(self, writer: StoreWriter, start: int, own: slice) -> None:
        """Append the rows `own` of the block whose first node is `start`."""
        nodes = np.arange(start, min(start + streamed.NODE_CHUNK, self.num_nodes))[own]
        writer.append_features(np.eye(len(KINDS), dtype=np.float32)[self.kinds[nodes]])
        writer.append_positions(self.positions[nodes], (0.0, 0.0))
        writer.append_weights(self.areas[nodes])


def areas_of(positions: FloatArray, triangles: GlobalIndices) -> FloatArray:
    """Return the areas (m,) of triangles."""
    first, second, third = (positions[corner] for corner in triangles.T)
    (a, b), (c, d) = (second - first).T, (third - first).T
    return np.abs(a * d - b * c) / 2


def channel_mesh(channel: FlowChannel, num_nodes: int, seed: int) -> ChannelMesh:
    """Return a mesh of `num_nodes` nodes; raises `InputError` for fewer than 100.

    Nodes are drawn with the density of the wanted edge lengths, then pushed apart as by compressed
    springs (Persson and Strang, 2004), and joined by Delaunay triangulation.
    """
    if num_nodes < _FEWEST_NODES:
        raise InputError(f"--nodes {num_nodes}: the channel needs at least {_FEWEST_NODES}")
    generator = np.random.default_rng([seed, 5])
    finest = np.sqrt(2 / np.sqrt(3) * _density(channel) / num_nodes)
    on_boundary, kinds = _boundary(channel, finest)
    inner = _random_points(channel, num_nodes - len(on_boundary), generator)
    points = np.concatenate([on_boundary, inner])
    for _ in range(_SWEEPS):
        points[len(on_boundary) :] += _displacements(channel, points)[len(on_boundary) :]
        points[len(on_boundary) :] = _moved_inside(channel, points[len(on_boundary) :], finest)
    order = np.argsort(points[:, 0], kind="stable")
    kinds = np.concatenate([kinds, np.full(len(inner), INTERIOR, np.uint8)])
    points, kinds = points[order], kinds[order]
    return ChannelMesh(points, kinds, _triangles(channel, points))


def _sizes(channel: FlowChannel, points: FloatArray) -> FloatArray:
    """Return wanted edge lengths, relative to the cylinder's; they grow less behind it."""
    along, across = (points - channel.centre).T / channel.diameter
    far = np.hypot(np.where(along > 0, along / _STRETCH, along), across) - 0.5
    return np.clip(1 + _GROWTH * far, 1, _COARSEST)


def _density(channel: FlowChannel) -> float:
    """Return the integral of `_sizes` ** -2 over the channel, in square metres."""
    step = channel.height / 200
    x, y = (np.arange(step / 2, length, step) for length in (channel.length, channel.height))
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    points = points[channel.distance(points) > 0]
    return float((_sizes(channel, points) ** -2).sum()) * step**2


def _boundary(channel: FlowChannel, finest: float) -> tuple[FloatArray, NDArray[np.uint8]]:
    """Return the nodes on the cylinder and the sides, and their kinds; corners are walls."""
    count = max(8, round(np.pi * channel.diameter / finest))
    angles = 2 * np.pi * np.arange(count) / count
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1) * channel.diameter / 2
    points, kinds = [circle + channel.centre], [np.full(count, CYLINDER, np.uint8)]
    length, height = channel.length, channel.height
    for kind, start, stop in (
        (WALL, (0.0, 0.0), (length, 0.0)),
        (WALL, (0.0, height), (length, height)),
        (INFLOW, (0.0, 0.0), (0.0, height)),
        (OUTFLOW, (length, 0.0), (length, height)),
    ):
        line = np.linspace(start, stop, 2001)
        lengths = np.hypot(*(np.diff(line, axis=0) / finest).T)
        edges = lengths / _sizes(channel, (line[1:] + line[:-1]) / 2)
        cumulative = np.concatenate([[0], np.cumsum(edges)])
        marks = np.linspace(0, cumulative[-1], max(2, round(cumulative[-1])) + 1)
        side = np.stack([np.interp(marks, cumulative, axis) for axis in line.T], axis=1)
        side = side if kind == WALL else side[1:-1]
        points.append(side)
        kinds.append(np.full(len(side), kind, np.uint8))
    return np.concatenate(points), np.concatenate(kinds)


def _random_points(channel: FlowChannel, count: int, generator: np.random.Generator) -> FloatArray:
    """Return random points (count, 2) in the channel with density `_sizes` ** -2."""
    inner = np.empty((0, 2))
    while len(inner) < count:
        points = generator.random((4 * count, 2)) * (channel.length, channel.height)
        keep = generator.random(4 * count) < _sizes(channel, points) ** -2
        inner = np.concatenate([inner, points[keep & (channel.distance(points) > 0)]])
    return inner[:count]


def _triangles(channel: FlowChannel, points: FloatArray) -> GlobalIndices:
    corners = scipy.spatial.Delaunay(points).simplices.astype(np.int64)
    outside = channel.distance(points[corners].mean(axis=1)) > 0
    # Triangles with all corners on the cylinder have their centre inside it.
    flat = areas_of(points, corners) < 1e-9 * channel.diameter**2
    return corners[outside & ~flat]


def _displacements(channel: FlowChannel, points: FloatArray) -> FloatArray:
    """Return the displacement (n, 2) of each point: too short edges push their ends apart."""
    corners = _triangles(channel, points)
    ends = ChannelMesh(points, np.empty(0, np.uint8), corners).chunk(0)
    keys = np.unique(np.minimum(*ends) * len(points) + np.maximum(*ends))
    first, second = keys // len(points), keys % len(points)
    vectors = points[first] - points[second]
    lengths = np.hypot(*vectors.T)
    sizes = _sizes(channel, (points[first] + points[second]) / 2)
    wanted = 1.2 * sizes * np.sqrt((lengths**2).sum() / (sizes**2).sum())
    forces = vectors * (np.maximum(wanted - lengths, 0) / np.maximum(lengths, 1e-12))[:, None]
    moves = [
        np.bincount(first, force, len(points)) - np.bincount(second, force, len(points))
        for force in forces.T
    ]
    return _STEP * np.stack(moves, axis=1)


def _moved_inside(channel: FlowChannel, points: FloatArray, finest: float) -> FloatArray:
    """Move points at least half an edge length inside the channel."""
    margin = 0.5 * finest * _sizes(channel, points)
    from_centre = points - channel.centre
    least = channel.diameter / 2 + margin
    distance = np.maximum(np.hypot(*from_centre.T), 1e-12)
    moved = channel.centre + from_centre * np.maximum(1, least / distance)[:, None]
    corner = np.array([channel.length, channel.height])
    return np.clip(moved, margin[:, None], corner - margin[:, None])
