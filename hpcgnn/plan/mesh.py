"""A mesh known only by its shape: a grid that is divided into boxes, one for each rank.

Boxes differ by their position: inside, or at faces, edges and corners of the grid. A small grid
with at most 3 boxes on each axis has one box of each kind: a full-size one, and slices around it.
It is written as a store; then, as for any stored graph, the rows between its boxes are counted and
the full-size box is rehearsed. Memory grows only with the number of boxes. A mesh is a file:

    name = "box"
    [mesh]
    nodes = [1000, 1000, 1000]
    steps = 9                        # of one trajectory; bytes of an epoch rise with them
    [mesh.fields]
    u = 3                            # columns
    p = 1

A node is joined to the next one on each axis; nodes have positions and no static features.
"""

import itertools
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from typing_extensions import override

from hpcgnn.comm import GridPosition, ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.gallery.shapes import GridEdges
from hpcgnn.plan.graph_shape import ShapeTable, read_tables
from hpcgnn.plan.planned_graph import Planned, Share, Survey
from hpcgnn.plan.simulated_peers import PatternShare
from hpcgnn.plan.traffic import BlockPairs, PatternKey, Ranks, Traffic
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.spmd import collective
from hpcgnn.storage import EdgeBuilder, FieldInfo, GraphStore, StoreHeader, StoreWriter
from hpcgnn.storage.atomic import scratch_folder
from hpcgnn.support import Trait
from hpcgnn.typing import Array, GlobalIndices, Offsets


@dataclass(frozen=True)
class MeshShape:
    """A grid with `nodes` on each axis, and `fields` at `steps` times."""

    name: str
    nodes: tuple[int, ...]
    steps: int
    fields: tuple[FieldInfo, ...]

    @classmethod
    def read(cls, path: Path) -> "MeshShape":
        """Return the mesh in a file.

        Raises `InputError` if a key is missing, unknown or out of range.
        """
        document = ShapeTable(str(path), read_tables(path), ("name", "mesh"))
        mesh = document.table("mesh", ("nodes", "steps", "fields"))
        axes = mesh.get("nodes", list)
        if len(axes) not in (2, 3) or not all(type(axis) is int and axis > 0 for axis in axes):
            raise InputError(f"{mesh.name}: nodes = {axes} must be two or three numbers above 0")
        columns = mesh.get("fields", dict)
        fields = [
            FieldInfo(name, mesh.table("fields", columns).get(name, int), np.dtype(np.float32))
            for name in columns
        ]
        steps = mesh.get("steps", int)
        if steps < 1:
            raise InputError(f"{mesh.name}: steps = {steps} must be at least 1")
        return cls(str(document.get("name", str)), tuple(axes), steps, tuple(fields))

    @property
    def store_bytes(self) -> int:
        """Bytes of a store: offsets and columns of edges, positions, ids and fields."""
        count, columns = math.prod(self.nodes), sum(field.num_columns for field in self.fields)
        edges = GridEdges(self.nodes).num_edges
        return 8 * edges + count * (16 + 8 * len(self.nodes) + 4 * columns * self.steps)


