"""Read and write a store of program graphs, with checks; ranges of graphs are packed arrays."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.datasets import Column, damaged, read_slab
from hpcgnn.storage.files import HDF5Writer, OpenStore, open_file
from hpcgnn.storage.format import encode_json, fingerprint
from hpcgnn.storage.instances.schema import (
    COLUMNS,
    INSTANCE_FORMAT,
    INSTANCE_VERSION,
    InstanceBatch,
    InstanceHeader,
    InstanceSplit,
    fault_in_batch,
    fault_in_index,
    starts_of,
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
"""Each dataset, in the order of `InstanceBatch`, and the index column that counts its rows."""


class InstanceStore(OpenStore):
    """A store of program graphs, open for reading; use `InstanceStore.open` in a `with` statement.

    `header` describes all graphs; `graphs` (g,) of `GRAPH_DTYPE` is the whole index.
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
        fault = "is no store of program graphs; make one with hpcgnn convert programs"
        root.version(INSTANCE_FORMAT, (INSTANCE_VERSION,), fault, "programs")
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
        """Names of the source files."""
        raw = self._read("files", 0, len(self._datasets["/files"]))
        return tuple(name.decode("utf-8", "replace") for name in raw.tolist())

    def split_range(self, split: InstanceSplit) -> tuple[int, int]:
        """Return the number of a split's first graph, and one more than that of its last."""
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
        """Return the graphs with sorted numbers `graphs` (m,); read consecutive ones together."""
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
    """Tell whether an HDF5 file is a store of program graphs; raises the same errors as `open`."""
    with open_file(Path(path), None) as file:
        return Members(Path(path), file).format() == INSTANCE_FORMAT


class InstanceWriter(HDF5Writer):
    """Write a store of program graphs; the index refers to `files` by position."""

    def __init__(
        self, path: str | os.PathLike[str], header: InstanceHeader, files: Sequence[str]
    ) -> None:
        super().__init__(path)
        self._header, self._files = header, files
        self._provenance = encode_json("provenance", header.provenance)
        self._last_split = 0

    def _begin(self) -> None:
        super()._begin()
        self._columns = {
            name: Column(self._file, f"/{name}", dtype, shape)
            for name, (dtype, shape) in COLUMNS.items()
        }

    def append(self, batch: InstanceBatch) -> None:
        """Append graphs, ordered by split over all calls; raises `InputError`."""
        header = self._header
        fault = fault_in_index(batch.graphs, len(self._files), self._last_split)
        fault = fault or fault_in_batch(batch, len(header.edge_names), header.num_buckets)
        if fault:
            raise InputError(f"{self.path}: {fault}")
        if len(batch):
            self._last_split = int(batch.graphs["split"][-1])
        for item in fields(batch):
            self._columns[item.name].append(getattr(batch, item.name))
        self._output.raise_on_error()

    def _finish(self) -> None:
        for column in self._columns.values():
            column.finish()
        names = np.array([name.encode("utf-8", "replace") for name in self._files], np.bytes_)
        columns = [*self._columns.values(), self._write_column("/files", names)]
        header = self._header
        content = fingerprint(header.scalars, [column.described for column in columns])
        values: dict[str, str | int] = {
            "num_buckets": header.num_buckets,
            "steps": header.steps,
            "format_version": INSTANCE_VERSION,
            "format": INSTANCE_FORMAT,
            "name": header.name,
            "edge_names": " ".join(header.edge_names),
            "provenance": self._provenance,
            "fingerprint": content,
        }
        self._set_attributes(self._file, values)
