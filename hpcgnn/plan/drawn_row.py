"""A block row that is drawn from degrees, for the rank that is rehearsed."""

from collections.abc import Callable, Sequence

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.plan.drawn_parts import DrawnParts
from hpcgnn.plan.reach import Reach
from hpcgnn.plan.shape import Ends, Entries
from hpcgnn.plan.survey import kept_rows
from hpcgnn.plan.traffic import PatternKey
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.sparse.pieces import distinct
from hpcgnn.spmm import PushedEntries
from hpcgnn.spmm.cover import Cover
from hpcgnn.typing import Array, GlobalIndices, Mask

_ROUNDS = 8
"""In which neighbours that were drawn twice are drawn again."""


class DrawnRow:
    """The rows of a part: neighbours in proportion to their degrees, each at most once.

    Parameters
    ----------
    parts, part
        Of all, and the one that is drawn.
    entries
        Of the matrix.
    reach
        The active sets.
    loops
        Whether nodes aggregate from themselves, too.
    by_relation
        Whether rows are told apart by relation; those without entries are then left out.
    """

    def __init__(
        self,
        parts: DrawnParts,
        part: int,
        entries: Sequence[Entries],
        reach: Reach,
        *,
        loops: bool,
        by_relation: bool,
    ) -> None:
        self.parts, self.part, self._entries, self._reach = parts, part, entries, reach
        self._row_map, self._by_relation = RowMap(parts.starts, part), by_relation
        self._num_relations = 1 + max(each.relation for each in entries)
        rng = np.random.default_rng([part, 2])
        count = self._row_map.num_local
        found = [self._draw(each, rng) for each in entries]
        if loops:
            nodes = np.arange(count, dtype=np.int64)
            found.append(nodes * self._row_map.num_rows + nodes + self._row_map.start)
        keys = distinct(np.concatenate(found)) if len(found) > 1 else found[0]
        self._rows, self._columns = np.divmod(keys, self._row_map.num_rows)
        self._chance = rng.random(count)
        self.sets: tuple[Mask, ...] = self._active() if reach.depth else ()
        self.trained: Mask = self._in_set(reach.depth)

    def _degrees(self, kind: int) -> dict[Ends, Array]:
        """Return the degrees of the nodes of a type by each of its ends."""
        ends = [e for each in self._entries for e in (each.rows, each.columns) if e.type == kind]
        return {each: self.parts[each].degrees_of(self.part) for each in dict.fromkeys(ends)}

    def _draw(self, entries: Entries, rng: np.random.Generator) -> GlobalIndices:
        """Return (entries,) int64 keys: row times all nodes, and column."""
        parts, part, all_nodes = self.parts, self.part, self._row_map.num_rows
        nodes = parts.nodes_of(entries.rows.type, part)
        degrees = parts[entries.rows].degrees_of(part)
        # Degrees of a law's classes are means; a node has one of the two next to it.
        wanted = np.floor(degrees + rng.random(len(degrees))).astype(np.int64)
        columns, first = parts[entries.columns], parts.first[entries.columns.type]
        kept, missing = np.empty(0, np.int64), wanted
        for _ in range(_ROUNDS):
            rows = np.repeat(np.arange(len(wanted)), missing)
            own = rng.random(len(rows)) >= entries.outside
            owners, numbers = columns.draw(part, own, rng)
            found = first[owners] + numbers
            fits = (owners >= 0) & (found != rows + nodes.start + self._row_map.start)
            kept = distinct(np.append(kept, rows[fits] * all_nodes + found[fits]))
            missing = wanted - np.bincount(kept // all_nodes, minlength=len(wanted))
            if missing.sum() <= wanted.sum() // 1000:
                break
        shift = entries.relation * self._row_map.num_local + nodes.start
        return np.asarray(kept + shift * all_nodes)

    def _in_set(self, level: int | None) -> Mask:
        """Return (nodes,) which are in a set, but for what entries say."""
        chances = [
            self._reach.of_nodes(level, kind, self._degrees(kind))
            for kind in range(len(self.parts.sizes))
        ]
        return np.asarray(self._chance < np.concatenate(chances))

    def _active(self) -> tuple[Mask, ...]:
        sets = [self._in_set(self._reach.depth)]
        for level in range(self._reach.depth - 1, -1, -1):
            # Sets grow: the same number decides of a node in all of them.
            found = self._in_set(level) | sets[0]
            read = self._columns[np.tile(sets[0], self._num_relations)[self._rows]]
            found[self._row_map.to_local(read[self._row_map.is_local(read)])] = True
            sets.insert(0, found)
        return tuple(sets)

    def _sets_of(self, key: PatternKey) -> tuple[Mask, Mask]:
        """Return (columns, rows) of a pattern."""
        place, _ = key
        if place is None:
            everything = np.ones(self._row_map.num_local, np.bool_)
            return everything, everything
        return self.sets[place], self.sets[place + 1]

    def pattern(self, key: PatternKey) -> DistCSR:
        """Return the matrix of a pattern."""
        row_map, (inputs, outputs) = self._row_map, self._sets_of(key)
        chosen = np.tile(outputs, self._num_relations)
        if self._by_relation:
            occupied = np.zeros(len(chosen), np.bool_)
            occupied[self._rows] = True
            chosen &= occupied
        kept = chosen[self._rows]
        rows, columns = self._rows[kept], self._columns[kept]
        compact = self._by_relation or key[0] is not None
        row_nodes, column_nodes = np.flatnonzero(chosen), np.flatnonzero(inputs)
        indptr = np.append(np.searchsorted(rows, row_nodes), len(rows)).astype(np.int64)
        local = row_map.is_local(columns)
        own = np.searchsorted(column_nodes, columns[local] - row_map.start).astype(np.int32)
        ghosts, numbers = np.unique(columns[~local], return_inverse=True)
        shape = len(row_nodes), len(column_nodes)
        remote = (shape[0], len(ghosts))
        return DistCSR(
            row_map,
            kept_rows(indptr, local, own, None, shape, compact=compact),
            kept_rows(indptr, ~local, numbers.astype(np.int32), None, remote),
            ghosts,
            row_nodes.astype(np.int32) if compact else None,
            column_nodes.astype(np.int32) if compact else None,
            self._num_relations,
        )

    def left_here(
        self, key: PatternKey, cover: Cover, pattern: DistCSR, reverse: Callable[[Array], Array]
    ) -> PushedEntries:
        """Return what others would leave to this rank: what it would leave of the transpose.

        Parameters
        ----------
        key, pattern
            The pattern, and its matrix.
        cover
            Of the exchange.
        reverse
            Returns the relation of the entries of the transpose.
        """
        row_map, (inputs, _) = self._row_map, self._sets_of(key)
        owners = row_map.owner(self._columns)
        relations, nodes = np.divmod(self._rows, row_map.num_local)
        here = (owners != row_map.block) & inputs[nodes]
        if key[0] is not None:
            # Of the others' rows some are active, and only they know which.
            share = np.array([self._reach.active(key[0] + 1, each) for each in self._entries])
            ghosts, numbers = np.unique(self._columns, return_inverse=True)
            drawn = np.random.default_rng([self.part, 4]).random(len(ghosts))[numbers]
            by_relation = np.array([each.relation for each in self._entries])
            several = np.array([share[by_relation == r].mean() for r in range(self._num_relations)])
            here &= drawn < several[reverse(relations)]
        far, owners, nodes = self._columns[here], owners[here], nodes[here]
        relations = reverse(relations[here])
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
