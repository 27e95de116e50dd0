"""A graph in dense float64, as read by the references of models."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hpcgnn.nn import Model


@dataclass(frozen=True)
class DenseEdges:
    """Edges one by one, of which two may have the same ends: (E,) nodes, and features (E, F)."""

    sources: Tensor
    targets: Tensor
    features: Tensor

    def added(self, rows: Tensor, num_nodes: int) -> Tensor:
        """Return (num_nodes, any) the sums of the rows (E, any) of each target's edges."""
        return rows.new_zeros(num_nodes, rows.shape[1]).index_add(0, self.targets, rows)

    def means(self, rows: Tensor, num_nodes: int) -> Tensor:
        """Return the means of the same rows, zeros for targets without edges."""
        counts = torch.bincount(self.targets, minlength=num_nodes)[:, None]
        return self.added(rows, num_nodes) / counts.clamp(min=1)

    def __getitem__(self, some: Tensor) -> "DenseEdges":
        return DenseEdges(self.sources[some], self.targets[some], self.features[some])


@dataclass(frozen=True)
class Dense:
    """A graph in dense float64: ``a[i, j] != 0`` when i aggregates from j.

    Parameters
    ----------
    a
        (n, n) adjacency without added self loops.
    directed
        Whether there are two directions.
    sets
        The rows (masks) that each aggregation starts from, and the outputs; None for all rows.
    degree_rows
        The rows (n,) whose degrees PNA averages; None for those that its layer reads.
    counted
        The rows (n,) that statistics are of, where all rows are there; None for all.
    relations
        Adjacencies of the relations, reverses included, whose union `a` is.
    types
        (n,) node types; None for one.
    edges
        With features, for layers that read these.
    ids
        (n,) int64 that masks of dropout are drawn by; None for 0, 1, ...
    graphs
        (n,) int64 whose nodes graph norm takes together; None for one graph.
    """

    a: Tensor
    directed: bool
    sets: tuple[Tensor, ...] | None = None
    degree_rows: Tensor | None = None
    counted: Tensor | None = None
    relations: tuple[Tensor, ...] = ()
    types: Tensor | None = None
    edges: DenseEdges | None = None
    ids: np.ndarray | None = None
    graphs: Tensor | None = None

    @property
    def node_ids(self) -> np.ndarray:
        """The ids that masks are drawn by."""
        return np.arange(len(self.a), dtype=np.int64) if self.ids is None else self.ids

    def copies(self, count: int) -> "Dense":
        """Return copies of the graph, one after the other, with masks of their own."""
        nodes, edges = len(self.a), self.edges
        behind = torch.arange(count)[:, None] * nodes
        assert edges is not None
        ends = [(each + behind).reshape(-1) for each in (edges.sources, edges.targets)]
        ids = np.arange(nodes) + np.arange(count)[:, None] * (1 << 40)
        return replace(
            self,
            a=torch.block_diag(*[self.a] * count),
            relations=tuple(torch.block_diag(*[each] * count) for each in self.relations),
            types=None if self.types is None else self.types.repeat(count),
            edges=DenseEdges(*ends, edges.features.repeat(count, 1)),
            ids=ids.reshape(-1),
            graphs=torch.arange(count).repeat_interleave(nodes),
        )

    def with_sets(self, model: Model, targets: Tensor) -> "Dense":
        """Return the graph as `model` sees it from the outputs `targets`."""
        sets, edges = [targets], self.a != 0
        if any(kind.by_relation for kind in model.aggregations):
            # Reverses are relations, too.
            edges = torch.stack([each != 0 for each in self.relations]).any(0)
        both = self.directed and any(kind.is_reversed for kind in model.aggregations)
        depth = type(model).num_aggregations(model.shape)
        for _ in range(depth):
            reached = sets[0] | edges[sets[0]].any(0)
            if both:
                reached = reached | edges[:, sets[0]].any(1)
            sets.insert(0, reached)
        return replace(self, sets=tuple(sets))

    def rows_after(self, steps: int) -> Tensor:
        """Return the existing rows, and those of statistics, after a number of aggregations."""
        if self.sets is not None:
            return self.sets[steps]
        every = torch.ones(len(self.a), dtype=torch.bool)
        return every if self.counted is None else self.counted

    def symmetric(self) -> Tensor:
        """Return D_r^-1/2 (A + missing loops) D_c^-1/2."""
        a = self.a + torch.diag((torch.diagonal(self.a) == 0).to(self.a.dtype))
        return a / (a.sum(1)[:, None] * a.sum(0)[None, :]).sqrt()

    def edge_features(self, *, mean_loops: bool) -> Tensor:
        """Return (n, n, F) mean features between two nodes; for loops, those of other in-edges."""
        assert self.edges is not None
        count, edges = len(self.a), self.edges
        pairs = edges.targets * count + edges.sources
        by_pair = DenseEdges(edges.sources, pairs, edges.features)
        found = by_pair.means(edges.features, count**2).view(count, count, -1)
        if mean_loops:
            others = edges[edges.sources != edges.targets]
            means = others.means(others.features, count)
            loops = torch.eye(count, dtype=torch.bool)[:, :, None]
            found = torch.where(loops, means[:, None], found)
        return found

    def directions(self) -> list[Tensor]:
        """Return A, and its transpose if that differs."""
        return [self.a, self.a.T] if self.directed else [self.a]


def mean_of(a: Tensor) -> Tensor:
    degrees = a.sum(1, keepdim=True)
    return torch.where(degrees > 0, a / degrees.clamp(min=1e-300), 0.0)
