"""Random parts, active sets and block rows of a graph of which only degrees are known.

The nodes of each degree are drawn for the parts without replacement, which has the same
distribution as ``hpcgnn partition --method random``. A node of degree d is then needed by a part
with a share s of the nodes unless none of its d neighbours is there, with probability
1 - (1 - s)^d for any graph. A part with more ends than others needs more, see `attractions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.plan.ghost_rows import kept_rows
from hpcgnn.plan.graph_shape import EndDegrees, EntryShape, Shape
from hpcgnn.plan.traffic import PatternKey
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.sparse.pieces import distinct
from hpcgnn.spmm import PushedEntries
from hpcgnn.spmm.cover import Cover
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask, Offsets

_FACTORS = (1, 2654435761, 2246822519, 3266489917, 668265263, 374761393, 4294967291)
"""Multiples of a factor order a part's nodes by degree; primes are coprime to their number."""

_GRID, _SURE = 500, 20.0
"""Grid points for attractions, and the exponent at which every node is a neighbour."""

_ROUNDS = 8
"""Most rounds in which neighbours that were drawn twice are drawn again."""


class DrawnParts:
    """Random parts of a shape, with nearly equal numbers of nodes of each type.

    Nodes are numbered part after part and, within a part, type after type.
    """

    def __init__(self, shape: Shape, num_parts: int) -> None:
        self.num_parts = num_parts
        nodes = np.array([kind.num_nodes for kind in shape.types], np.int64)
        spread = np.arange(num_parts) < (nodes % num_parts)[:, None]
        self.sizes: Array = nodes[:, None] // num_parts + spread
        """(types, parts) int64 nodes."""
        self.starts: Offsets = np.append(0, np.cumsum(self.sizes.sum(axis=0)))
        self.first: Array = self.starts[:-1] + np.cumsum(self.sizes, axis=0) - self.sizes
        """(types, parts) int64 first nodes."""
        self._ends: dict[EndDegrees, DrawnEnds] = {}
        counts = [0] * len(shape.types)
        rng = np.random.default_rng([num_parts, 1])
        for edges in shape.edges:
            for ends in dict.fromkeys((edges.sources, edges.targets)):
                factor = _FACTORS[counts[ends.type] % len(_FACTORS)]
                counts[ends.type] += 1
                self._ends[ends] = DrawnEnds(ends, self.sizes[ends.type], factor, rng)

    def __getitem__(self, ends: EndDegrees) -> "DrawnEnds":
        """Return the distribution of `ends` of the shape over the parts."""
        return self._ends[ends]

    def nodes_of(self, number: int, part: int) -> slice:
        """Return the local numbers of the nodes of a type in a part."""
        first = int(self.first[number, part] - self.starts[part])
        return slice(first, first + int(self.sizes[number, part]))


