"""Sampled subgraphs, and the coefficients that make their sums estimate the whole graph's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcgnn.sampling import _sampling
from hpcgnn.sampling.prefetch import Prefetch
from hpcgnn.sampling.samplers import Sampler
from hpcgnn.sampling.topology import Topology
from hpcgnn.typing import FloatArray, GlobalIndices, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class SampledPattern:
    """A CSR pattern whose columns are positions in a list of nodes.

    `indptr` is int64, `indices` int32, ascending in a row. `entries` (nnz,) int64 are the numbers
    of the entries in the whole graph, by which their weights are found.
    """

    indptr: Offsets
    indices: LocalIndices
    entries: GlobalIndices

    @classmethod
    def side_by_side(
        cls, patterns: Sequence["SampledPattern"], before: Sequence[int] | LocalIndices
    ) -> "SampledPattern":
        """Stack patterns in rows, with the columns of each shifted by its entry in `before`."""
        counts = [np.zeros(1, np.int64), *(np.diff(pattern.indptr) for pattern in patterns)]
        columns = [np.zeros(0, np.int64)]
        columns += [p.indices + np.int64(b) for p, b in zip(patterns, before, strict=True)]
        entries = [np.zeros(0, np.int64), *(pattern.entries for pattern in patterns)]
        return cls(
            np.cumsum(np.concatenate(counts)),
            np.concatenate(columns).astype(np.int32),
            np.concatenate(entries),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.indptr.nbytes + self.indices.nbytes + self.entries.nbytes

    def entry_rows(self) -> LocalIndices:
        """Return (nnz,) int32 rows of the entries."""
        rows = np.arange(len(self.indptr) - 1, dtype=np.int32)
        return np.repeat(rows, np.diff(self.indptr))


@dataclass(frozen=True, eq=False)
class Coefficients:
    """How many sets contain a node, or both ends of an entry: GraphSAINT's normalisation.

    `num_subgraphs` sets were counted, the paper's N (0: nothing is normalised). `nodes`
    (num_nodes,) int32 of them contain the node, C_v, and `entries` (num_entries,) int32 both ends
    of the entry, C_uv.
    """

    num_subgraphs: int
    nodes: NDArray[np.int32]
    entries: NDArray[np.int32]

    def loss_weights(self, nodes: LocalIndices) -> FloatArray:
        """Return (n,) float32 loss weights 1 / lambda_v = N / C_v.

        With them the mean over sets of a sum over sampled nodes is the sum over all nodes. C_v is
        taken as 1 for nodes that no counted set contains.
        """
        return (self.num_subgraphs / np.maximum(self.nodes[nodes], 1)).astype(np.float32)

    def edge_factors(self, nodes: LocalIndices, pattern: SampledPattern) -> FloatArray:
        """Return (nnz,) float32 1 / alpha_uv = C_v / C_uv of entries in the rows v = `nodes`.

        With them the mean, over the sets that contain v, of the sum over the sampled columns of v
        is the sum over all its columns.
        """
        rows = np.maximum(self.nodes[nodes], 1)[pattern.entry_rows()]
        return (rows / np.maximum(self.entries[pattern.entries], 1)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """The subgraph that the sampled set `number` induces.

    `nodes` (n,) int32 ascend; `pattern` (n, n) has the entries among them. `loss_weights` (n,) and
    `edge_factors` (nnz,) are float32, see `Coefficients`; None without normalisation.
    """

    number: int
    nodes: LocalIndices
    pattern: SampledPattern
    loss_weights: FloatArray | None
    edge_factors: FloatArray | None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        optional = (self.loss_weights, self.edge_factors)
        optional_bytes = sum(array.nbytes for array in optional if array is not None)
        return self.nodes.nbytes + self.pattern.nbytes + optional_bytes


def induce(topology: Topology, nodes: LocalIndices) -> SampledPattern:
    """Return the entries among `nodes` (n,) int32; ValueError unless they are ascending nodes."""
    return SampledPattern(*_sampling.induce(topology.native, nodes))


@dataclass(frozen=True, eq=False)
class SubgraphSource:
    """Makes subgraphs by number; it can be called from any thread.

    `edges` is the graph whose entries are induced, over the same nodes; None: the one that the
    sampler walks. Without `coefficients` nothing is normalised.
    """

    sampler: Sampler
    coefficients: Coefficients | None = None
    edges: Topology | None = None

    @property
    def topology(self) -> Topology:
        """The graph whose entries are induced."""
        return self.sampler.topology if self.edges is None else self.edges

    def __call__(self, number: int) -> Subgraph:
        """Return subgraph `number`."""
        nodes = self.sampler.sample(number)
        pattern = induce(self.topology, nodes)
        counted = self.coefficients
        if counted is None:
            return Subgraph(number, nodes, pattern, None, None)
        weights = counted.loss_weights(nodes)
        return Subgraph(number, nodes, pattern, weights, counted.edge_factors(nodes, pattern))


def count_coverage(
    source: SubgraphSource, numbers: Iterable[int], *, threads: int = 0, depth: int = 8
) -> Coefficients:
    """Count how many of the sets `numbers` contain each node and each entry.

    `source` is that of training, but without coefficients and with another seed. `threads` and
    `depth` are as for `Prefetch`. Ranks can count different numbers and add up the counts.
    """
    topology = source.topology
    nodes = np.zeros(topology.num_nodes, np.int32)
    entries = np.zeros(topology.num_entries, np.int32)
    num_subgraphs = 0
    with Prefetch(source, numbers, threads=threads, depth=depth) as subgraphs:
        for subgraph in subgraphs:
            nodes[subgraph.nodes] += 1
            entries[subgraph.pattern.entries] += 1
            num_subgraphs += 1
    return Coefficients(num_subgraphs, nodes, entries)
