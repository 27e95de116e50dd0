"""Write stores of graphs of any size from numbered chunks of edges and blocks of nodes."""

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
from hpcgnn.typing import FloatArray, GlobalIndices

CHUNK_EDGES = 1 << 18
"""Edges in a chunk. It is part of a graph's definition, as each chunk has its own random stream."""

NODE_CHUNK = 1 << 14
"""Nodes in a block. It is part of a graph's definition, as each block has its own random stream."""

_MIXING_ROUNDS = 4

NodeRows = tuple[FloatArray, NDArray[np.int32], NDArray[np.uint8]]
"""Features (float32), labels and split of consecutive nodes."""


class EdgeChunks(Protocol):
    """The edges of a graph, including self-loops and duplicates, chunk by chunk."""

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""

    @property
    def num_edges(self) -> int:
        """Return the number of edges in all chunks."""

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""

    def chunk(self, number: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst) of chunk `number`, int64."""


class NodeBlocks(ABC):
    """The node data of a graph in blocks of `NODE_CHUNK`, and the features of its edges, if any."""

    @property
    def edge_columns(self) -> EdgeColumns:
        """Return the columns of edge data."""
        return EdgeColumns()

    def edge_features(self, targets: GlobalIndices, sources: GlobalIndices) -> FloatArray:
        """Return the features of edges between nodes (m,), described by `edge_columns`."""
        return np.empty((len(targets), 0), np.float32)

    @abstractmethod
    def append(self, writer: StoreWriter, start: int, own: slice) -> None:
        """Append the rows `own` of the block that begins with node `start`; no rows declare it."""


def edge_vectors(targets: FloatArray, sources: FloatArray, unit: float) -> FloatArray:
    """Return the vectors from targets to sources (m, D) and their lengths, (m, D + 1) float32."""
    vectors = (sources - targets) / unit
    lengths = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return np.concatenate([vectors, lengths], axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class FieldSteps:
    """Node fields in `num_trajectories` trajectories, made step by step.

    Each trajectory has the `times` (T,) in seconds. All ranks iterate over `steps(ranks)`, which
    yields for each step the number of this rank's first row, and its rows (m, F) of each field by
    name; later ranks have later rows.
    """

    infos: tuple[FieldInfo, ...]
    num_trajectories: int
    times: FloatArray
    steps: Callable[[RankGroup], Iterator[tuple[int, Mapping[str, FloatArray]]]]

    def declare(self, writer: StoreWriter) -> None:
        """Declare the steps and fields to the writer."""
        starts = np.arange(self.num_trajectories + 1) * self.times.size
        writer.begin_fields(np.tile(self.times, self.num_trajectories), starts, "s")
        for info in self.infos:
            none = np.empty((0, info.num_columns), info.dtype)
            writer.append_field(info.name, 0, none, info)

    def append(self, writer: StoreWriter, ranks: RankGroup) -> None:
        """Append all steps; each row is sent to the rank that stores it. Collective."""
        with ranks.agree():
            self.declare(writer)
            firsts = {info.name: writer.field_rows(info).start for info in self.infos}
        of_ranks = ranks.gather(firsts)
        starts = {name: np.array([own[name] for own in of_ranks]) for name in firsts}
        quiet, num_steps = ranks.rank > 0, self.num_trajectories * self.times.size
        with Progress("writing fields", num_steps, "steps", quiet=quiet) as progress:
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
    """Random edges, drawn in chunks of `CHUNK_EDGES`."""

    @property
    @abstractmethod
    def num_edges(self) -> int:
        """Return the number of edges, including self-loops and duplicates."""

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.num_edges // CHUNK_EDGES)

    def count(self, number: int) -> int:
        """Return the number of edges in chunk `number`."""
        return min(CHUNK_EDGES, self.num_edges - number * CHUNK_EDGES)


def stream(seed: int, number: int, use: int = 0) -> np.random.Generator:
    """Return the random generator of a chunk or block; each `use` has an independent stream."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, number, use]))


