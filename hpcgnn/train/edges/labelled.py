"""The edges whose labels are predicted: read a rank's labelled edges, and make examples of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import override

from hpcgnn.comm import Communicator, ProcessGrid, RowMap, agree, rows_of, share_on_hosts
from hpcgnn.comm.row_map import found_among
from hpcgnn.errors import InputError
from hpcgnn.graph.edge_inputs import scaled_edges
from hpcgnn.graph.facts import stored_edge_features
from hpcgnn.graph.label_inputs import labelled_nodes
from hpcgnn.graph.stored_rows import StoredRows, check_relations
from hpcgnn.sampling import Subgraph
from hpcgnn.sparse import read_edge_features
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, Split
from hpcgnn.train.links.edges import SHARES, LinkEdges, is_kept_direction, mixed, split_links
from hpcgnn.train.links.pairs import Pairs, enclosed
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.train.sources.source import BatchExamples, BatchShare, SubgraphExamples
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask


@dataclass(frozen=True, eq=False)
class LabelledEdges:
    """Edges of a rank with their labels; it owns their targets unless noted otherwise.

    `labels` are (E,) int64 classes with -1 for none, or (E, C) zeros and ones, or (E, T) float64
    numbers, NaN where missing; `features` are (E, F). The parts of `edges` are the split.
    """

    edges: LinkEdges
    labels: Array
    features: FloatArray

    @classmethod
    def none(cls, dtype: DTypeLike) -> "LabelledEdges":
        """Return an empty set of edges, with features of a dtype."""
        empty = np.zeros(0, np.int64)
        edges = LinkEdges(empty, empty, empty, empty, np.zeros(0, np.uint8))
        return cls(edges, empty, np.empty((0, 0), dtype))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: GlobalIndices | Mask | slice) -> "LabelledEdges":
        """Return the edges at some indices, in any order, or of a mask (E,)."""
        numbers = np.arange(len(self))[index] if isinstance(index, slice) else index
        return LabelledEdges(self.edges[numbers], self.labels[numbers], self.features[numbers])

    @property
    def split(self) -> Array:
        """(E,) uint8 of `Split`."""
        assert self.edges.parts is not None
        return self.edges.parts

    def needing(self, num_rows: int) -> "EdgeTargets":
        """Return these edges with the global rows, below `num_rows`, that predict them."""
        no_negatives = np.empty((len(self), 0), np.int64)
        return EdgeTargets(Pairs.of(self.edges, no_negatives, num_rows), self.labels, self.features)

    @collective
    def with_request(self, layer: Communicator, row_map: RowMap) -> "EdgeTargets":
        """Return these edges with a request for the rows that predict them."""
        needed = self.needing(row_map.num_rows)
        return replace(needed, pairs=needed.pairs.with_request(layer, row_map))

    @collective
    def shared(self, grid: ProcessGrid) -> "LabelledEdges":
        """Return the edges of all ranks, sorted by words: the same order for all partitions."""
        edges, labels = self.edges.shared(grid), share_on_hosts(grid, "edges.labels", self.labels)
        features = np.empty((len(labels), 0), self.features.dtype)
        if self.features.shape[1]:
            features = share_on_hosts(grid, "edges.features", self.features)
        return LabelledEdges(edges, labels, features)[edges.in_order()]


@dataclass(frozen=True, eq=False)
class EdgeTargets:
    """Edges as positions of their ends among some rows, see `Pairs`, with labels and features."""

    pairs: Pairs
    labels: Array
    features: FloatArray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class EdgeLabels:
    """The labels that are predicted for edges.

    `relations` are the relations of the edges, `names` those of the classes or numbers; `kind` is
    "classes", "several" (labels) or "numbers".
    """

    relations: tuple[str, ...]
    names: tuple[str, ...]
    kind: str


_TASKS = {"i": "classes", "u": "several", "f": "numbers"}


def find_labels(store: GraphStore, relations: Sequence[str]) -> EdgeLabels:
    """Return the labels of the edges of some relations; of all with labels if none are given.

    Raises `InputError` if a relation is unknown, has no labels, or labels of a different kind.
    """
    check_relations("edges.relations", relations, store)
    dtypes = {name: store.labels_of_edges(name)[1] for name in relations or store.relations}
    labelled = {name: _TASKS[dtype.kind] for name, dtype in dtypes.items() if dtype is not None}
    missing = [name for name in relations if name not in labelled]
    if missing or not labelled:
        whose = f"edges of relation {missing[0]!r}" if missing and missing[0] else "edges"
        raise InputError(
            f"{store.path}: its {whose} have no labels; convert with --edge-labels COLUMN or "
            "--edge-targets COLUMNS"
        )
    if len(set(labelled.values())) > 1:
        shown = ", ".join(f"{name}: {task}" for name, task in labelled.items())
        raise InputError(f"{store.path}: labels differ ({shown}); choose edges.relations")
    return EdgeLabels(tuple(labelled), store.edge_labels, next(iter(labelled.values())))


def relations_to_predict(store: GraphStore, relations: Sequence[str]) -> tuple[str, ...]:
    """Return the given relations; if none, those with labels; if there are no labels, all."""
    labelled = (name for name in store.relations if store.labels_of_edges(name)[0])
    return tuple(relations or tuple(labelled) or store.relations)


def num_features(store: GraphStore, relations: Sequence[str], *, read: bool) -> int:
    """Return the number of edge features that predictions use; raises `InputError`."""
    remedy = "set edges.features=false or choose edges.relations"
    return stored_edge_features(store, relations, remedy) if read else 0


@collective
def read_labelled(
    stored: StoredRows, labels: EdgeLabels, width: int, *, with_labels: bool = True
) -> tuple[LabelledEdges, GlobalIndices]:
    """Return the edges of this rank's rows, with the stored split or none, and their ends' ids.

    The ids (E, 2) are original ids. An undirected edge is returned in one direction only. Features
    have `width` columns. Without `with_labels`, all labels are -1.
    """
    grid, store, row_map = stored.context.grid, stored.store, stored.row_map
    dtype = stored.context.config.train.dtype
    blocks = []
    with agree(grid.world):
        local_ids = store.read_original_id(row_map.start, row_map.stop)
        for name in labels.relations:
            block = store.read_adjacency(row_map.start, row_map.stop, name)
            blocks.append((block, store.read_edge_data(row_map.start, row_map.stop, name)))
    counts = [block.num_edges for block, _ in blocks]
    local = [np.repeat(np.arange(row_map.num_local), np.diff(block.indptr)) for block, _ in blocks]
    targets = np.concatenate(local).astype(np.int64)
    sources = np.concatenate([block.indices for block, _ in blocks]).astype(np.int64)
    ids = np.stack([rows_of(grid.layer, row_map, sources, local_ids), local_ids[targets]], axis=1)
    relations = np.repeat(np.arange(len(blocks)), counts)
    words = mixed(relations, ids[:, 0], ids[:, 1]).view(np.int64)
    features, parts = [], []
    for name, count, (_, data) in zip(labels.relations, counts, blocks, strict=True):
        raw = np.empty((count, 0), dtype) if width == 0 else data.features
        assert raw is not None
        features.append(scaled_edges(stored, name, raw))
        parts.append(np.zeros(count, np.uint8) if data.split is None else data.split)
    edges = LinkEdges(sources, targets + row_map.start, relations, words, np.concatenate(parts))
    if with_labels:
        trained_labels = _as_trained(
            np.concatenate([data.labels for _, data in blocks if data.labels is not None])
        )
    else:
        trained_labels = np.full(len(edges), -1, np.int64)
    edges_of_rank = LabelledEdges(edges, trained_labels, np.concatenate(features))
    if not store.undirected:
        return edges_of_rank, ids
    one_way = is_kept_direction(ids[:, 0], ids[:, 1]) | (ids[:, 0] == ids[:, 1])
    return edges_of_rank[one_way], ids[one_way]


@collective
def stored_features(
    stored: StoredRows, relations: Sequence[str], width: int, edges: LinkEdges
) -> tuple[FloatArray, Mask]:
    """Return features (E, `width`) of edges to this rank's rows, and the mask (E,) of stored edges.

    Edges that are not stored get zeros.
    """
    store, row_map = stored.store, stored.row_map
    features = np.zeros((len(edges), width), stored.context.config.train.dtype)
    is_stored = np.zeros(len(edges), np.bool_)
    grid = stored.context.grid
    for number, name in enumerate(relations):
        (members,) = np.nonzero(edges.relations == number)
        with agree(grid.world):
            block = store.read_adjacency(row_map.start, row_map.stop, name)
        rows = np.repeat(np.arange(row_map.num_local), np.diff(block.indptr))
        positions, present = found_among(
            rows * row_map.num_rows + block.indices,
            (edges.targets[members] - row_map.start) * row_map.num_rows + edges.sources[members],
        )
        is_stored[members] = present
        all_features = read_edge_features(grid, store, row_map, name)
        scaled = scaled_edges(stored, name, all_features[positions[present]])
        features[members[present]] = scaled
    return features, is_stored


def _as_trained(labels: Array) -> Array:
    """Return stored edge labels in the form in which node labels are trained on."""
    if labels.dtype.kind == "i":
        return labels[:, 0].astype(np.int64)
    return labels if labels.dtype.kind == "u" else labels.astype(np.float64)


@collective
def read_examples(stored: StoredRows, labels: EdgeLabels, width: int) -> LabelledEdges:
    """Return the labelled edges of this rank's rows that are in a split."""
    options, store = stored.context.config.edges, stored.store
    edges, ids = read_labelled(stored, labels, width)
    by_store = options.stored and any(store.has_edge_split(name) for name in labels.relations)
    if not by_store:
        drawn = split_links(replace(edges.edges, parts=None), ids, options, len(labels.relations))
        parts = np.zeros(len(edges), np.uint8)
        for share in SHARES:
            parts[drawn[share]] = Split[share.upper()]
        edges = replace(edges, edges=replace(edges.edges, parts=parts))
    return edges[labelled_nodes(edges.labels) & (edges.split != Split.NONE)]


