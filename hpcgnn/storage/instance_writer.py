"""Writing a store of program graphs: checks on the way, all or nothing at the end."""

import os
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage import schema
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.hdf5_writer import HDF5Writer
from hpcgnn.storage.instance_batch import InstanceBatch
from hpcgnn.storage.instance_checks import fault_in_batch, fault_in_index
from hpcgnn.storage.instance_schema import (
    COLUMNS,
    INSTANCE_FORMAT,
    INSTANCE_VERSION,
    InstanceHeader,
)

__all__ = ["InstanceWriter"]


class InstanceWriter(HDF5Writer):
    """Write a store of program graphs to `path`, whole or not at all.

    `files` are the names that the column ``file`` of the index counts.
    """

    def __init__(
        self, path: str | os.PathLike[str], header: InstanceHeader, files: Sequence[str]
    ) -> None:
        super().__init__(path)
        self._header, self._files = header, files
        self._provenance = schema.encode_json("provenance", header.provenance)
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
        for each in fields(batch):
            self._columns[each.name].append(getattr(batch, each.name))
        self._output.raise_on_error()

    def _finish(self) -> None:
        names = np.array([name.encode("utf-8", "replace") for name in self._files], np.bytes_)
        files = Column(self._file, "/files", names.dtype)
        files.append(names)
        columns = [*self._columns.values(), files]
        for column in columns:
            column.finish()
        header, attributes = self._header, self._file.attrs
        numbers = {"num_buckets": header.num_buckets, "steps": header.steps}
        for name, value in {**numbers, "format_version": INSTANCE_VERSION}.items():
            attributes[name] = np.int64(value)
        described = [(c.path, c.dtype.str, (c.rows, *c.row_shape), c.crc) for c in columns]
        texts = {
            "format": INSTANCE_FORMAT,
            "name": header.name,
            "edge_names": " ".join(header.edge_names),
            "provenance": self._provenance,
            "fingerprint": schema.fingerprint(header.scalars, described),
        }
        for name, text in texts.items():
            self._set_text(self._file, name, text)
