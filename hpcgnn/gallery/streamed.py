"""Write graphs that do not fit in memory: edges come in chunks, node data in row blocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import Progress
from hpcgnn.storage import EdgeBuilder, Split, StoreHeader, StoreWriter
from hpcgnn.typing import FloatArray, GlobalIndices

NODE_CHUNK = 1 << 14
"""Nodes of one block; part of the definition of a graph, as each block has its own stream."""


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

    def blocks(self) -> Iterator[tuple[FloatArray, NDArray[np.int32], NDArray[np.uint8]]]:
        """Yield (features, labels, split) of consecutive nodes."""
        for start in range(0, self.num_nodes, NODE_CHUNK):
            rows = min(NODE_CHUNK, self.num_nodes - start)
            stream = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, start, 2]))
            chance = stream.random(rows)
            split = np.full(rows, Split.TEST, np.uint8)
            split[chance < 0.8] = Split.VALID
            split[chance < 0.6] = Split.TRAIN
            labels = stream.integers(0, max(1, self.num_classes), rows, dtype=np.int32)
            yield stream.standard_normal((rows, self.num_features), np.float32), labels, split


def write_streamed(
    path: Path,
    header: StoreHeader,
    chunks: Iterator[tuple[GlobalIndices, GlobalIndices]],
    num_edges: int,
    nodes: RandomNodes,
    *,
    memory_bytes: int,
) -> None:
    """Write a store from edge chunks and random node data.

    Loops and duplicates are dropped; an undirected header adds the reverse of every edge. Memory
    is `memory_bytes` of edges and one block; more edges wait in files beside `path`. `num_edges`
    is the number of edges in `chunks`, for the progress display.
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
        with Progress("drawing edges", num_edges, "edges") as progress:
            for src, dst in chunks:
                builder.add(src, dst)
                progress.advance(src.size)
        with Progress("writing the adjacency", header.num_nodes, "rows") as progress:
            builder.write(writer, progress=progress.advance)
        with Progress("writing node data", header.num_nodes, "rows") as progress:
            for features, labels, split in nodes.blocks():
                if nodes.num_features:
                    writer.append_features(features)
                if nodes.num_classes:
                    writer.append_labels(labels)
                    writer.append_split(split)
                progress.advance(labels.size)
