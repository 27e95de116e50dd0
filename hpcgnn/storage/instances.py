"""Reading a store of program graphs: ranges of graphs as packed arrays, checked on the way."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import StorageFormatError
from hpcgnn.storage import members, schema
from hpcgnn.storage.datasets import array_crc, damaged, format_errors, read_slab, slab_pieces
from hpcgnn.storage.instance_batch import InstanceBatch, InstanceSplit, starts_of
from hpcgnn.storage.instance_checks import fault_in_batch, fault_in_index
from hpcgnn.storage.instance_schema import (
    COLUMNS,
    INSTANCE_FORMAT,
    INSTANCE_VERSION,
    InstanceHeader,
)
from hpcgnn.storage.layout import json_attribute
from hpcgnn.storage.opening import open_file
from hpcgnn.typing import Array

__all__ = ["InstanceStore", "is_instance_store"]

_SIZES = (
    ("subtoken_counts", "num_nodes"),
    ("subtokens", "num_subtokens"),
    ("edge_types", "num_edges"),
    ("edges", "num_edges"),
    ("candidates", "num_candidates"),
)
"""Each dataset, in the order of `InstanceBatch`, and which count of the index it adds up to."""


class InstanceStore:
    """A store of program graphs, open for reading; use `InstanceStore.open` in a `with` statement.

    Attributes
    ----------
    header
        What the file says of all graphs.
    graphs
        (g,) of `GRAPH_DTYPE`: the whole index.
    fingerprint
        Of the content.
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self._file = path, file
        _check_version(path, file)
        self.fingerprint: str = members.attribute(path, file, "fingerprint", str)
        self.header = InstanceHeader(
            name=members.attribute(path, file, "name", str),
            edge_names=tuple(members.attribute(path, file, "edge_names", str).split()),
            num_buckets=members.attribute(path, file, "num_buckets", int),
            steps=members.attribute(path, file, "steps", int),
            provenance=json_attribute(path, file, "provenance"),
        )
        self._datasets = {name: self._dataset(name, *kind) for name, kind in COLUMNS.items()}
        self._datasets["files"] = self._dataset("files", None, ())
        self._check_fingerprint()
        self.graphs: Array = self._read("graphs", 0, len(self))
        fault = fault_in_index(self.graphs, len(self._datasets["files"]), 0) or self._sizes_fault()
        if fault:
            raise damaged(path, "/graphs", fault)
        self._starts = {name: starts_of(self.graphs[count]) for name, count in _SIZES}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "InstanceStore":
        """Open a store; `InputError` where none can be read, `StorageFormatError` for damage."""
        file = open_file(Path(path), None)
        try:
            return cls(Path(path), file)
        except BaseException:
            file.close()
            raise

    def __len__(self) -> int:
        return int(self._datasets["graphs"].shape[0])

    def __enter__(self) -> "InstanceStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the sources."""
        raw = self._read("files", 0, len(self._datasets["files"]))
        return tuple(name.decode("utf-8", "replace") for name in raw.tolist())

    @property
    def num_bytes(self) -> int:
        """Bytes of all datasets: what `verify` reads."""
        return sum(int(each.nbytes) for each in self._datasets.values())

    def split_range(self, split: InstanceSplit) -> tuple[int, int]:
        """Return the first graph of a split and the one after its last."""
        low, high = np.searchsorted(self.graphs["split"], [split, split + 1])
        return int(low), int(high)

    def read(self, start: int, stop: int) -> InstanceBatch:
        """Return graphs `start` to `stop` - 1; checks nodes, types, buckets and candidates."""
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"graphs {start} to {stop} are not within 0 to {len(self)}")
        parts = [
            self._read(name, int(starts[start]), int(starts[stop]))
            for name, starts in self._starts.items()
        ]
        batch = InstanceBatch(self.graphs[start:stop], *parts)
        fault = fault_in_batch(batch, len(self.header.edge_names), self.header.num_buckets)
        if fault:
            raise damaged(self.path, f"graphs {start} to {stop}", fault)
        return batch

    def candidates(self, start: int, stop: int) -> Array:
        """Return the candidates (c,) of `CANDIDATE_DTYPE` of graphs `start` to `stop` - 1."""
        starts = self._starts["candidates"]
        return self._read("candidates", int(starts[start]), int(starts[stop]))

    def read_graphs(self, graphs: Array) -> InstanceBatch:
        """Return the graphs with the sorted numbers `graphs` (m,); neighbours are read together."""
        runs = np.split(graphs, np.flatnonzero(np.diff(graphs) != 1) + 1) if len(graphs) else []
        batches = [self.read(int(run[0]), int(run[-1]) + 1) for run in runs]
        return InstanceBatch.join([InstanceBatch.empty(), *batches])

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Read everything and compare it with the checksums; raises `StorageFormatError`.

        `progress` is called with the number of bytes just read, `num_bytes` in total.
        """
        for name, dataset in self._datasets.items():
            crc = 0
            for low, high in slab_pieces(dataset, 0, dataset.shape[0]):
                piece = read_slab(self.path, dataset, low, high)
                crc = array_crc(piece, crc)
                if progress is not None:
                    progress(piece.nbytes)
            if crc != members.attribute(self.path, dataset, "crc32", int):
                raise damaged(self.path, f"/{name}", "does not match its checksum")

    def _read(self, name: str, start: int, stop: int) -> Array:
        return read_slab(self.path, self._datasets[name], start, stop)

    def _dataset(
        self, name: str, dtype: np.dtype[Any] | None, row_shape: tuple[int, ...]
    ) -> h5py.Dataset:
        dtypes = () if dtype is None else (dtype,)
        found = members.dataset(self.path, self._file, name, dtypes, (None, *row_shape))
        if found is None:
            raise damaged(self.path, f"/{name}", "is missing")
        return found

    def _sizes_fault(self) -> str | None:
        counts = self.graphs
        for name, count in _SIZES:
            if int(counts[count].sum(dtype=np.int64)) != self._datasets[name].shape[0]:
                return f"does not add up to the rows of /{name}"
        return None

    def _check_fingerprint(self) -> None:
        described = [
            (
                f"/{name}",
                np.dtype(each.dtype).str,
                each.shape,
                members.attribute(self.path, each, "crc32", int),
            )
            for name, each in self._datasets.items()
        ]
        if schema.fingerprint(self.header.scalars, described) != self.fingerprint:
            item = "/: attribute fingerprint"
            raise damaged(self.path, item, "does not belong to this file's datasets")


def is_instance_store(path: str | os.PathLike[str]) -> bool:
    """Tell whether an HDF5 file says that it holds program graphs; raises as `open` does."""
    with open_file(Path(path), None) as file:
        return _says_so(Path(path), file)


def _says_so(path: Path, file: h5py.File) -> bool:
    with format_errors(path, "/: attribute format"):
        known = "format" in file.attrs
    return known and members.attribute(path, file, "format", str) == INSTANCE_FORMAT


def _check_version(path: Path, file: h5py.File) -> None:
    if not _says_so(path, file):
        raise StorageFormatError(
            f"{path}: is no store of program graphs; make one with hpcgnn.convert programs"
        )
    version = members.attribute(path, file, "format_version", int)
    if version != INSTANCE_VERSION:
        raise StorageFormatError(
            f"{path}: format_version is {version} and this hpcgnn reads {INSTANCE_VERSION}; "
            "convert the programs again with this version"
        )
