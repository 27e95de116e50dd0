"""Read the edges of a source, check and count them, and send each to the rank of its row."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hpcgnn import watchdog
from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.console import report
from hpcgnn.convert.columns import row_progress
from hpcgnn.convert.read.arrays import Narrowing
from hpcgnn.convert.resume import SavedConversion
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, EdgeStream, GraphSource
from hpcgnn.errors import InputError
from hpcgnn.kernels.mixing import split_mix
from hpcgnn.storage import (
    EdgeBuilder,
    EdgeColumns,
    EdgeData,
    SortedRows,
    SpillFile,
    Split,
    StoreWriter,
    both_ways,
    finite_weights,
    first_true,
)
from hpcgnn.typing import Array, GlobalIndices

_LARGEST_ID = (1 << 32) - 1
"""The largest id that `EdgeBuilder` sorts."""

_NO_IDS = np.zeros(0, np.int64)
_NO_EDGES = EdgeChunk(_NO_IDS, _NO_IDS, str)

SAVE_EVERY_S = 300.0
"""Seconds between two saves of what a resumable conversion has read."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the name of the input before the message of an `InputError` raised by `storage`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def role_sizes(counts: Array) -> dict[str, int]:
    """Return the sizes of a split's sets by name, from counts indexed by `Split`."""
    return {part.name.lower(): int(counts[part]) for part in Split if part != Split.NONE}


@dataclass(slots=True)
class _Counts:
    """Counts of what one rank has read, up to the order `end`; `done` once it has read all.

    `largest` is the largest id among edges of weight 0, which reach no builder.
    """

    edges: int = 0
    zero: int = 0
    loops: int = 0
    largest: int = -1
    end: int = 0
    done: bool = False


