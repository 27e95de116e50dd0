"""Graphs of any size, in numbered chunks of edges and blocks of nodes, and the stores of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hpcgnn import watchdog
from hpcgnn.comm import ONE_PROCESS, RankGroup, RowMap
from hpcgnn.console import Progress
from hpcgnn.storage import (
    EdgeBuilder,
    EdgeColumns,
    EdgeData,
    FieldInfo,
    ShareSizes,
    SortedRows,
    Split,
    StoreHeader,
    StoreWriter,
)
from hpcgnn.storage.by_ranks import open_store
from hpcgnn.typing import FloatArray, GlobalIndices, Offsets

CHUNK_EDGES = 1 << 18
"""Edges of one chunk; part of the definition of a graph, as each chunk has its own stream."""

NODE_CHUNK = 1 << 14
"""Nodes of one block; part of the definition of a graph, as each block has its own stream."""

_MIXING_ROUNDS = 4

NodeRows = tuple[FloatArray, NDArray[np.int32], NDArray[np.uint8]]
"""Features (float32), labels and split of consecutive nodes."""


class EdgeChunks(Protocol):
    """The edges of a graph, loops and duplicates included, chunk by chunk."""

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""

    @property
    def num_edges(self) -> int:
        """Return the number of edges of all chunks."""

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""

    def chunk(self, number: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst) of chunk `number`, int64."""


class NodeBlocks(Protocol):
    """What the nodes of a graph have, in blocks of `NODE_CHUNK`, and features of their edges."""

    @property
    def edge_columns(self) -> EdgeColumns:
        """Return what edges have."""

    def edge_features(self, targets: GlobalIndices, sources: GlobalIndices) -> FloatArray:
        """Return the features of edges between nodes (m,), as `edge_columns` says."""

    def append(self, writer: StoreWriter, start: int, own: slice) -> None:
        """Append the rows `own` of the block whose first node is `start`; none declare it."""