def shuffled(
    numbers: GlobalIndices, size: int, seed: int, limits: int | GlobalIndices
) -> GlobalIndices:
    """Apply a pseudo-random permutation of 0 .. limit - 1 to `numbers` (int64, below their limits).

    Multiplying by an odd number and folding the high half onto the low half are both one-to-one
    below a power of two, so no table of the permutation is needed; a result at or above its limit
    is permuted again until it is below. `size`, at least the largest limit, and `seed` determine
    the permutation; `limits` is one limit for all numbers, or one for each.
    """
    bits = max(0, size - 1).bit_length()
    mask, fold = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    draws = stream(seed, 0, 1)
    rounds = [draws.integers(0, 1 << 63, 2, dtype=np.uint64) for _ in range(_MIXING_ROUNDS)]
    mixed = numbers.astype(np.uint64)
    limit = np.broadcast_to(np.asarray(limits, np.uint64), mixed.shape)
    remaining = np.arange(len(mixed))
    while len(remaining):
        values = mixed[remaining]
        for factor, shift in rounds:
            values = ((values + shift) * (factor | np.uint64(1))) & mask
            values ^= values >> fold
        mixed[remaining] = values
        remaining = remaining[values >= limit[remaining]]
    return mixed.astype(np.int64)


@dataclass(frozen=True)
class RandomNodes(NodeBlocks):
    """Random node data for timing, in blocks of `NODE_CHUNK` with their own random streams.

    Features are standard normal, float32, and labels uniform; 0 columns or classes mean none. With
    labels there is a split: each node is for training, validation or testing with probability 0.6,
    0.2 and 0.2.
    """

    num_nodes: int
    num_features: int
    num_classes: int
    seed: int

    def block(self, start: int) -> NodeRows:
        """Return the data of the nodes in the block that begins with node `start`."""
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

    def _labels(self, _start: int, rows: int, draws: np.random.Generator) -> NDArray[np.int32]:
        return draws.integers(0, max(1, self.num_classes), rows, dtype=np.int32)


@dataclass(frozen=True)
class StreamedGraph:
    """A graph made chunk by chunk; a rank holds `memory_bytes` of edges, and more in files."""

    header: StoreHeader
    edges: EdgeChunks
    nodes: NodeBlocks
    memory_bytes: int
    fields: FieldSteps | None = None

    def declare(self, writer: StoreWriter) -> None:
        """Append a block without rows for each kind of data that the graph has."""
        writer.append_rows(self.nodes.edge_columns.no_rows())
        self.nodes.append(writer, 0, slice(0, 0))
        if self.fields is not None:
            self.fields.declare(writer)


def write_streamed(path: Path, graph: StreamedGraph, ranks: RankGroup = ONE_PROCESS) -> None:
    """Write a store from edge chunks and node blocks; it does not depend on the number of ranks.

    Self-loops and duplicates are dropped; an undirected header adds the reverse of every edge.
    Chunk c is drawn by rank c modulo P, and its edges are sent to the ranks of their rows, P equal
    ranges. These sort and write them, then their node data. Raises `InputError` on a full disk.
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
    """Draw all chunks, and add the edges of this rank's rows to `builder`."""
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
    """Append this rank's rows; a block of nodes shared by two ranks is made on both."""
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
    """Return the rows, which begin with row `first`, with the features of their edges."""
    if not nodes.edge_columns.num_features:
        return block
    columns = nodes.edge_columns
    targets = first + np.repeat(np.arange(block.num_rows), np.diff(block.indptr))
    features = np.empty((block.num_edges, columns.num_features), columns.dtype)
    for start in range(0, block.num_edges, CHUNK_EDGES):
        piece = slice(start, start + CHUNK_EDGES)
        features[piece] = nodes.edge_features(targets[piece], block.indices[piece])
    return replace(block, data=EdgeData(features=features))