class BatchedEdges(BatchExamples):
    """Batches of labelled training edges."""

    unit = "edges"

    @collective
    def __init__(self, grid: ProcessGrid, graph: SampledGraph, trained: LabelledEdges) -> None:
        self._edges, self._num_nodes = trained.shared(grid), graph.edges.num_nodes

    def __len__(self) -> int:
        return len(self._edges)

    @override
    def batch(self, share: BatchShare) -> tuple[LocalIndices, EdgeTargets]:
        needed = self._edges[share.own_numbers].needing(self._num_nodes)
        return needed.pairs.rows.astype(np.int32), needed

    @override
    def targets(self, pieces: Sequence[EdgeTargets]) -> EdgeTargets:
        pairs = Pairs.side_by_side([piece.pairs for piece in pieces])
        columns = [(piece.labels, piece.features) for piece in pieces]
        return EdgeTargets(
            pairs, *(np.concatenate(column) for column in zip(*columns, strict=True))
        )


class EnclosedEdges(SubgraphExamples):
    """The labelled training edges with both ends in a subgraph."""

    @collective
    def __init__(self, grid: ProcessGrid, graph: SampledGraph, trained: LabelledEdges) -> None:
        edges = trained.shared(grid)
        self._edges = edges[np.argsort(edges.edges.targets, kind="stable")]
        rows = np.arange(graph.edges.num_nodes + 1)
        self._starts = np.searchsorted(self._edges.edges.targets, rows)

    @override
    def inside(
        self, subgraphs: Sequence[Subgraph], nodes: LocalIndices, seeds: tuple[int, int]
    ) -> tuple[None, EdgeTargets]:
        empty = np.zeros(0, np.int64)
        parts, num_before = [(empty, empty, empty)], 0
        for subgraph in subgraphs:
            inside, sources, targets = enclosed(
                self._edges.edges.sources, self._starts, subgraph.nodes
            )
            parts.append((inside, sources + num_before, targets + num_before))
            num_before += len(subgraph.nodes)
        numbers, sources, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
        edges = self._edges[numbers]
        ends = sources.astype(np.int32), targets.astype(np.int32)
        no_negatives = np.empty((len(edges), 0), np.int32)
        pairs = Pairs(np.arange(num_before), *ends, no_negatives, edges.edges.relations)
        return None, EdgeTargets(pairs, edges.labels, edges.features)