class EdgeFeed:
    """One pass over the edges of `source`, which hands each edge to a builder on its row's rank.

    Afterwards `num_nodes` is that of the source, or one more than the largest id; `num_edges`
    counts the edges read, `num_zero` those left out because their weight is 0 (a zero is no entry
    of the adjacency), `num_loops` the self-loops among the rest, and `undirected` tells whether
    every stored edge has its reverse. If `source.keeps_places`, `places` (E,) uint64 holds the
    positions of the stored edges in the input, see `split_places`.
    """

    def __init__(
        self,
        source: GraphSource,
        options: ConvertOptions,
        ranks: RankGroup = ONE_PROCESS,
        parts: SavedConversion | None = None,
    ) -> None:
        self._source, self._reverse, self._ranks = source, options.reverse, ranks
        self._parts, self._saved_at = parts, time.monotonic()
        self._mirrors = options.undirected or source.undirected
        kinds = [source.columns.get(name, EdgeColumns()) for name in source.relations]
        # Of duplicates with unequal weights, the first may differ between a pair and its reverse.
        unequal = any(columns.weighted for columns in kinds) and options.duplicates == "first"
        # Likewise, an edge and its reverse may keep different labels.
        labelled = any(columns.num_labels > 0 for columns in kinds)
        self._watches = not (self._mirrors or unequal or labelled)
        self._symmetry, self._counts = SymmetryCheck(), _Counts()
        self._starts = np.zeros(1, np.int64)
        self.link_split: dict[str, int] = {}
        self._roles = np.zeros(len(Split), np.int64)
        self.undirected = self._mirrors
        self.num_nodes = source.num_nodes or 0
        self.num_edges = self.num_zero = self.num_loops = 0
        # Edges sent to other ranks arrive out of order: keep positions if the order matters.
        ordered = ranks.moves_rows and options.duplicates != "error"
        self._of_features = Narrowing(np.dtype(np.float32), "feature {} of the edge")
        self._of_targets = Narrowing(
            np.dtype(np.float32),
            "number {} of the edge",
            "subtract a constant from such numbers",
            missing=True,
        )
        self._columns = [
            replace(
                columns,
                ordered=ordered and (columns.weighted or columns.has_data),
                placed=source.keeps_places,
            )
            for columns in kinds
        ]
        self._written: SpillFile | None = None
        self.places: Array = _NO_IDS
        # With names, their index takes most of the memory.
        share = len(source.relations) * (1 if source.nodes.names is None else 4)
        with naming(source.path):
            self.builders = {
                name: EdgeBuilder(
                    source.num_nodes,
                    self_loops=options.self_loops,
                    duplicates=options.duplicates,
                    columns=columns,
                    memory_bytes=options.memory_bytes // share,
                    scratch=None if parts is None else parts.file(number),
                )
                for number, (name, columns) in enumerate(
                    zip(source.relations, self._columns, strict=True)
                )
            }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for builder in self.builders.values():
            builder.close()

    def run(self) -> None:
        """Read all edges; raises `InputError` that locates a faulty one."""
        state = None if self._parts is None else self._parts.state()
        if state is not None:
            self._restore(state)
        else:
            self._starts = np.append(0, self._ranks.borders(self._sampled_rows))
        if not self._counts.done:
            end = self._counts.end
            read_on = self._source.edges_after if end else None
            # Close at once on an error, so that the progress display ends before the message.
            with closing(self._source.edges() if read_on is None else read_on(end)) as chunks:
                self._read(chunks)
            self._counts.done = True
            self._save()
        self._sum_up()
        with self._ranks.agree():
            if self.num_edges == self.num_zero:
                which = " but those of weight 0" if self.num_zero else ""
                raise InputError(
                    f"{self._source.path}: the graph has no edges{which}; check the input"
                )

    @property
    def rows(self) -> range:
        """The rows whose edges this rank holds."""
        bounds = np.append(np.minimum(self._starts, self.num_nodes), self.num_nodes)
        rank = self._ranks.rank
        return range(int(bounds[rank]), int(bounds[rank + 1]))

    def count(self) -> dict[str, int]:
        """Return how many non-zeros this rank's rows of each relation have."""
        rows = self.rows
        with naming(self._source.path):
            return {
                name: edges.count(rows.start, rows.stop) for name, edges in self.builders.items()
            }

    def declare(self, writer: StoreWriter) -> None:
        """Append a block without rows for each relation."""
        for relation, builder in self.builders.items():
            writer.append_rows(builder.no_rows(), relation)

    def write(self, writer: StoreWriter) -> dict[str, int]:
        """Append this rank's rows of each relation; return how many non-zeros they have."""
        rows, num_edges = self.rows, dict.fromkeys(self.builders, 0)
        if self._source.keeps_places:
            self._written = SpillFile(None)
        for relation, builder in self.builders.items():
            title = f"writing edges {relation}".rstrip()
            progress = row_progress(title, len(rows), quiet=self._ranks.rank > 0)
            first = rows.start
            with progress, naming(self._source.path):
                for block in builder.blocks(rows.start, rows.stop):
                    writer.append_rows(block, relation)
                    if self._written is not None and block.data.place is not None:
                        self._written.append(block.data.place)
                    num_edges[relation] += block.num_edges
                    self._roles += self._roles_of(block, first)
                    first += block.num_rows
                    progress.advance(block.num_rows)
                    watchdog.beat()
        return num_edges

    def _roles_of(self, block: SortedRows, first: int) -> Array:
        """Return how many edges have each role in rows from `first` on; added reverses are none."""
        roles = block.data.split
        if roles is None:
            return np.zeros(len(Split), np.int64)
        if self._mirrors:
            rows = np.repeat(first + np.arange(block.num_rows), np.diff(block.indptr))
            roles = roles[block.indices <= rows]
        return np.bincount(roles, minlength=len(Split))

    def sum_roles(self) -> None:
        """Add up the roles of the edges that all ranks have written; collective."""
        roles = self._ranks.sum(self._roles)
        self.link_split = role_sizes(roles) if roles.any() else {}

    def gather_places(self) -> None:
        """Collect `places` of all ranks on the first rank; collective, after `write`."""
        if self._written is not None:
            count = self._written.size // 8
            own = self._written.mapped(np.uint64, 0, count) if count else _NO_IDS.view(np.uint64)
            (self.places,) = self._ranks.exchange(np.zeros(count, np.int32), own)

    def _sampled_rows(self) -> GlobalIndices:
        """Return the rows of a sample of this rank's edges; collective."""
        source = self._source
        with closing(source.edges() if source.sample is None else source.sample()) as chunks:
            sample = islice(chunks, 1) if source.sample is None else chunks
            rows = [_NO_IDS]
            for chunk in self._ranks.rounds(map(self._checked, sample), lambda: _NO_EDGES):
                ends = (chunk.dst, chunk.src) if self._mirrors else (chunk.dst,)
                rows += [ids.astype(np.int64) for ids in ends]
            return np.concatenate(rows)

    def _read(self, chunks: EdgeStream) -> None:
        """Send each edge to the rank of its row; collective."""
        ranks = self._ranks
        numbers = {name: number for number, name in enumerate(self._source.relations)}
        while True:
            with ranks.agree():
                chunk = next(chunks, None)
            number = -1 if chunk is None else numbers.get(chunk.relation, 0)
            due = time.monotonic() > self._saved_at + SAVE_EVERY_S
            votes = ranks.gather((number, due))
            # Relations differ in the columns they send; if there are several, one rank reads.
            number = max(number for number, _ in votes)
            if number < 0:
                return
            with ranks.agree():
                packed = self._packed(chunk, number)
            arrived = ranks.exchange(*packed)
            with ranks.agree():
                self._keep(self._columns[number], *arrived)
            if chunk is not None:
                self._counts.end = max(self._counts.end, chunk.end)
            if self._source.edges_after is not None and any(due for _, due in votes):
                self._save()

    def _packed(self, chunk: EdgeChunk | None, number: int) -> list[Array]:
        """Return the target ranks of a chunk's edges, then the arrays that `_keep` takes.

        `number` is the relation of the edges, unless the chunk has `relation_ids`.
        """
        columns, counts = self._columns[number], self._counts
        values: Array | None
        if chunk is None or not len(chunk.src):
            # A rank that has read all its edges still takes part, with empty arrays.
            chunk, record = _NO_EDGES, columns.record()
            values = None if record is None else np.empty(0, record)
        else:
            num_read = len(chunk.src)
            order, place = chunk.data.order, counts.edges + np.arange(num_read, dtype=np.uint64)
            data = replace(
                self._narrowed(columns, chunk),
                order=(place if order is None else order) if columns.ordered else None,
                place=place if columns.placed else None,
            )
            chunk = self._checked(replace(chunk, data=data))
            counts.edges += num_read
            counts.zero += num_read - len(chunk.src)
            counts.loops += int(np.count_nonzero(chunk.src == chunk.dst))
            values = columns.pack(chunk.weights, chunk.data)
        arrays = [chunk.src.astype(np.uint32), chunk.dst.astype(np.uint32)]
        if len(self._columns) > 1:
            ids = np.array(number) if chunk.relation_ids is None else chunk.relation_ids
            arrays.append(np.broadcast_to(ids.astype(np.int32), chunk.src.shape))
        if values is not None:
            arrays.append(values)
        if self._mirrors:
            arrays = both_ways(*arrays)
        return [self._ranks.ranks_of(arrays[1], self._starts[1:]), *arrays]

    def _narrowed(self, columns: EdgeColumns, chunk: EdgeChunk) -> EdgeData:
        """Return the data of edges in the dtypes of the store; raises `InputError`."""
        data = chunk.data
        if data.features is not None:
            self._of_features.dtype = np.dtype(columns.dtype)
            data = replace(data, features=self._of_features.rows(data.features, chunk.locate))
        if data.labels is not None and data.labels.dtype.kind == "f":
            data = replace(data, labels=self._of_targets.rows(data.labels, chunk.locate))
        return data

    def _keep(self, columns: EdgeColumns, src: Array, dst: Array, *columns_sent: Array) -> None:
        """Hand edges to the builders of their relations."""
        values = None if columns.record() is None else columns_sent[-1]
        several = len(self._columns) > 1
        for number in np.flatnonzero(np.bincount(columns_sent[0])) if several else (0,):
            edges = np.flatnonzero(columns_sent[0] == number) if several else slice(None)
            weights, data = columns.unpack(None if values is None else values[edges])
            relation = self._source.relations[number]
            self.builders[relation].add(src[edges], dst[edges], weights, data)
            if self._watches:
                self._symmetry.update(src[edges], dst[edges], weights, relation)

    def _checked(self, chunk: EdgeChunk) -> EdgeChunk:
        """Return the edges of a chunk that will be stored; raises `InputError`."""
        source = self._source
        if not len(chunk.src):
            return chunk
        chunk.check_relations(len(source.relations))
        limit = _LARGEST_ID if source.num_nodes is None else source.num_nodes - 1
        remedy = "number the nodes from 0"
        if limit == _LARGEST_ID:
            remedy += ", or give an edge list with --relabel"
        elif source.nodes.series is not None:
            rows = f"fields have {source.num_nodes} rows a step, and need one for each node"
            remedy = f"{rows}; give a row for every node, and {remedy}"
        chunk.check_ends((limit, limit), remedy)
        _check_within_graphs(chunk, source.nodes.graph)
        name = chunk.relation if chunk.relation_ids is None else source.relations[0]
        weights = None
        if name in source.columns and source.columns[name].weighted:
            weights = np.ones(len(chunk.src), np.float32)
            if chunk.weights is not None:
                weights = finite_weights(chunk.weights, chunk.locate)
        ends = (chunk.dst, chunk.src) if self._reverse else (chunk.src, chunk.dst)
        chunk = replace(chunk, src=ends[0], dst=ends[1], weights=weights)
        if weights is None or weights.all():
            return chunk
        zero = weights == 0
        ids = chunk.src[zero].max(), chunk.dst[zero].max()
        self._counts.largest = max(self._counts.largest, *map(int, ids))
        return chunk.take(np.flatnonzero(weights))

    def _save(self) -> None:
        """Save this rank's progress on disk if the conversion is resumable; collective."""
        if self._parts is None:
            return
        with self._ranks.agree():
            state = {
                "builders": {
                    relation: builder.save() for relation, builder in self.builders.items()
                },
                "counts": asdict(self._counts),
                "symmetry": self._symmetry.sums,
                "starts": self._starts.tolist(),
            }
        self._parts.save(state)
        self._saved_at = time.monotonic()

    def _restore(self, state: Mapping[str, Any]) -> None:
        with self._ranks.agree():
            for relation, builder in self.builders.items():
                builder.restore(state["builders"][relation])
        self._counts = _Counts(**state["counts"])
        self._symmetry = SymmetryCheck(state["symmetry"])
        self._starts = np.array(state["starts"], np.int64)
        counts = self._ranks.gather(self._counts.edges)
        if self._ranks.rank == 0:
            report(f"resuming after {sum(counts)} edges that were already sorted")

    def _sum_up(self) -> None:
        """Add up the counts of all ranks, on every rank."""
        total, largest = SymmetryCheck(), -1
        for counts, symmetry in self._ranks.gather((self._counts, self._symmetry)):
            self.num_edges += counts.edges
            self.num_zero += counts.zero
            self.num_loops += counts.loops
            largest = max(largest, counts.largest)
            total.add(symmetry)
        if self._source.num_nodes is None:
            most = max(builder.num_nodes for builder in self.builders.values())
            self.num_nodes = max(*self._ranks.gather(most), largest + 1)
        self.undirected = self._mirrors or (self._watches and total.symmetric)


