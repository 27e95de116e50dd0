"""Add splits to a store by copying everything else unchanged, chunk by chunk."""

import os
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from hpcgnn.storage.datasets import Column, format_errors
from hpcgnn.storage.files import HDF5Writer
from hpcgnn.storage.format import encode_json, fingerprint
from hpcgnn.storage.graph import schema
from hpcgnn.storage.graph.reader import GraphStore
from hpcgnn.storage.graph.schema import StoreHeader
from hpcgnn.typing import Array

_ROOT_COPIES = (
    "adjacency",
    "nodes",
    "node_types",
    "partition",
    "classes",
    "edge_labels",
    "feature_names",
    "edge_feature_names",
    "fields",
)


def add_splits(
    store: GraphStore,
    path: str | os.PathLike[str],
    splits: Mapping[str, Array],
    provenance: Mapping[str, Any],
) -> None:
    """Write `store` with additional `splits` to `path`, which may be the store's own path.

    `splits` are uint8 (n,) in the order of the store's nodes. At most one chunk of the store is in
    memory. Raises `InputError` if a name is taken or cannot be stored, the file cannot be written,
    or `store` does not match its checksums; an earlier file at `path` stays as it was.
    """
    # The copy gets the same checksums, so damage must be found before.
    store.verify()
    names = (*store.splits, *splits)
    # The header checks them.
    StoreHeader(name=store.name, num_nodes=store.num_nodes, splits=names)
    with _SplitAdder(path, store, names, splits, provenance):
        pass


class _SplitAdder(HDF5Writer):
    def __init__(
        self,
        path: str | os.PathLike[str],
        store: GraphStore,
        names: tuple[str, ...],
        splits: Mapping[str, Array],
        provenance: Mapping[str, Any],
    ) -> None:
        super().__init__(path)
        self._store, self._names, self._splits = store, names, splits
        self._provenance = encode_json("provenance", provenance)

    def _finish(self) -> None:
        with h5py.File(self._store.path, "r", locking=False) as source:
            self._copy(source)
            values = {name: source.attrs[name] for name in source.attrs}
        texts = np.array([name.encode() for name in self._names])
        columns = [Column(self._file, schema.SPLIT_NAMES, texts.dtype)]
        columns[0].append(texts)
        for name, split in self._splits.items():
            target = "split" if name == self._names[0] else f"splits/{name}"
            columns.append(Column(self._file, f"/nodes/{target}", schema.SPLIT_DTYPE))
            columns[-1].append(split)
        for column in columns:
            column.finish()
        described = [column.described for column in columns]
        written = {column.path for column in columns}
        described += [item for item in self._store.described() if item[0] not in written]
        for name in values:
            self._file.attrs[name] = values[name]
        changed: dict[str, str | int | bool] = {
            "format_version": max(schema.NAMED_FORMAT_VERSION, int(values["format_version"])),
            "fingerprint": fingerprint(self._store.scalars, described),
            "provenance": self._provenance,
        }
        self._set_attributes(self._file, changed)

    def _copy(self, source: h5py.File) -> None:
        with format_errors(self._store.path, "/"):
            for name in _ROOT_COPIES:
                if name in source:
                    source.copy(name, self._file)
        self._output.raise_on_error()
