"""Reading a store of program graphs: ranges of graphs as packed arrays, checked on the way."""

import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.errors import StorageFormatError
from hpcgnn.storage.datasets import damaged, read_slab
from hpcgnn.storage.files import OpenStore, open_file
from hpcgnn.storage.instances.batch import InstanceBatch, fault_in_batch, fault_in_index, starts_of
from hpcgnn.storage.instances.schema import (
    COLUMNS,
    INSTANCE_FORMAT,
    INSTANCE_VERSION,
    InstanceHeader,
    InstanceSplit,
)
from hpcgnn.storage.members import Members
from hpcgnn.typing import Array

_SIZES = (
    ("subtoken_counts", "num_nodes"),
    ("subtokens", "num_subtokens"),
    ("edge_types", "num_edges"),
    ("edges", "num_edges"),
    ("candidates", "num_candidates"),
)
"""Each dataset, in the order of `InstanceBatch`, and which count of the index it adds up to."""


class InstanceStore(OpenStore):
    """A store of program graphs, open for reading; use `InstanceStore.open` in a `with` statement.

    `header` is what the file says of all graphs, `graphs` (g,) of `GRAPH_DTYPE` the whole index.
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        super().__init__(path, file)
        self._check_whole("/graphs")
        self.graphs: Array = self._read("graphs", 0, len(self))
        fault = fault_in_index(self.graphs, len(self._datasets["/files"]), 0) or self._sizes_fault()
        if fault:
            raise damaged(path, "/graphs", fault)
        self._starts = {name: starts_of(self.graphs[count]) for name, count in _SIZES}

    def _describe(self, root: Members) -> Mapping[str, object]:
        _check_version(root)
        self.header = InstanceHeader(
            name=root.attribute("name", str),
            edge_names=tuple(root.attribute("edge_names", str).split()),
            num_buckets=root.attribute("num_buckets", int),
            steps=root.attribute("steps", int),
            provenance=root.json("provenance"),
        )
        for name, (dtype, row_shape) in COLUMNS.items():
            root.required(name, (dtype,), (None, *row_shape))
        root.required("files", (), (None,))
        return self.header.scalars

    def __len__(self) -> int:
        return int(self._datasets["/graphs"].shape[0])

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the sources."""
        raw = self._read("files", 0, len(self._datasets["/files"]))
        return tuple(name.decode("utf-8", "replace") for name in raw.tolist())

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

    def _read(self, name: str, start: int, stop: int) -> Array:
        return read_slab(self.path, self._datasets[f"/{name}"], start, stop)

    def _sizes_fault(self) -> str | None:
        counts = self.graphs
        for name, count in _SIZES:
            if int(counts[count].sum(dtype=np.int64)) != self._datasets[f"/{name}"].shape[0]:
                return f"does not add up to the rows of /{name}"
        return None


def is_instance_store(path: str | os.PathLike[str]) -> bool:
    """Tell whether an HDF5 file says that it holds program graphs; raises as `open` does."""
    with open_file(Path(path), None) as file:
        return Members(Path(path), file).format() == INSTANCE_FORMAT


def _check_version(root: Members) -> None:
    if root.format() != INSTANCE_FORMAT:
        raise StorageFormatError(
            f"{root.path}: is no store of program graphs; make one with hpcgnn.convert programs"
        )
    version = root.attribute("format_version", int)
    if version != INSTANCE_VERSION:
        raise StorageFormatError(
            f"{root.path}: format_version is {version} and this hpcgnn reads {INSTANCE_VERSION}; "
            "convert the programs again with this version"
        )
