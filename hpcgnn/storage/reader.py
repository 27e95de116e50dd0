"""Reading a store: block rows and node data as slabs, checked as they are read."""

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from hpcgnn.storage import checks
from hpcgnn.storage.blocks import CSRBlock, NodeBlock
from hpcgnn.storage.datasets import (
    array_crc,
    damaged,
    format_errors,
    read_slab,
    read_text,
    slab_pieces,
)
from hpcgnn.storage.layout import Layout, read_layout
from hpcgnn.storage.node_reader import NodeReader, check_rows
from hpcgnn.storage.opening import fault_of, open_file, raise_together
from hpcgnn.storage.schema import relation_path
from hpcgnn.typing import Array, Offsets

__all__ = ["GraphStore"]


class GraphStore:
    """A store, open for reading; use `GraphStore.open` in a `with` statement.

    Rows are nodes in the store's order; `start` and `stop` are row numbers, `stop` excluded. Reads
    touch only the chunks of those rows. Damage of any kind is a `StorageFormatError`.

    `node_types` is empty for a graph without them. A graph with them has features by type only: its
    `num_features` is 0 and its `feature_dtype` None, each `NodeType` has its own.
    """

    def __init__(self, path: Path, file: h5py.File, layout: Layout) -> None:
        self._file, self._layout = file, layout
        self._nodes = NodeReader(path, layout)
        attributes = layout.attributes
        self.path = path
        self.name: str = attributes["name"]
        self.num_nodes: int = attributes["num_nodes"]
        self.num_classes: int = attributes["num_classes"]
        self.multi_label: bool = attributes["multi_label"]
        self.undirected: bool = attributes["undirected"]
        self.fingerprint: str = attributes["fingerprint"]
        self.provenance: dict[str, Any] = attributes["provenance"]
        self.relations: tuple[str, ...] = layout.relations
        self.node_types = layout.node_types
        self.partition_info: dict[str, Any] = layout.partition
        self.row_starts: Offsets = self._read_row_starts()
        classes = layout.datasets.get("/classes")
        self.class_names = () if classes is None else read_text(path, classes)

    @classmethod
    def open(cls, path: str | os.PathLike[str], comm: Any | None = None) -> "GraphStore":
        """Open a store; with `comm` and a parallel h5py this is collective over `comm`.

        Raises `InputError` where no such file can be read, `StorageFormatError` where it is no
        store, of another version, or damaged.
        """
        path = Path(path)
        file = open_file(path, comm)
        stores: list[GraphStore] = []
        try:
            fault = fault_of(lambda: stores.append(cls(path, file, read_layout(path, file))))
            # Closing a file is collective too, so the ranks must give up together.
            raise_together(fault, comm)
        except BaseException:
            file.close()
            raise
        return stores[0]

    def close(self) -> None:
        """Close the file; the store cannot be read any more."""
        self._file.close()

    def __enter__(self) -> "GraphStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def num_parts(self) -> int:
        """Number of parts; 1 for a graph that was not partitioned."""
        return len(self.row_starts) - 1

    @property
    def num_features(self) -> int:
        """Number of columns of the one matrix of features, 0 where there is none."""
        features = self._node_dataset("features")
        return 0 if features is None else int(features.shape[1])

    @property
    def feature_dtype(self) -> np.dtype[Any] | None:
        """Type of the one matrix of features, None where there is none."""
        features = self._node_dataset("features")
        return None if features is None else features.dtype

    @property
    def has_features(self) -> bool:
        """Whether the nodes, or those of at least one node type, have features."""
        by_type = any(each.dtype is not None for each in self.node_types)
        return by_type or self._node_dataset("features") is not None

    @property
    def has_labels(self) -> bool:
        """Whether the nodes have labels."""
        return self._node_dataset("labels") is not None

    @property
    def has_split(self) -> bool:
        """Whether the nodes have a split."""
        return self._node_dataset("split") is not None

    @property
    def num_bytes(self) -> int:
        """Bytes of all datasets: what `verify` reads."""
        return sum(int(each.nbytes) for each in self._layout.datasets.values())

    def num_edges(self, relation: str | None = None) -> int:
        """Return the number of stored non-zeros of a relation, or of all."""
        names = self.relations if relation is None else (relation,)
        return sum(int(self._adjacency(name, "indices").shape[0]) for name in names)

    def weighted(self, relation: str = "") -> bool:
        """Return whether a relation's edges carry weights."""
        self._adjacency(relation, "indptr")
        return f"{relation_path(relation)}/weights" in self._layout.datasets

    def read_indptr(self, start: int, stop: int, relation: str = "") -> Offsets:
        """Return offsets (stop - start + 1,) of the rows, starting at 0."""
        indptr, first = self._read_offsets(start, stop, relation)
        return indptr - first

    def read_adjacency(self, start: int, stop: int, relation: str = "") -> CSRBlock:
        """Return block rows with global columns; checks offsets, columns, order and weights."""
        indptr, first = self._read_offsets(start, stop, relation)
        indptr -= first
        last = first + int(indptr[-1])
        dataset = self._adjacency(relation, "indices")
        indices = read_slab(self.path, dataset, first, last, np.int64)
        self._check(dataset, checks.fault_in_columns(indices, self.num_nodes))
        self._check(dataset, checks.fault_in_order(indptr, indices, start))
        if not self.weighted(relation):
            return CSRBlock(indptr, indices, None)
        dataset = self._adjacency(relation, "weights")
        weights = read_slab(self.path, dataset, first, last)
        self._check(dataset, checks.fault_in_weights(weights))
        return CSRBlock(indptr, indices, weights)

    def read_nodes(self, start: int, stop: int) -> NodeBlock:
        """Return the nodes' data; checks features, labels, split and types."""
        return self._nodes.read_nodes(start, stop)

    def read_types(self, start: int, stop: int) -> Array | None:
        """Return the node types alone, as in `NodeBlock`; checks them."""
        return self._nodes.read_types(start, stop)

    def read_labels(self, start: int, stop: int) -> Array | None:
        """Return the labels alone, as in `NodeBlock`; checks them."""
        return self._nodes.read_labels(start, stop)

    def read_split(self, start: int, stop: int) -> Array | None:
        """Return the split alone, as in `NodeBlock`; checks it."""
        return self._nodes.read_split(start, stop)

    def part_edges(self, relations: tuple[str, ...] | None = None) -> Offsets:
        """Return the non-zeros (num_parts,) of each part, summed over `relations` (None: all)."""
        total = np.zeros(self.num_parts, np.int64)
        for relation in self.relations if relations is None else relations:
            dataset = self._adjacency(relation, "indptr")
            with format_errors(self.path, dataset.name):
                bounds = np.array([int(dataset[row]) for row in self.row_starts], np.int64)
            self._check(dataset, checks.fault_in_offsets(bounds))
            total += np.diff(bounds)
        return total

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Read everything and compare it with the checksums; raises `StorageFormatError`.

        `progress` is called with the number of bytes just read, `num_bytes` in total.
        """
        for name, dataset in self._layout.datasets.items():
            crc = 0
            for low, high in slab_pieces(dataset, 0, dataset.shape[0]):
                piece = read_slab(self.path, dataset, low, high)
                crc = array_crc(piece, crc)
                if progress is not None:
                    progress(piece.nbytes)
            if crc != self._layout.crcs[name]:
                raise damaged(self.path, name, "does not match its checksum")

    def _adjacency(self, relation: str, name: str) -> h5py.Dataset:
        if relation not in self.relations:
            known = ", ".join(repr(each) for each in self.relations)
            raise KeyError(f"{self.path} has no relation {relation!r}; it has {known}")
        return self._layout.datasets[f"{relation_path(relation)}/{name}"]

    def _node_dataset(self, name: str) -> h5py.Dataset | None:
        return self._layout.datasets.get(f"/nodes/{name}")

    def _check(self, dataset: h5py.Dataset, fault: str | None) -> None:
        if fault is not None:
            raise damaged(self.path, dataset.name, fault)

    def _read_offsets(self, start: int, stop: int, relation: str) -> tuple[Offsets, int]:
        check_rows(start, stop, self.num_nodes)
        dataset = self._adjacency(relation, "indptr")
        indptr = read_slab(self.path, dataset, start, stop + 1)
        self._check(dataset, checks.fault_in_offsets(indptr, start))
        nnz = self.num_edges(relation)
        if indptr[0] < 0 or indptr[-1] > nnz:
            self._check(dataset, f"points outside the {nnz} non-zeros")
        return indptr, int(indptr[0])

    def _read_row_starts(self) -> Offsets:
        dataset = self._layout.datasets.get("/partition/row_starts")
        if dataset is None:
            return np.array([0, self.num_nodes], np.int64)
        row_starts = read_slab(self.path, dataset, 0, dataset.shape[0])
        self._check(dataset, checks.fault_in_row_starts(row_starts, self.num_nodes))
        return row_starts
