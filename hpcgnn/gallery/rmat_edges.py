"""R-MAT graphs: power-law degrees without any structure that a partitioner could find.

Every edge descends `scale` levels of a quadtree over the adjacency matrix and draws a quadrant on
each level. Edges come in numbered chunks with their own random streams, so that any rank can make
any chunk.
"""

from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.gallery.graph import GalleryGraph
from hpcgnn.gallery.streamed import DrawnEdges, shuffled, stream
from hpcgnn.typing import GlobalIndices

MAX_SCALE = 40


@dataclass(frozen=True)
class RmatEdges(DrawnEdges):
    """The edges of an R-MAT graph with 2**scale nodes, made chunk by chunk.

    `edge_factor` is the number of edges per node, including self-loops and duplicates; `a`, `b`,
    `c` are the probabilities of the quadrants (low src, low dst), (low, high), (high, low), by
    default those of Graph500.
    """

    scale: int
    edge_factor: int
    seed: int
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= MAX_SCALE:
            raise InputError(f"a scale of {self.scale}: give 0 to {MAX_SCALE}")
        if self.edge_factor < 0 or self.seed < 0:
            raise InputError(f"edge_factor {self.edge_factor} or seed {self.seed} is negative")
        # Written so that nan is refused.
        if not (min(self.a, self.b, self.c) >= 0 and self.a + self.b + self.c <= 1):
            raise InputError(f"a, b, c = {self.a}, {self.b}, {self.c} are no probabilities")

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return 1 << self.scale

    @property
    def num_edges(self) -> int:
        """Return the number of edges, including self-loops and duplicates."""
        return self.edge_factor << self.scale

    def chunk(self, number: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst) of chunk `number`, int64, at most `CHUNK_EDGES` edges."""
        count = self.count(number)
        draws = stream(self.seed, number)
        src, dst = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for _ in range(self.scale):
            draw = draws.random(count, np.float32)
            high_src = draw >= self.a + self.b
            high_dst = (draw >= self.a + self.b + self.c) | (~high_src & (draw >= self.a))
            src = 2 * src + high_src
            dst = 2 * dst + high_dst
        # Shuffle, because hubs would have the lowest numbers.
        limit = self.num_nodes
        return shuffled(src, limit, self.seed, limit), shuffled(dst, limit, self.seed, limit)


def rmat(scale: int, edge_factor: int, seed: int, *, undirected: bool = False) -> GalleryGraph:
    """Return an R-MAT graph with 2**scale nodes, without self-loops and duplicate edges."""
    edges = RmatEdges(scale, edge_factor, seed)
    return GalleryGraph.of_chunks(f"rmat-{scale}", edges, undirected=undirected)