class SymmetryCheck:
    """Add edges with `update`; `symmetric` then tells whether every relation equals its reverse.

    Each edge u -> v adds h(u, v) - h(v, u) to a 64-bit sum, where h is a hash. The sum is zero if
    each edge occurs as often as its reverse; for any other edges, with probability 2^-64.
    """

    def __init__(self, sums: Mapping[str, int] = MappingProxyType({})) -> None:
        self.sums = dict(sums)

    def update(self, src: Array, dst: Array, weights: Array | None, relation: str = "") -> None:
        """Add edges (m,) with ids below 2^32; a weight is part of its edge."""
        forward, backward = _hash(src, dst, weights), _hash(dst, src, weights)
        change = int(forward.sum()) - int(backward.sum())
        self.sums[relation] = (self.sums.get(relation, 0) + change) % (1 << 64)

    def add(self, check: "SymmetryCheck") -> None:
        """Add the edges of another check."""
        for relation, change in check.sums.items():
            self.sums[relation] = (self.sums.get(relation, 0) + change) % (1 << 64)

    @property
    def symmetric(self) -> bool:
        """Whether each edge so far has occurred as often as its reverse."""
        return not any(self.sums.values())


def _hash(first: Array, second: Array, weights: Array | None) -> NDArray[np.uint64]:
    mixed = split_mix((first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64))
    if weights is not None:
        mixed = split_mix(mixed ^ weights.astype(np.float32).view(np.uint32))
    return mixed


def _check_within_graphs(chunk: EdgeChunk, graph: Array | None) -> None:
    if graph is None:
        return
    sources, targets = graph[chunk.src], graph[chunk.dst]
    if (row := first_true(sources != targets)) is not None:
        raise InputError(
            f"{chunk.locate(row)}: the edge joins graphs {sources[row]} and {targets[row]}; remove "
            "it, or give its nodes one graph"
        )