class DrawnEnds:
    """The distribution of the nodes of each degree over parts.

    `sizes` (parts,) int64 are the numbers of nodes of the type. Node k of a part is at position
    ``k factor`` modulo their number in the order of degrees.
    """

    def __init__(
        self, ends: EndDegrees, sizes: Array, factor: int, rng: np.random.Generator
    ) -> None:
        self.ends, self.sizes, self._factor = ends, sizes, factor
        left = ends.counts.copy()
        few = sizes.max(initial=0) <= np.iinfo(np.int32).max
        drawn = np.empty((len(sizes), len(left)), np.int32 if few else np.int64)
        for part, size in enumerate(sizes):
            # Draw from the nodes that are left; the last part gets the rest.
            drawn[part] = rng.multivariate_hypergeometric(left, size, method="marginals")
            left -= drawn[part]
        self.drawn: Array = drawn
        """(parts, classes) nodes of each degree; int32 halves the memory of a large plan."""

    def degrees_of(self, part: int) -> Array:
        """Return (nodes of the type in the part,) float64 degrees."""
        size = int(self.sizes[part])
        scattered = np.arange(size) * self._factor % max(size, 1)
        bounds = np.cumsum(self.drawn[part])
        return self.ends.degrees[np.searchsorted(bounds, scattered, side="right")]

    def reached(
        self, ends: "DrawnEnds", active: float, outside: float, weights: Array | float = 1.0
    ) -> "Reached":
        """Return the expected numbers of nodes of each part that have a neighbour in each part.

        `ends` are those of the neighbours, of which a share `active` counts. `outside` is as in
        `hpcgnn.plan.graph_shape.Edges`; with it, figures of a part with itself are wrong, but not
        needed.
        `weights` (classes,) are the weights of nodes by degree.
        """
        power = outside * self.ends.degrees
        attraction = ends.drawn @ attractions(self.ends, ends.ends)
        # With many parts this is the largest array of a plan, so work in place.
        chances = (-active * attraction[:, None] * power).astype(np.float32)
        np.negative(np.expm1(chances, out=chances), out=chances)
        # Correct to the mean over random parts, which is known for any graph.
        sizes, counts = np.unique(ends.sizes, return_counts=True)
        missed = 1 - np.minimum(active * sizes / ends.sizes.sum(), 1)
        right = counts @ (1 - missed[:, None] ** power) / len(ends.sizes)
        mean = chances.mean(axis=0, dtype=np.float64)
        chances *= np.divide(right, mean, out=np.ones_like(mean), where=mean > 0)
        nodes = (weights * self.drawn).astype(np.float32)
        return Reached(np.minimum(chances, 1, out=chances), nodes)

    def cells(self) -> tuple[Array, Offsets, Array]:
        """Return sums of ends up to each degree, and the first of each part's nodes of a degree.

        With many parts they are large, so callers pass them to `draw` and do not keep them.
        """
        weights = np.cumsum(self.ends.degrees * self.ends.counts)
        by_class = np.append(0, np.cumsum(self.drawn.T.reshape(-1)))
        inside = np.cumsum(self.drawn, axis=1, dtype=self.drawn.dtype) - self.drawn
        return weights, by_class, inside

    @cached_property
    def _inverses(self) -> Array:
        return np.array([pow(self._factor, -1, int(n)) if n > 1 else 0 for n in self.sizes])

    def draw(
        self,
        part: int,
        local: Array,
        cells: tuple[Array, Offsets, Array],
        rng: np.random.Generator,
    ) -> tuple[LocalIndices, GlobalIndices]:
        """Draw nodes in proportion to their ends; return their parts, and numbers in the parts.

        `part` is the part of their neighbours. `local` (n,) tells whether a node must be of the
        same part or may be of any. `cells` is the result of `cells`.
        """
        weights, by_class, inside = cells
        classes, parts = len(self.ends.degrees), len(self.sizes)
        ends = np.empty(len(local), np.int64)
        chances = np.cumsum(self.ends.degrees * self.drawn[part])
        for is_own, sums in ((False, weights), (True, chances)):
            nodes = np.flatnonzero(local == is_own)
            if not len(nodes) or not sums[-1]:
                # There is no such node in the part.
                ends[nodes] = -1
                continue
            kind = np.searchsorted(sums, rng.random(len(nodes)) * sums[-1], side="right")
            kind = np.minimum(kind, classes - 1)
            first = by_class[kind * parts + (part if is_own else 0)]
            count = self.drawn[part][kind] if is_own else self.ends.counts[kind]
            ends[nodes] = first + rng.integers(0, np.maximum(count, 1))
        cell = np.searchsorted(by_class, ends, side="right") - 1
        kind, owner = np.divmod(cell, parts)
        positions = inside[owner, kind] + ends - by_class[cell]
        number = positions * self._inverses[owner] % np.maximum(self.sizes[owner], 1)
        owner[ends < 0] = -1
        return owner.astype(np.int32), number


