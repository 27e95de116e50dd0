"""Writing a store of program graphs: checks on the way, all or nothing at the end."""

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage import schema
from hpcgnn.storage.atomic import OutputFile
from hpcgnn.storage.datasets import Column, text_type
from hpcgnn.storage.instance_batch import InstanceBatch
from hpcgnn.storage.instance_checks import fault_in_batch, fault_in_index
from hpcgnn.storage.instance_schema import (
    COLUMNS,
    INSTANCE_FORMAT,
    INSTANCE_VERSION,
    InstanceHeader,
)

__all__ = ["InstanceWriter"]

# As in stores: metadata carry checksums, and an older HDF5 reads it.
_LIBRARY_VERSIONS = ("v110", "v110")


class InstanceWriter:
    """Write a store to `path`; leaving the `with` block without an error publishes the file.

    An earlier file at `path` stays whole until then. `files` are the names that the column ``file``
    of the index counts.
    """

    def __init__(
        self, path: str | os.PathLike[str], header: InstanceHeader, files: Sequence[str]
    ) -> None:
        self.path, self._header, self._files = Path(path), header, files
        self._provenance = schema.encode_json("provenance", header.provenance)
        self._last_split = 0

    def __enter__(self) -> "InstanceWriter":
        self._output = OutputFile(self.path)
        try:
            self._file = h5py.File(self._output, "w", libver=_LIBRARY_VERSIONS)
        except BaseException:
            self._output.abandon()
            raise
        self._columns = {
            name: Column(self._file, f"/{name}", dtype, shape)
            for name, (dtype, shape) in COLUMNS.items()
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            try:
                if kind is None:
                    self._finish()
            finally:
                self._file.close()
            if kind is None:
                self._output.publish()
        except Exception:
            self._output.raise_on_error()
            raise
        finally:
            self._output.abandon()

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
            attributes.create(name, text.encode(), dtype=text_type(text))
