"""Hand the edges of a source to the builders of its relations, checked on the way."""

from collections.abc import Mapping
from contextlib import closing

import numpy as np

from hpcgnn.convert.edge_ids import check_ends
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, GraphSource
from hpcgnn.convert.symmetry import SymmetryCheck
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeBuilder
from hpcgnn.typing import Array

__all__ = ["EdgeFeed"]

_LARGEST_ID = (1 << 32) - 1
"""The largest id that `EdgeBuilder` sorts."""


class EdgeFeed:
    """One pass over the edges of `source`.

    Afterwards `num_edges` counts the edges read, `num_zero` those left out because their weight is
    0 (a zero is no entry of the adjacency), and `undirected` tells whether every edge that is
    stored has its reverse.
    """

    def __init__(self, source: GraphSource, options: ConvertOptions) -> None:
        self._source, self._reverse = source, options.reverse
        self._made_undirected = options.undirected or source.undirected
        # Which of several unequal weights is the first may differ between a pair and its reverse.
        self._watches = not self._made_undirected and not (
            source.weighted and options.duplicates == "first"
        )
        self._symmetry = SymmetryCheck()
        self.num_edges = 0
        self.num_zero = 0

    @property
    def undirected(self) -> bool:
        """Whether the adjacency that is stored equals its transpose."""
        return self._made_undirected or (self._watches and self._symmetry.symmetric)

    def run(self, builders: Mapping[str, EdgeBuilder]) -> None:
        """Read all edges; raises `InputError` that names the place of a faulty one."""
        # Closed at once on an error, so that the reader's progress display ends before the message.
        with closing(self._source.edges()) as chunks:
            for chunk in chunks:
                self._add(chunk, builders[chunk.relation])
        if self.num_edges == 0:
            raise InputError(f"{self._source.path}: the graph has no edges; check the input")

    def _add(self, chunk: EdgeChunk, builder: EdgeBuilder) -> None:
        limit = _LARGEST_ID if self._source.num_nodes is None else self._source.num_nodes - 1
        remedy = "number the nodes from 0"
        if limit == _LARGEST_ID:
            remedy += ", or give an edge list with --relabel"
        check_ends(chunk, (limit, limit), remedy)
        src, dst = (chunk.dst, chunk.src) if self._reverse else (chunk.src, chunk.dst)
        weights = _finite_weights(chunk) if self._source.weighted else None
        self.num_edges += len(src)
        if weights is not None and not weights.all():
            kept = weights != 0
            self.num_zero += len(kept) - int(kept.sum())
            src, dst, weights = src[kept], dst[kept], weights[kept]
        if self._watches:
            self._symmetry.update(src, dst, weights, chunk.relation)
        builder.add(src, dst, weights)


def _finite_weights(chunk: EdgeChunk) -> Array:
    if chunk.weights is None:
        return np.ones(len(chunk.src), np.float32)
    with np.errstate(over="ignore"):
        weights = chunk.weights.astype(np.float32)
    finite = np.isfinite(weights)
    if not finite.all():
        position = int(np.argmin(finite))
        raise InputError(
            f"{chunk.locate(position)}: weight {chunk.weights[position]} is not a finite float32 "
            "number; correct or remove the edge"
        )
    return weights
