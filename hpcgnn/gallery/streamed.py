"""Write graphs that do not fit in memory: edges come in chunks, node data in blocks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import Progress
from hpcgnn.gallery.chunks import NODE_CHUNK, EdgeChunks, NodeBlocks, NodeRows, stream
from hpcgnn.storage import EdgeBuilder, Split, StoreHeader, StoreWriter


@dataclass(frozen=True)
class RandomNodes:
    """Node data without meaning, for timing: every block has a random stream of its own.

    Attributes
    ----------
    num_features, num_classes
        Columns of standard normal float32 features, and classes of uniform labels; 0 for none.
        With labels goes a split whose nodes are each training, validation or test nodes with
        probability 0.6, 0.2 and 0.2.
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

    def _labels(self, _start: int, rows: int, draws: np.random.Generator) -> NDArray[np.int32]:
        return draws.integers(0, max(1, self.num_classes), rows, dtype=np.int32)


def write_streamed(
    path: Path, header: StoreHeader, edges: EdgeChunks, nodes: NodeBlocks, *, memory_bytes: int
) -> None:
    """Write a store from edge chunks and node blocks.

    Loops and duplicates are dropped; an undirected header adds the reverse of every edge. Memory
    is `memory_bytes` of edges and one block; more edges wait in files beside `path`.
    """
    with (
        StoreWriter(path, header) as writer,
        EdgeBuilder(
            header.num_nodes,
            undirected=header.undirected,
            self_loops="drop",
            memory_bytes=memory_bytes,
            scratch_dir=path.absolute().parent,
        ) as builder,
    ):
        with Progress("drawing edges", edges.num_edges, "edges") as progress:
            for number in range(edges.num_chunks):
                src, dst = edges.chunk(number)
                builder.add(src, dst)
                progress.advance(src.size)
        with Progress("writing the adjacency", header.num_nodes, "rows") as progress:
            builder.write(writer, progress=progress.advance)
        with Progress("writing node data", header.num_nodes, "rows") as progress:
            for start in range(0, header.num_nodes, NODE_CHUNK):
                progress.advance(append_nodes(writer, nodes, nodes.block(start)))


def append_nodes(writer: StoreWriter, nodes: NodeBlocks, block: NodeRows) -> int:
    """Append what the nodes of a block have, and return their number."""
    features, labels, split = block
    if nodes.num_features:
        writer.append_features(features)
    if nodes.num_classes:
        writer.append_labels(labels)
        writer.append_split(split)
    return labels.size