def ways(targets: FloatArray, sources: FloatArray, unit: float) -> FloatArray:
    """Return (m, D + 1) float32 the way from targets to sources (m, D), and its length."""
    way = (sources - targets) / unit
    lengths = np.sqrt((way**2).sum(axis=1, keepdims=True))
    return np.concatenate([way, lengths], axis=1).astype(np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldSteps:
    """Fields at nodes in time, made step by step.

    `times` (T,) are in `unit`; trajectory r has the steps `trajectory_starts[r]` to
    `trajectory_starts[r + 1]` - 1. All ranks go through `steps(ranks)`, which yields for each step
    the number of the first of this rank's rows, and those rows (m, F) of each field by name; rows
    rise with the ranks.
    """

    infos: tuple[FieldInfo, ...]
    times: FloatArray
    trajectory_starts: Offsets
    unit: str
    steps: Callable[[RankGroup], Iterator[tuple[int, Mapping[str, FloatArray]]]]

    @classmethod
    def of_equal(
        cls,
        infos: tuple[FieldInfo, ...],
        num_trajectories: int,
        times: FloatArray,
        steps: Callable[[RankGroup], Iterator[tuple[int, Mapping[str, FloatArray]]]],
    ) -> "FieldSteps":
        """Return trajectories that have the same times in seconds."""
        return cls(
            infos=infos,
            times=np.tile(times, num_trajectories),
            trajectory_starts=np.arange(num_trajectories + 1) * times.size,
            unit="s",
            steps=steps,
        )

    def declare(self, writer: StoreWriter) -> None:
        """Say which steps and fields there will be."""
        writer.begin_fields(self.times, self.trajectory_starts, self.unit)
        for info in self.infos:
            none = np.empty((0, info.num_columns), info.dtype)
            writer.append_field(info.name, 0, none, info)

    def append(self, writer: StoreWriter, ranks: RankGroup) -> None:
        """Append all steps, each row by the rank that stores it."""
        with ranks.agree():
            self.declare(writer)
            firsts = {info.name: writer.field_rows(info).start for info in self.infos}
        everywhere = ranks.gather(firsts)
        starts = {name: np.array([counts[name] for counts in everywhere]) for name in firsts}
        quiet = ranks.rank > 0
        with Progress("writing fields", len(self.times), "steps", quiet=quiet) as progress:
            for step, (first, values) in enumerate(self.steps(ranks)):
                for info in self.infos:
                    rows = first + np.arange(len(values[info.name]))
                    owners = np.searchsorted(starts[info.name], rows, side="right") - 1
                    (own,) = ranks.exchange(owners.astype(np.int32), values[info.name])
                    with ranks.agree():
                        writer.append_field(info.name, step, own, info)
                progress.advance()
                watchdog.beat()


class DrawnEdges(ABC):
    """Edges that are drawn, `CHUNK_EDGES` at a time."""

    @property
    @abstractmethod
    def num_edges(self) -> int:
        """Return the number of edges, loops and duplicates included."""

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.num_edges // CHUNK_EDGES)

    def count(self, number: int) -> int:
        """Return how many edges are in chunk `number`."""
        return min(CHUNK_EDGES, self.num_edges - number * CHUNK_EDGES)


def stream(seed: int, number: int, use: int = 0) -> np.random.Generator:
    """Return the random numbers of a chunk or block; those of each `use` are independent."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, number, use]))


def shuffled(
    numbers: GlobalIndices, size: int, seed: int, limits: int | GlobalIndices
) -> GlobalIndices:
    """Return numbers below `limits` in a shuffled order, one-to-one below each limit.

    Multiplying by an odd number and folding the high half onto the low half are both one-to-one
    below a power of two, so no table of the permutation is needed; what lands at or above its limit
    goes on until it lands below. `numbers` are int64, each below its limit; `size`, at least the
    limits, decides the order together with `seed`; there is one limit for all, or one for each.
    """
    bits = max(0, size - 1).bit_length()
    mask, fold = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    draws = stream(seed, 0, 1)
    rounds = [draws.integers(0, 1 << 63, 2, dtype=np.uint64) for _ in range(_MIXING_ROUNDS)]
    mixed = numbers.astype(np.uint64)
    limit = np.broadcast_to(np.asarray(limits, np.uint64), mixed.shape)
    left = np.arange(len(mixed))
    while len(left):
        outside = mixed[left]
        for factor, shift in rounds:
            outside = ((outside + shift) * (factor | np.uint64(1))) & mask
            outside ^= outside >> fold
        mixed[left] = outside
        left = left[outside >= limit[left]]
    return mixed.astype(np.int64)


@dataclass(frozen=True)
class RandomNodes:
    """Node data without meaning, for timing, in blocks of `NODE_CHUNK` with streams of their own.

    Features are standard normal, float32, labels uniform; 0 columns or classes for none. With
    labels goes a split whose nodes are each training, validation or test nodes with probability
    0.6, 0.2 and 0.2.
    """

    num_nodes: int
    num_features: int
    num_classes: int
    seed: int

    def block(self, start: int) -> NodeRows:
        """Return what the nodes of the block whose first one is `start` have."""
        rows = min(NODE_CHUNK, self.num_nodes - start)
        draws = stream(self.seed, start, 2)
        chance = draws.random(rows)
        split = np.full(rows, Split.TEST, np.uint8)
        split[chance < 0.8] = Split.VALID
        split[chance < 0.6] = Split.TRAIN
        labels = self._labels(start, rows, draws)
        return draws.standard_normal((rows, self.num_features), np.float32), labels, split

    def append(self, writer: StoreWriter, start: int, own: slice) -> None:
        """Append the rows `own` of the block whose first node is `start`."""
        features, labels, split = self.block(start)
        if self.num_features:
            writer.append_features(features[own])
        if self.num_classes:
            writer.append_labels(labels[own])
            writer.append_split(split[own])

    @property
    def edge_columns(self) -> EdgeColumns:
        """Return that edges have nothing."""
        return EdgeColumns()

    def edge_features(self, targets: GlobalIndices, _: GlobalIndices) -> FloatArray:
        """Return no columns."""
        return np.empty((len(targets), 0), np.float32)

    def _labels(self, _start: int, rows: int, draws: np.random.Generator) -> NDArray[np.int32]:
        return draws.integers(0, max(1, self.num_classes), rows, dtype=np.int32)


@dataclass(frozen=True)
class StreamedGraph:
    """A graph made chunk by chunk; a rank holds `memory_bytes` of edges, more wait in files."""

    header: StoreHeader
    edges: EdgeChunks
    nodes: NodeBlocks
    memory_bytes: int
    fields: FieldSteps | None = None

    def declare(self, writer: StoreWriter) -> None:
        """Append a block without rows of all that the graph has."""
        writer.append_rows(self.nodes.edge_columns.no_rows())
        self.nodes.append(writer, 0, slice(0, 0))
        if self.fields is not None:
            self.fields.declare(writer)


def write_streamed(path: Path, graph: StreamedGraph, ranks: RankGroup = ONE_PROCESS) -> None:
    """Write a store from edge chunks and node blocks; it does not depend on the number of ranks.

    Loops and duplicates are dropped; an undirected header adds the reverse of every edge. Chunk c
    is drawn by rank c modulo P, and its edges go to the ranks of their rows: P equal ranges. Those
    sort and write them, with what their nodes have. Raises `InputError` where there is no room.
    """
    num_nodes, quiet = graph.header.num_nodes, ranks.rank > 0
    rows = RowMap(ranks.starts(num_nodes), ranks.rank)
    with ExitStack() as stack:
        with ranks.agree():
            builder = EdgeBuilder(
                num_nodes,
                self_loops="drop",
                memory_bytes=graph.memory_bytes,
                scratch=path.absolute().parent,
            )
            stack.enter_context(builder)
        with Progress("drawing edges", graph.edges.num_edges, "edges", quiet=quiet) as progress:
            _draw(graph, ranks, rows, builder, progress)

        def sizes() -> ShareSizes:
            return ShareSizes(rows.num_local, {"": builder.count(rows.start, rows.stop)})

        store = open_store(ranks, path, graph.header, sizes, graph.declare)
        with store as writer:
            with ranks.agree():
                _append(writer, graph, rows, builder, quiet=quiet)
            if graph.fields is not None:
                graph.fields.append(writer, ranks)


def _draw(
    graph: StreamedGraph, ranks: RankGroup, rows: RowMap, builder: EdgeBuilder, progress: Progress
) -> None:
    """Draw all chunks, and give `builder` the edges of this rank's rows."""
    edges = graph.edges
    none = np.empty(0, np.int64)
    chunks = range(ranks.rank, edges.num_chunks, ranks.size)
    for src, dst in ranks.rounds(map(edges.chunk, chunks), lambda: (none, none)):
        progress.advance(src.size * ranks.size)
        for sources, targets in ((src, dst), (dst, src))[: 1 + graph.header.undirected]:
            owners = ranks.owners(rows, targets)
            own_sources, own_targets = ranks.exchange(owners, sources, targets)
            with ranks.agree():
                builder.add(own_sources, own_targets)


def _append(
    writer: StoreWriter, graph: StreamedGraph, rows: RowMap, builder: EdgeBuilder, *, quiet: bool
) -> None:
    """Append this rank's rows; blocks of nodes are made whole where two ranks have some each."""
    with Progress("writing the adjacency", rows.num_local, "rows", quiet=quiet) as progress:
        first = rows.start
        for block in builder.blocks(rows.start, rows.stop):
            writer.append_rows(_with_features(block, first, graph.nodes))
            first += block.num_rows
            progress.advance(block.num_rows)
            watchdog.beat()
    with Progress("writing node data", rows.num_local, "rows", quiet=quiet) as progress:
        for start in range(rows.start // NODE_CHUNK * NODE_CHUNK, rows.stop, NODE_CHUNK):
            own = slice(max(0, rows.start - start), rows.stop - start)
            graph.nodes.append(writer, start, own)
            progress.advance(min(rows.stop, start + NODE_CHUNK) - max(rows.start, start))
            watchdog.beat()


def _with_features(block: SortedRows, first: int, nodes: NodeBlocks) -> SortedRows:
    """Return rows from `first` on with the features of their edges."""
    if not nodes.edge_columns.num_features:
        return block
    columns = nodes.edge_columns
    targets = first + np.repeat(np.arange(block.num_rows), np.diff(block.indptr))
    features = np.empty((block.num_edges, columns.num_features), columns.dtype)
    for start in range(0, block.num_edges, CHUNK_EDGES):
        piece = slice(start, start + CHUNK_EDGES)
        features[piece] = nodes.edge_features(targets[piece], block.indices[piece])
    return replace(block, data=EdgeData(features=features))