@dataclass(frozen=True, eq=False)
class Reached:
    """Expected numbers of nodes of each part that have a neighbour in another part.

    `chances` (parts, classes) float32 are the probabilities that a part has a neighbour of a node
    of each degree; `nodes` (parts, classes) float32 are the nodes of each degree in each part.
    """

    chances: FloatArray
    nodes: FloatArray

    def by(self, parts: slice) -> FloatArray:
        """Return (m, parts) the nodes of each part that have a neighbour in each of m `parts`."""
        return self.chances[parts] @ self.nodes.T

    def of(self, parts: slice) -> FloatArray:
        """Return (m, parts) the nodes of each of m `parts` that have a neighbour in each part."""
        return self.nodes[parts] @ self.chances.T


def attractions(nodes: EndDegrees, neighbours: EndDegrees) -> FloatArray:
    """Return (classes of `neighbours`,) the attraction θ of a neighbour of each degree.

    A node of degree d is adjacent to it with probability 1 - exp(-θ d). θ is chosen so that a
    neighbour of degree D has D distinct nodes; for hubs it grows faster than D.
    """
    reads = nodes.degrees > 0
    degrees, counts = nodes.degrees[reads], nodes.counts[reads]
    if not len(degrees):
        return np.zeros(len(neighbours.degrees))
    least = 0.1 / max(nodes.total, 1)
    grid = np.geomspace(least, _SURE / degrees.min(), _GRID)
    reached = np.array([-np.expm1(-theta * degrees) @ counts for theta in grid])
    theta = np.exp(
        np.interp(np.log(np.maximum(neighbours.degrees, 1e-9)), np.log(reached), np.log(grid))
    )
    # Below the grid θ is proportional to D.
    return np.asarray(
        np.where(neighbours.degrees < reached[0], least * neighbours.degrees / reached[0], theta)
    )


class Reach:
    """Expected active sets ``S_0 .. S_L`` of random training nodes.

    A node is in ``S_l`` if it is a training node or has a neighbour in ``S_(l+1)``; neighbours are
    drawn in proportion to their degrees. `training` (types,) is the share of training nodes.
    `depth` is L, 0 for no sets; `last` layers are restricted to the sets, see `active_sets`.
    """

    def __init__(
        self, training: Array, entries: Sequence[EntryShape], depth: int, last: int
    ) -> None:
        self._training, self._entries, self.depth = training, entries, depth
        whole = depth - last + (last < depth)
        # For each set, the share of the rows' ends in the next set; None: a set of all nodes.
        self._next: list[list[float] | None] = [None] * (depth + 1)
        for level in range(depth, whole - 1, -1):
            following = [0.0] * len(entries)
            if level < depth:
                following = [self.active(level + 1, of_relation) for of_relation in entries]
            self._next[level] = following

    @property
    def keys(self) -> tuple[PatternKey, ...]:
        """Keys of the restricted patterns; pattern l has rows ``S_(l+1)`` and columns ``S_l``."""
        return tuple(
            (level, "in") for level in range(self.depth) if self._next[level + 1] is not None
        )

    def active(self, level: int | None, entries: EntryShape) -> float:
        """Return the share of `entries` that are in rows of a set; level None: all nodes."""
        ends = entries.rows
        return float(ends.degrees * ends.counts @ self.of_degrees(level, ends) / max(ends.total, 1))

    def of_degrees(self, level: int | None, ends: EndDegrees) -> Array:
        """Return (classes,) the share of the nodes of each degree that are in a set."""
        return self.of_nodes(level, ends.type, {ends: ends.degrees})

    def of_type(self, level: int | None, number: int) -> float:
        """Return the share of the nodes of a type that are in a set."""
        return float(self.of_nodes(level, number, {}))

    def of_nodes(
        self, level: int | None, number: int, degrees: Mapping[EndDegrees, Array]
    ) -> Array:
        """Return (nodes,) the probability that nodes of a type are in a set.

        `level` is that of the set; None: all nodes. `degrees` (nodes,) are given for some ends;
        other ends are averaged over.
        """
        following = None if level is None else self._next[level]
        any_degrees = next(iter(degrees.values()), np.float64(0))
        if following is None:
            return np.ones_like(any_degrees)
        missed = np.full_like(any_degrees, 1 - self._training[number])
        for entries, share in zip(self._entries, following, strict=True):
            ends = entries.columns
            if ends.type == number and ends in degrees:
                missed = missed * (1 - share) ** degrees[ends]
            elif ends.type == number:
                missed = missed * ((1 - share) ** ends.degrees @ ends.counts / ends.counts.sum())
        return np.asarray(1 - missed)


