"""A graph known only by its shape: exchanged rows are expectations, and block rows are drawn.

The expected rows that ranks need from each other follow from degrees, see `DrawnParts`. A rehearsed
rank gets a random block row (the model of Chung and Lu), see `DrawnRow`. The savings of a cover are
measured in a few drawn block rows and interpolated by their non-zeros.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
from typing_extensions import override

from hpcgnn.comm import GridPosition, RowMap
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import GraphFacts, restricted_aggregations, shape_for
from hpcgnn.nn import find_model
from hpcgnn.operator import on_graph
from hpcgnn.plan.graph_shape import EntryShape, RelationShape, Shape
from hpcgnn.plan.objectives import PlannedObjective
from hpcgnn.plan.planned_graph import OwnEdges, PlannedGraph, Survey
from hpcgnn.plan.random_graph import DrawnParts, DrawnRow, Reach
from hpcgnn.plan.simulated_peers import Answers, PatternShare
from hpcgnn.plan.traffic import ALL, BlockPairs, PatternKey, Ranks, Traffic
from hpcgnn.sparse import EdgeTable
from hpcgnn.sparse.pieces import distinct
from hpcgnn.spmm import CoverSplit, find_method
from hpcgnn.spmm.cover import Cover, all_columns, all_rows
from hpcgnn.storage import NodeBlock
from hpcgnn.storage import Split as Role
from hpcgnn.support import Trait, union
from hpcgnn.train.tasks import find_pair
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask, Offsets


class DegreeGraph(PlannedGraph):
    """A shape as a configuration trains on it; its exchange matters only for active sets.

    Raises `InputError` if the configuration needs anything that degrees do not determine.
    """

    counts_by = Trait.PLANNED_FROM_DEGREES

    def __init__(self, config: Config, shape: Shape) -> None:
        self._shape, self._objective = shape, find_pair(config.train.task).objective
        self._dtype = config.train.dtype
        edges = _chosen(config, shape)
        directed = any(edge_type.is_directed for edge_type in edges) and not config.graph.undirected
        model = find_model(config.model.name)
        self.aggregations = on_graph(model.aggregations, directed=directed)
        self.by_relation = any(a.by_relation for a in self.aggregations)
        # Whether nodes aggregate from themselves too.
        self.loops = any(a.self_loops for a in self.aggregations)
        # `reverses` are the relations of the reverse edges.
        self.entries, names, self.reverses = _entries(config, edges, self.by_relation)
        self.num_relations = len(names) or 1
        structural = config.graph.num_structural
        bare = len(shape.types) == 1 and not shape.types[0].num_features + structural
        self._types = shape.types if bare or len(shape.types) > 1 else ()
        num_edges = (
            sum(entries.rows.total for entries in self.entries) + self.loops * shape.num_nodes
        )
        self.facts = GraphFacts(
            name=shape.name,
            fingerprint="",
            num_nodes=shape.num_nodes,
            num_edges=round(num_edges),
            num_features=0 if self._types else shape.types[0].num_features + structural,
            num_classes=shape.num_classes,
            multi_label=False,
            directed=directed,
            num_parts=0,
            class_names=(),
            relations=names,
            type_names=tuple(node_type.name for node_type in self._types),
            type_nodes=tuple(node_type.num_nodes for node_type in self._types),
            type_features=tuple(node_type.num_features for node_type in self._types),
            labelled_types=tuple(node_type.name for node_type in self._types[:1]),
            num_edge_features=self._edge_width(config, edges),
        )
        sizes = shape_for(config, self.facts)
        last = restricted_aggregations(config, sizes)
        depth = model.num_aggregations(sizes) if last else 0
        training = np.zeros(len(shape.types))
        training[0] = shape.training
        self.reach = Reach(training, self.entries, depth, last)
        self.store_bytes = shape.store_bytes
        self._parts: DrawnParts | None = None
        # The last block rows that were drawn, for a cover or a rehearsal.
        self._drawn: deque[DrawnRow] = deque(maxlen=2)

    def _edge_width(self, config: Config, edges: Sequence[RelationShape]) -> int:
        """Return the width of edge features that the model reads; `InputError` if missing."""
        width = edges[0].num_features
        needed = Trait.STORED_EDGE_FEATURES in union(find_model(config.model.name)).needs
        if width == 0 and (needed or config.model.edge_features):
            raise InputError(
                f"shape {self._shape.name}: {config.model.name} reads features of edges, which "
                "have none; give their number as features = N in [edges.NAME]"
            )
        messages = any(a.passes_messages for a in self.aggregations)
        return width if messages or config.model.edge_features else 0

    @override
    def own_edges(self, patterns: Mapping[PatternKey, PatternShare], block: int) -> OwnEdges:
        width, attends = self.facts.num_edge_features, all(a.attends for a in self.aggregations)
        rng = np.random.default_rng([block, 7])
        if not attends and not any(a.passes_messages for a in self.aggregations):
            rows = patterns[ALL].block.row_map.num_local
            return OwnEdges(patterns, means=rng.random((rows, width)) if width else None)
        if attends and not width:
            return OwnEdges(patterns)
        numbered = {}
        for key, share in patterns.items():
            inner = share.block.diagonal.nnz
            values = np.split(np.arange(share.block.nnz, dtype=np.float64), [inner])
            numbered[key] = replace(share, block=share.block.with_values(*values))
        table = EdgeTable(rng.random((patterns[ALL].block.nnz, width)).astype(self._dtype))
        return OwnEdges(numbered, table)

    @override
    def largest(self) -> Mapping[PatternKey, tuple[float, float]]:
        most = (float(max(ends.degrees[-1] for ends in (e.rows, e.columns))) for e in self.entries)
        return dict.fromkeys(self.keys, (sum(most) + self.loops,) * 2)

    def parts(self, blocks: int) -> DrawnParts:
        """Return the parts for a number of block rows; the most recent ones are kept."""
        if self._parts is None or self._parts.num_parts != blocks:
            self._parts = DrawnParts(self._shape, blocks)
        return self._parts

    def block_row(self, blocks: int, part: int) -> DrawnRow:
        """Return the drawn block row of a part; the two most recent are kept."""
        parts = self.parts(blocks)
        for row in self._drawn:
            if row.parts is parts and row.part == part:
                return row
        kinds = {"loops": self.loops, "by_relation": self.by_relation}
        self._drawn.append(DrawnRow(parts, part, self.entries, self.reach, **kinds))
        return self._drawn[-1]

    @property
    @override
    def keys(self) -> tuple[PatternKey, ...]:
        return (ALL, *self.reach.keys)

    @override
    def survey(self, key: PatternKey, ranks: Ranks) -> "DegreeSurvey":
        return DegreeSurvey(self, ranks.num_blocks, key)

    @override
    def row_starts(self, blocks: int) -> Offsets:
        return self.parts(blocks).starts

    @override
    def trains(self, starts: Offsets) -> Array:
        return np.asarray(self._shape.training * self.parts(len(starts) - 1).sizes[0])

    @override
    def predicted(self, starts: Offsets, block: int) -> PlannedObjective:
        return PlannedObjective(self._objective)

    @override
    def sets(self, row_map: RowMap) -> tuple[Mask, ...]:
        return self.block_row(row_map.num_blocks, row_map.block).sets

    @override
    def read_nodes(self, row_map: RowMap) -> NodeBlock:
        part = row_map.block
        row, rng = self.block_row(row_map.num_blocks, part), np.random.default_rng([part, 3])
        labels = rng.integers(0, self._shape.num_classes, row_map.num_local)
        sizes = row.parts.sizes[:, part]
        features = tuple(
            rng.random((int(size), node_type.num_features), np.float32)
            for size, node_type in zip(sizes, self._shape.types, strict=True)
        )
        return NodeBlock(
            row_map.start,
            row_map.stop,
            None if self._types else features[0],
            np.where(row.trained, labels, -1).astype(np.int32),
            np.where(row.trained, Role.TRAIN, Role.NONE).astype(np.uint8),
            np.arange(row_map.start, row_map.stop, dtype=np.int64),
            np.repeat(np.arange(len(sizes)), sizes).astype(np.uint8) if self._types else None,
            features if self._types else (),
        )


class DegreeSurvey(Survey):
    """Expected exchanges for a pattern; the exchange method has `PLANNED_FROM_DEGREES`."""

    def __init__(self, graph: DegreeGraph, blocks: int, key: PatternKey) -> None:
        self._graph, self._parts, self._key = graph, graph.parts(blocks), key
        self._inputs = key[0]
        self._outputs = None if key[0] is None else key[0] + 1
        self._traffic: Traffic | None = None

    @override
    def traffic(self, ranks: Ranks) -> Traffic:
        if self._traffic is None:
            self._traffic = self._expected(ranks)
        return self._traffic

    def _expected(self, ranks: Ranks) -> Traffic:
        blocks, method = ranks.num_blocks, find_method(ranks.exchange.method)
        fetched, pushed = _PairCounts(blocks, 5), _PairCounts(blocks, 6)
        if method.received is None:
            fetched.fill(lambda _: self._columns)
        elif method.cover is all_columns:
            fetched.fill(self._ghosts())
        elif method.cover is all_rows:
            pushed.fill(self._sums())
        else:
            # A hub's row is pushed and its column fetched, whether or not the other side has hubs.
            # So the shares depend on the reader only.
            used, left = self._covered(blocks, method.cover)
            by, of = _totals(self._ghosts(), blocks)
            share_of = of / max(of.sum(), 1)
            fetched.fill(lambda readers: (used * by)[readers, None] * share_of)
            rows, _ = _totals(self._sums(), blocks)
            pushed.fill(lambda readers: (left * rows)[readers, None] / blocks)

        def pieces() -> Iterator[BlockPairs]:
            for readers in _pieces(blocks):
                yield BlockPairs.table(readers.start, fetched.rows(readers), pushed.rows(readers))

        none = np.zeros((2, 2, blocks, 1, 1), np.int64)
        entries = np.rint(self._entries).astype(np.int64)
        sizes = round(self._rows.sum()), round(self._columns.sum())
        return Traffic(pieces, none, entries, *sizes)

    def _covered(self, blocks: int, cover: Cover) -> tuple[Array, Array]:
        """Return (blocks,) the shares of ghosts fetched, and of pairs of row and rank pushed.

        Parts with hubs push more. A few parts are drawn, most of them with many non-zeros, and the
        shares of others are interpolated by their non-zeros.
        """
        order = np.argsort(self._entries, kind="stable")
        count = min(max(blocks // _DRAWN_SHARE, 1), _DRAWN_PARTS)
        ranks = blocks - np.geomspace(max(blocks // 2, 1), 1, count).astype(np.int64)
        drawn = order[ranks if count == 1 else np.append(0, ranks)]
        shares = np.array([self._covered_of(blocks, int(part), cover) for part in drawn])
        used, pushed = (np.interp(self._entries, self._entries[drawn], e) for e in shares.T)
        return used, pushed

    def _covered_of(self, blocks: int, part: int, cover: Cover) -> tuple[float, float]:
        pattern = self._graph.block_row(blocks, part).pattern(self._key)
        split = CoverSplit.of(pattern, cover)
        owners = pattern.row_map.owner(pattern.ghosts)[pattern.remote.indices]
        pairs = pattern.remote.entry_rows() * np.int64(blocks) + owners
        sums = len(distinct(pairs[split.pushed])) / max(len(distinct(pairs)), 1)
        return split.used.sum() / max(len(pattern.ghosts), 1), sums

    @override
    def share(self, ranks: Ranks, position: GridPosition) -> PatternShare:
        blocks, part = ranks.num_blocks, position.block
        method, traffic = find_method(ranks.exchange.method), self.traffic(ranks)
        row = self._graph.block_row(blocks, part)
        matrix = row.pattern(self._key)
        whole = self._key == ALL and not self._graph.by_relation
        matrix = replace(matrix, symmetric=whole and not self._graph.facts.directed)
        split = CoverSplit.of(matrix, method.cover)
        starts, rng = ranks.starts, np.random.default_rng([part, 6])
        nothing, none = np.empty(0, np.int64), np.empty(0, np.int32)
        if method.received is None:
            ghosts = matrix.ghosts
            owners = matrix.row_map.owner(ghosts)
            # Owners' arrays hold their active nodes, which are not drawn: estimate the rows.
            sizes = np.rint(self._columns).astype(np.int64)
            sizes[part] = matrix.shape[1]
            columns = (ghosts - starts[owners]) * sizes[owners] // np.diff(starts)[owners]
            of_arrays = Answers(none, nothing, none, none, (), (), sizes, columns.astype(np.int32))
            return PatternShare(matrix, traffic.operator_size, of_arrays, of_arrays, None)

        def answers(rows: GlobalIndices, sent: Array, received: Array) -> Answers:
            peers = np.flatnonzero((sent > 0) | (received > 0)).astype(np.int32)
            out, into = (counts[peers].astype(np.int32) for counts in (sent, received))
            return Answers(peers, rows, out, into, (), (), np.diff(starts))

        sent = traffic.served(part)
        owners = matrix.row_map.owner(matrix.ghosts[split.used])
        received = np.bincount(owners, minlength=blocks)
        own = matrix.column_nodes
        own = np.arange(matrix.shape[1], dtype=np.int32) if own is None else own
        if not len(own):
            sent = np.zeros_like(sent)
        requested = own[rng.integers(0, max(len(own), 1), int(sent.sum()))] + starts[part]
        fetch, pushed = answers(requested.astype(np.int64), sent, received), None
        if not traffic.moved["pushed"][0][0].any():
            return PatternShare(matrix, traffic.operator_size, fetch, fetch, None)
        pushed = row.left_here(self._key, method.cover, matrix, self._graph.reverses)
        rows, _ = split.pushed_entries(matrix)
        num_rows = np.int64(matrix.result_map.num_rows)
        owners, rows = np.divmod(
            np.unique(split.owners_of_pushed(matrix) * num_rows + rows), num_rows
        )
        sent = np.bincount(owners, minlength=blocks)
        received = np.bincount(matrix.result_map.owner(pushed.targets), minlength=blocks)
        push = answers(rows, sent, received)
        return PatternShare(matrix, traffic.operator_size, fetch, push, pushed)

    @cached_property
    def _columns(self) -> Array:
        """(blocks,) number of columns of each block row."""
        shares = [self._graph.reach.of_type(self._inputs, t) for t in range(len(self._parts.sizes))]
        return np.asarray(np.array(shares) @ self._parts.sizes)

    @cached_property
    def _rows(self) -> Array:
        """(blocks,) number of rows of each block row."""
        parts, reach, rows = self._parts, self._graph.reach, np.zeros(len(self._columns))
        if not self._graph.by_relation:
            shares = [reach.of_type(self._outputs, t) for t in range(len(parts.sizes))]
            return np.asarray(np.array(shares) @ parts.sizes)
        for entries in self._graph.entries:
            # Rows without entries are left out.
            shares_kept = reach.of_degrees(self._outputs, entries.rows) * (entries.rows.degrees > 0)
            rows += parts[entries.rows].drawn @ shares_kept
        return rows

    @cached_property
    def _entries(self) -> Array:
        """(blocks,) number of non-zeros of each block row."""
        counts = self._graph.loops * self._rows
        for entries in self._graph.entries:
            ends = entries.rows
            active = ends.degrees * self._graph.reach.of_degrees(self._outputs, ends)
            counts = counts + self._parts[ends].drawn @ active
        return np.asarray(counts)

    def _ghosts(self) -> "_PerReader":
        """Return the function for the expected nodes of each block row that readers read."""
        reach, parts = self._graph.reach, self._parts
        sets = []
        for entries in self._graph.entries:
            columns, active = parts[entries.columns], reach.active(self._outputs, entries)
            reached = columns.reached(parts[entries.rows], active, entries.outside)
            sets.append(((entries.columns.type, 0), reached.by))

        def nodes(readers: slice) -> FloatArray:
            return _united(sets, lambda kind: parts.sizes[kind], readers)

        return nodes

    def _sums(self) -> "_PerReader":
        """Return the function for the expected rows of readers that read each block row."""
        reach, parts = self._graph.reach, self._parts
        sets = []
        for entries in self._graph.entries:
            rows, weights = parts[entries.rows], reach.of_degrees(self._outputs, entries.rows)
            reached = rows.reached(parts[entries.columns], 1.0, entries.outside, weights)
            sets.append(((entries.rows.type, entries.relation), reached.of))

        def rows_of(readers: slice) -> FloatArray:
            return _united(sets, lambda kind: parts.sizes[kind, readers, None], readers)

        return rows_of


_PerReader: TypeAlias = Callable[[slice], FloatArray]
"""Maps a range of m readers to their needs (m, blocks) from each block row."""

_DRAWN_PARTS, _DRAWN_SHARE = 12, 8
"""Most parts drawn for a cover, beside the emptiest, and the number of parts per drawn one."""

_PAIRS = 1 << 20
"""Number of pairs in a piece of `Traffic`."""


def _pieces(blocks: int) -> Iterator[slice]:
    step = max(_PAIRS // blocks, 1)
    for start in range(0, blocks, step):
        yield slice(start, min(start + step, blocks))


def _totals(needs: _PerReader, blocks: int) -> tuple[FloatArray, FloatArray]:
    """Return (blocks,) the sums of needs by reader, and by owner."""
    pieces = [(piece.sum(axis=1), piece.sum(axis=0)) for piece in map(needs, _pieces(blocks))]
    of_readers, of_owners = zip(*pieces, strict=True)
    return np.concatenate(of_readers), np.sum(of_owners, axis=0)


class _PairCounts:
    """Integers for all pairs of block rows, in the smallest sufficient dtype; initially zeros."""

    def __init__(self, blocks: int, stream: int) -> None:
        self._blocks, self._stream = blocks, stream
        self._rows: list[Array] = []

    def fill(self, expected: _PerReader) -> None:
        """Round expectations up or down at random; a block row needs nothing from itself.

        With many ranks, most pairs exchange less than a row. `expected` may return a single row or
        a single column.
        """
        rng = np.random.default_rng([self._blocks, self._stream])
        for readers in _pieces(self._blocks):
            drawn = rng.random((readers.stop - readers.start, self._blocks))
            counts = np.floor(expected(readers) + drawn).astype(np.int64)
            own = np.arange(readers.start, readers.stop)
            counts[own - readers.start, own] = 0
            self._rows.append(counts.astype(np.min_scalar_type(counts.max(initial=0))))

    def rows(self, readers: slice) -> Array:
        """Return (1, m, blocks) the numbers of a piece."""
        if not self._rows:
            return np.zeros((1, readers.stop - readers.start, self._blocks), np.uint8)
        return self._rows[readers.start // max(_PAIRS // self._blocks, 1)][None]


def _united(
    sets: Sequence[tuple[tuple[int, int], _PerReader]],
    sizes: Callable[[int], Array],
    readers: slice,
) -> FloatArray:
    """Return (m, blocks) the expected size of the union of sets of nodes.

    `sets` are pairs of a key, the nodes' type and relation, and a function for the nodes that some
    entries reach. `sizes` maps a type to its number of nodes.
    """
    total: Any = 0.0
    for key in dict.fromkeys(key for key, _ in sets):
        size = np.maximum(sizes(key[0]), 1)
        same = [reached(readers) for other, reached in sets if other == key]
        total = total + size * (1 - prod(1 - reached / size for reached in same))
    return np.asarray(total)


def _chosen(config: Config, shape: Shape) -> list[RelationShape]:
    names = [edge_type.name for edge_type in shape.edges]
    for name in config.graph.relations:
        if name not in names:
            raise InputError(f"graph.relations: {shape.name} has {', '.join(names)}, not {name!r}")
    relations = config.graph.relations or names
    return [edge_type for edge_type in shape.edges if edge_type.name in relations]


def _entries(
    config: Config, edges: list[RelationShape], by_relation: bool
) -> tuple[list[EntryShape], tuple[str, ...], LocalIndices]:
    """Return the entries of the matrix, the relations it distinguishes, and their reverses."""
    entries, names = [], [edge_type.name for edge_type in edges] if by_relation else []
    count = len(edges)
    reverses = np.arange(max(len(names), 1), dtype=np.int32)
    doubled = by_relation and config.graph.reverse and not config.graph.undirected
    for number, edge_type in enumerate(edges):
        relation = number if by_relation else 0
        entries.append(
            EntryShape(edge_type.targets, edge_type.sources, relation, edge_type.outside)
        )
        if not edge_type.is_directed:
            continue
        if not (config.graph.undirected or doubled):
            raise InputError(
                f"the edges {edge_type.name} go one way, and a single direction is not planned "
                "from degrees: set graph.undirected=true, or give degrees of edges both ways"
            )
        back = relation + count * doubled
        entries.append(EntryShape(edge_type.sources, edge_type.targets, back, edge_type.outside))
    if doubled and any(edge_type.is_directed for edge_type in edges):
        names += [f"{name} reversed" for name in names]
        reverses = np.append(np.arange(count, 2 * count), np.arange(count)).astype(np.int32)
    return entries, tuple(names), reverses


def outside_of(degrees: Array, blocks: int, rows: float) -> tuple[float, float]:
    """Return the `RelationShape.outside` at which `rows` are exchanged, and rows of random parts.

    `degrees` (nodes,) count edges both ways; `rows` is the number of rows that all block rows read
    from others in a product.
    """
    values, counts = np.unique(degrees, return_counts=True)

    def expected(outside: float) -> float:
        missed = (1 - 1 / blocks) ** (outside * values)
        return float((blocks - 1) * ((1 - missed) @ counts))

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle) < rows else (low, middle)
    return high, expected(1.0)
