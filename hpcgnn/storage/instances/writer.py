"""Writing a store of program graphs: checks on the way, all or nothing at the end."""

import os
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.files import HDF5Writer
from hpcgnn.storage.format import encode_json, fingerprint
from hpcgnn.storage.instances.batch import InstanceBatch, fault_in_batch, fault_in_index
from hpcgnn.storage.instances.schema import (
    COLUMNS,
    INSTANCE_FORMAT,
    INSTANCE_VERSION,
    InstanceHeader,
)


class InstanceWriter(HDF5Writer):
    """Write a store of program graphs to `path`, whole or not at all.

    `files` are the names that the column ``file`` of the index counts.
    """

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
        """Append graphs, whose split must not come before that of the last; raises `InputError`."""
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