@dataclass(frozen=True)
class Boxes:
    """A grid divided into boxes of `lengths` nodes along each axis; boxes are in C order."""

    lengths: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, nodes: tuple[int, ...], count: int) -> "Boxes":
        """Divide a grid into `count` boxes of least surface whose lengths differ by at most one.

        Raises `InputError` if the grid cannot be divided into so many boxes.
        """
        divisions = [
            sizes for sizes in _factors(count, len(nodes)) if np.all(np.less_equal(sizes, nodes))
        ]
        if not divisions:
            raise InputError(f"a mesh of {nodes} nodes is not cut into {count} boxes; plan others")

        def surface(cuts: tuple[int, ...]) -> float:
            return sum((cut - 1) / axis for cut, axis in zip(cuts, nodes, strict=True))

        least = min(divisions, key=surface)
        bounds = [np.arange(e + 1) * axis // e for e, axis in zip(least, nodes, strict=True)]
        return cls(tuple(tuple(np.diff(sizes).tolist()) for sizes in bounds))

    @property
    def nodes(self) -> tuple[int, ...]:
        """The number of nodes on each axis."""
        return tuple(map(sum, self.lengths))

    @property
    def cuts(self) -> tuple[int, ...]:
        """The number of boxes on each axis."""
        return tuple(map(len, self.lengths))

    @cached_property
    def coordinates(self) -> Array:
        """(axes, boxes) int64 positions of the boxes in the grid of boxes."""
        return np.indices(self.cuts).reshape(len(self.cuts), -1)

    def sides(self, coordinates: Array) -> Array:
        """Return (axes, m) int64 the side lengths in nodes of the boxes at positions (axes, m)."""
        pairs = zip(self.lengths, coordinates, strict=True)
        return np.stack([np.array(lengths)[place] for lengths, place in pairs])

    def numbers(self, coordinates: Array) -> Array:
        """Return (m,) the numbers of the boxes at positions (axes, m)."""
        return np.asarray(np.ravel_multi_index(tuple(coordinates), self.cuts))

    @cached_property
    def starts(self) -> Offsets:
        """(boxes + 1,) int64 the first rows of the boxes."""
        return np.append(0, np.cumsum(self.sides(self.coordinates).prod(axis=0)))

    @cached_property
    def small(self) -> "Boxes":
        """The grid with a box of each kind: one of the largest, among slices of others."""
        kinds = (
            ((most,), (most, 1), (1, most, 1))[min(len(sizes), 3) - 1]
            for sizes in self.lengths
            for most in [max(sizes)]
        )
        return Boxes(tuple(kinds))

    @property
    def whole(self) -> int:
        """The number of the full-size box in the small grid."""
        return int(self.small.numbers(np.array([[min(cut - 1, 2) // 2] for cut in self.cuts]))[0])

    def on_small(self, ranks: Ranks) -> Ranks:
        """Return the ranks that hold the small grid."""
        return replace(ranks, starts=self.small.starts, per_host=None)

    @cached_property
    def kinds(self) -> Array:
        """(axes, boxes) int64 position in the small grid of the box of the same kind."""
        cuts, last = (np.array(boxes.cuts)[:, None] - 1 for boxes in (self, self.small))
        return np.where(self.coordinates == cuts, last, np.minimum(self.coordinates, 1))

    def rows(self) -> GlobalIndices:
        """Return (nodes,) int64 the row of each node: box after box, each in C order."""
        of_axis = [np.repeat(np.arange(len(axis)), axis) for axis in self.lengths]
        coordinates = np.stack([axis.reshape(-1) for axis in np.meshgrid(*of_axis, indexing="ij")])
        order = np.argsort(self.numbers(coordinates), kind="stable")
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order))
        return numbers


def _factors(count: int, axes: int) -> list[tuple[int, ...]]:
    """Return all ordered factorisations of `count` into `axes` factors."""
    if axes == 1:
        return [(count,)]
    divisors = [divisor for divisor in range(1, count + 1) if count % divisor == 0]
    return [
        (divisor, *factors)
        for divisor in divisors
        for factors in _factors(count // divisor, axes - 1)
    ]


@collective
def write_boxes(path: Path, shape: MeshShape, boxes: Boxes) -> None:
    """Write a grid as a store with the fields of a shape, all zero, and each box as a part."""
    edges, rows = GridEdges(boxes.nodes), boxes.rows()
    order = np.argsort(rows)
    header = StoreHeader(name=shape.name, num_nodes=edges.num_nodes, undirected=True)
    with StoreWriter(path, header) as writer:
        with EdgeBuilder(edges.num_nodes, undirected=True) as builder:
            for number in range(edges.num_chunks):
                sources, targets = edges.chunk(number)
                builder.add(rows[sources], rows[targets])
            builder.write(writer, "")
        writer.append_original_id(order)
        positions = np.stack(np.unravel_index(order, boxes.nodes), axis=1)
        writer.append_positions(positions.astype(np.float64), [0.0] * len(boxes.nodes))
        writer.begin_fields(np.arange(shape.steps, dtype=np.float64), [0, shape.steps])
        for info in shape.fields:
            zeros = np.zeros((edges.num_nodes, info.num_columns), info.dtype)
            for step in range(shape.steps):
                writer.append_field(info.name, step, zeros, info)
        writer.set_partition(boxes.starts, "boxes", 0, {})


class MeshGraph(Planned):
    """A mesh as a configuration trains on it.

    Collective over `grid`, which has one rank. Stores of small grids exist until `stack` is closed.

    Raises `InputError` if the mesh does not fit the configuration.
    """

    counts_by = Trait.PLANNED_FROM_MESH

    @collective
    def __init__(
        self, grid: ProcessGrid, config: Config, shape: MeshShape, stack: ExitStack
    ) -> None:
        self._grid, self._config, self._shape, self._stack = grid, config, shape, stack
        self._folder = stack.enter_context(scratch_folder())
        self.store_bytes = shape.store_bytes
        self._made: dict[int, tuple[Boxes, WholeGraph, Config]] = {}

    def _small(self, blocks: int) -> tuple[Boxes, WholeGraph, Config]:
        """Return the boxes, their small grid as a plan reads it, and the configuration with it."""
        if blocks not in self._made:
            boxes, path = Boxes.of(self._shape.nodes, blocks), self._folder / f"{blocks}.h5"
            write_boxes(path, self._shape, boxes.small)
            config = replace(self._config, graph=replace(self._config.graph, store=str(path)))
            store = self._stack.enter_context(GraphStore.open(path))
            # Keep one only, because they are large and choices come by number of blocks.
            self._made = {blocks: (boxes, WholeGraph(self._grid, config, store), config)}
        return self._made[blocks]

    @override
    def row_starts(self, blocks: int) -> Offsets:
        return Boxes.of(self._shape.nodes, blocks).starts

    @override
    def trains(self, starts: Offsets) -> Array:
        return np.diff(starts)

    @override
    def survey(self, key: PatternKey, ranks: Ranks) -> "MeshSurvey":
        boxes, whole, _ = self._small(ranks.num_blocks)
        return MeshSurvey(boxes, whole.survey(key, boxes.on_small(ranks)))

    @override
    def surveys(self, ranks: Ranks) -> dict[PatternKey, Survey]:
        boxes, whole, _ = self._small(ranks.num_blocks)
        surveys = whole.surveys(boxes.on_small(ranks))
        return {key: MeshSurvey(boxes, survey) for key, survey in surveys.items()}

    @override
    def share(
        self, config: Config, ranks: Ranks, surveys: Mapping[PatternKey, Survey], block: int
    ) -> Share:
        # The largest inner box needs most and represents all.
        boxes, whole, on_small = self._small(ranks.num_blocks)
        config = replace(config, graph=on_small.graph)
        of_small = {
            key: survey.small for key, survey in surveys.items() if isinstance(survey, MeshSurvey)
        }
        return whole.share(config, boxes.on_small(ranks), of_small, boxes.whole)


class MeshSurvey(Survey):
    """Exchanges of boxes: those of the same kind in the `small` grid, scaled by their sides."""

    def __init__(self, boxes: Boxes, small: Survey) -> None:
        self._boxes, self.small = boxes, small

    @override
    def traffic(self, ranks: Ranks) -> Traffic:
        boxes, small = self._boxes, self._boxes.small
        counted = self.small.traffic(boxes.on_small(ranks))
        between = np.zeros((2, small.starts.size - 1, small.starts.size - 1), np.int64)
        for known in counted.pieces():
            between[:, known.readers, known.owners] = known.fetched[0], known.pushed[0]
        sizes = boxes.sides(boxes.coordinates) / small.sides(boxes.kinds)
        pairs = [np.empty((4, 0), np.int64)]
        for step in itertools.product((-1, 0, 1), repeat=len(boxes.cuts)):
            direction = np.array(step)[:, None]
            owners = boxes.coordinates + direction
            is_there = ((owners >= 0) & (owners < np.array(boxes.cuts)[:, None])).all(axis=0)
            readers = np.flatnonzero(is_there)
            kinds = boxes.kinds[:, readers]
            rows = between[:, small.numbers(kinds), small.numbers(kinds + direction)]
            # Shared rows scale with the sides that two boxes have in common.
            shared = np.where(direction == 0, sizes[:, readers], 1).prod(axis=0)
            numbers = boxes.numbers(owners[:, readers])
            moved = np.stack([readers, numbers, *np.rint(rows * shared).astype(np.int64)])
            pairs.append(moved[:, rows.any(axis=0)])
        readers, owners, fetched, pushed = np.concatenate(pairs, axis=1)
        # Non-zeros per row as in the full-size box; slices have too few, and boundaries matter
        # little.
        entries = counted.entries[boxes.whole] * np.diff(boxes.starts)
        entries = entries / np.diff(small.starts)[boxes.whole]
        count, ratio = len(boxes.starts) - 1, boxes.starts[-1] / small.starts[-1]
        ends = readers.astype(np.int32), owners.astype(np.int32)
        return Traffic.of_pairs(
            BlockPairs(*ends, fetched[None], pushed[None]),
            np.zeros((2, 2, count, 1, 1), np.int64),
            np.rint(entries).astype(np.int64),
            round(counted.num_rows * ratio),
            round(counted.num_columns * ratio),
        )

    @override
    def share(self, ranks: Ranks, position: GridPosition) -> PatternShare:
        return self.small.share(ranks, position)