class DrawnRow:
    """The drawn rows of a part: distinct neighbours in proportion to their degrees.

    With `loops` nodes aggregate from themselves too. With rows `by_relation`, rows without entries
    are left out.
    """

    def __init__(
        self,
        parts: DrawnParts,
        part: int,
        entries: Sequence[EntryShape],
        reach: Reach,
        *,
        loops: bool,
        by_relation: bool,
    ) -> None:
        self.parts, self.part, self._entries, self._reach = parts, part, entries, reach
        self._row_map, self._by_relation = RowMap(parts.starts, part), by_relation
        self._num_relations = 1 + max(of_relation.relation for of_relation in entries)
        rng = np.random.default_rng([part, 2])
        count = self._row_map.num_local
        edge_keys = [self._draw(of_relation, rng) for of_relation in entries]
        if loops:
            nodes = np.arange(count, dtype=np.int64)
            edge_keys.append(nodes * self._row_map.num_rows + nodes + self._row_map.start)
        keys = distinct(np.concatenate(edge_keys)) if len(edge_keys) > 1 else edge_keys[0]
        self._rows, self._columns = np.divmod(keys, self._row_map.num_rows)
        self._chance = rng.random(count)
        self.sets: tuple[Mask, ...] = self._active() if reach.depth else ()
        self.trained: Mask = self._in_set(reach.depth)

    def _degrees(self, number: int) -> dict[EndDegrees, Array]:
        """Return the degrees of the nodes of a type, for each of its ends."""
        ends = [
            e
            for entries in self._entries
            for e in (entries.rows, entries.columns)
            if e.type == number
        ]
        return {ends: self.parts[ends].degrees_of(self.part) for ends in dict.fromkeys(ends)}

    def _draw(self, entries: EntryShape, rng: np.random.Generator) -> GlobalIndices:
        """Return (entries,) int64 keys: row times the number of all nodes, plus column."""
        parts, part, all_nodes = self.parts, self.part, self._row_map.num_rows
        nodes = parts.nodes_of(entries.rows.type, part)
        degrees = parts[entries.rows].degrees_of(part)
        # A class of a law has a mean degree; give each node one of the two nearest integers.
        counts = np.floor(degrees + rng.random(len(degrees))).astype(np.int64)
        columns, first = parts[entries.columns], parts.first[entries.columns.type]
        keys, missing, cells = np.empty(0, np.int64), counts, columns.cells()
        for _ in range(_ROUNDS):
            rows = np.repeat(np.arange(len(counts)), missing)
            is_own = rng.random(len(rows)) >= entries.outside
            owners, numbers = columns.draw(part, is_own, cells, rng)
            neighbours = first[owners] + numbers
            fits = (owners >= 0) & (neighbours != rows + nodes.start + self._row_map.start)
            keys = distinct(np.append(keys, rows[fits] * all_nodes + neighbours[fits]))
            missing = counts - np.bincount(keys // all_nodes, minlength=len(counts))
            if missing.sum() <= counts.sum() // 1000:
                break
        shift = entries.relation * self._row_map.num_local + nodes.start
        return np.asarray(keys + shift * all_nodes)

    def _in_set(self, level: int | None) -> Mask:
        """Return (nodes,) mask of the nodes drawn for a set, apart from those its entries imply."""
        chances = [
            self._reach.of_nodes(level, kind, self._degrees(kind))
            for kind in range(len(self.parts.sizes))
        ]
        return np.asarray(self._chance < np.concatenate(chances))

    def _active(self) -> tuple[Mask, ...]:
        sets = [self._in_set(self._reach.depth)]
        for level in range(self._reach.depth - 1, -1, -1):
            # A node has one random number for all sets, so that they are nested.
            active = self._in_set(level) | sets[0]
            read = self._columns[np.tile(sets[0], self._num_relations)[self._rows]]
            active[self._row_map.to_local(read[self._row_map.is_local(read)])] = True
            sets.insert(0, active)
        return tuple(sets)

    def _sets_of(self, key: PatternKey) -> tuple[Mask, Mask]:
        """Return the masks of the columns and the rows of a pattern."""
        level, _ = key
        if level is None:
            everything = np.ones(self._row_map.num_local, np.bool_)
            return everything, everything
        return self.sets[level], self.sets[level + 1]

    def pattern(self, key: PatternKey) -> DistCSR:
        """Return the matrix of a pattern."""
        row_map, (inputs, outputs) = self._row_map, self._sets_of(key)
        is_active = np.tile(outputs, self._num_relations)
        if self._by_relation:
            occupied = np.zeros(len(is_active), np.bool_)
            occupied[self._rows] = True
            is_active &= occupied
        is_kept = is_active[self._rows]
        rows, columns = self._rows[is_kept], self._columns[is_kept]
        compact = self._by_relation or key[0] is not None
        row_nodes, column_nodes = np.flatnonzero(is_active), np.flatnonzero(inputs)
        indptr = np.append(np.searchsorted(rows, row_nodes), len(rows)).astype(np.int64)
        local = row_map.is_local(columns)
        local_columns = np.searchsorted(column_nodes, columns[local] - row_map.start).astype(
            np.int32
        )
        ghosts, numbers = np.unique(columns[~local], return_inverse=True)
        shape = len(row_nodes), len(column_nodes)
        remote = (shape[0], len(ghosts))
        return DistCSR(
            row_map,
            kept_rows(indptr, local, local_columns, None, shape, compact=compact),
            kept_rows(indptr, ~local, numbers.astype(np.int32), None, remote),
            ghosts,
            row_nodes.astype(np.int32) if compact else None,
            column_nodes.astype(np.int32) if compact else None,
            self._num_relations,
        )

    def left_here(
        self, key: PatternKey, cover: Cover, pattern: DistCSR, reverses: LocalIndices
    ) -> PushedEntries:
        """Return the entries that others would push to this rank, from a cover of the transpose.

        `reverses` are the relations of the transpose, by relation.
        """
        row_map, (inputs, _) = self._row_map, self._sets_of(key)
        owners = row_map.owner(self._columns)
        relations, nodes = np.divmod(self._rows, row_map.num_local)
        left = (owners != row_map.block) & inputs[nodes]
        if key[0] is not None:
            # Only some rows of other ranks are active; draw which.
            share = np.array([self._reach.active(key[0] + 1, entries) for entries in self._entries])
            ghosts, numbers = np.unique(self._columns, return_inverse=True)
            drawn = np.random.default_rng([self.part, 4]).random(len(ghosts))[numbers]
            by_relation = np.array([entries.relation for entries in self._entries])
            several = np.array([share[by_relation == r].mean() for r in range(self._num_relations)])
            left &= drawn < several[reverses[relations]]
        far, owners, nodes = self._columns[left], owners[left], nodes[left]
        relations = reverses[relations[left]]
        size = np.diff(row_map.starts)[owners]
        first = row_map.starts[owners]
        targets = first * self._num_relations + relations * size + far - first
        order = np.lexsort((nodes, targets))
        targets, owners, nodes = targets[order], owners[order], nodes[order]
        begins = np.flatnonzero(np.diff(targets, prepend=-1))
        pairs, numbers = np.unique(
            owners * np.int64(row_map.num_local) + nodes, return_inverse=True
        )
        bounds = np.searchsorted(pairs // row_map.num_local, np.arange(row_map.num_blocks + 1))
        transposed = LocalCSR(
            np.append(begins, len(targets)).astype(np.int64),
            numbers.astype(np.int32),
            None,
            (len(begins), len(pairs)),
            np.arange(len(begins), dtype=np.int32),
        )
        pushed = cover(transposed, bounds.astype(np.int64))
        return PushedEntries.of(pattern, targets[pushed], nodes[pushed] + row_map.start)
