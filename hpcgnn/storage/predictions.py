"""Files of rows that a model computed for nodes: HDF5, csv or npy, written all or nothing.

Rows arrive in pieces and in their final order, so that no file has to fit into memory.

    /node_id        int64[n]
    /probabilities  float32[n, C], or /embeddings float32[n, H]
    /prediction     int32[n], or uint8[n, C] of a multi-label model
    /classes        fixed-length bytes[C], where the classes have names

Of program graphs `/graph_id` takes the place of `/node_id`, `/probabilities` are of candidates (0
for those that a graph lacks), and the right candidate, split and place of each hole follow:

    /label, /split, /file, /line  int32[n]      /files  fixed-length bytes[f]
"""

import csv
import io
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from hpcgnn.storage.atomic import AtomicWriter, OutputFile
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.hdf5_writer import HDF5Writer
from hpcgnn.typing import Array, FloatArray, GlobalIndices

__all__ = ["CsvPredictions", "H5Predictions", "NpyPredictions", "PredictionFile"]

FORMAT = "hpcgnn predictions"
FORMAT_VERSION = 1


class PredictionFile(AtomicWriter):
    """A file that takes rows in pieces and appears whole or not at all."""

    def append(
        self, ids: GlobalIndices, values: FloatArray, predicted: Array | None = None
    ) -> None:
        """Append rows.

        Parameters
        ----------
        ids
            (m,) int64 original ids.
        values
            (m, width) float32.
        predicted
            (m,) int32 classes, or (m, width) uint8 of a multi-label model; None for embeddings.
        """
        self._write(ids, values, predicted)
        self._output.raise_on_error()

    @abstractmethod
    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None: ...


class H5Predictions(PredictionFile, HDF5Writer):
    """HDF5, as the module describes it.

    Parameters
    ----------
    path
        The file.
    values
        Name of the dataset of values: probabilities or embeddings.
    class_names
        One for each class, or none.
    attributes
        Text and integers for the root group: where the rows come from.
    ids
        Name of the dataset of ids.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        values: str,
        class_names: Sequence[str] = (),
        attributes: Mapping[str, str | int] | None = None,
        *,
        ids: str = "node_id",
    ) -> None:
        super().__init__(path)
        self._ids, self._values, self._class_names = ids, values, class_names
        self._attributes: dict[str, str | int] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **(attributes or {}),
        }
        self._columns: dict[str, Column] = {}

    def append_column(self, name: str, rows: Array) -> None:
        """Append `rows` to another dataset; fixed-length bytes are text."""
        self._append(name, rows)
        self._output.raise_on_error()

    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None:
        for name, rows in ((self._ids, ids), (self._values, values), ("prediction", predicted)):
            if rows is not None:
                self._append(name, rows)

    def _append(self, name: str, rows: Array) -> None:
        if name not in self._columns:
            self._columns[name] = Column(self._file, f"/{name}", rows.dtype, rows.shape[1:])
        self._columns[name].append(rows)

    def _finish(self) -> None:
        if self._class_names:
            self._append("classes", np.array([name.encode() for name in self._class_names]))
        for column in self._columns.values():
            column.finish()
        for name, value in self._attributes.items():
            if isinstance(value, str):
                self._set_text(self._file, name, value)
            else:
                self._file.attrs[name] = np.int64(value)


class CsvPredictions(PredictionFile):
    """Comma-separated text with a header; nine digits give every float32 exactly.

    `columns` names the columns of the values.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        super().__init__(path)
        self._header = ("node_id", *columns)

    def _begin(self) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(self._header)
        self._output.write(memoryview(line.getvalue().encode()))

    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None:  # noqa: ARG002
        row = "%d" + ",%.9g" * values.shape[1]
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        lines = [row % (number, *numbers) for number, numbers in pairs]
        self._output.write(memoryview("".join(f"{line}\n" for line in lines).encode()))

    def _end(self, *, complete: bool) -> None:
        """Leave the text as it is."""


class NpyPredictions(PredictionFile):
    """A NumPy array of the values, and of the ids where the rows are not nodes 0, 1, 2, ...

    The ids stand beside it: ``NAME.ids.npy`` for ``NAME.npy``. Rows 0, 1, 2, ... need none, and a
    file of ids that an earlier call has left there is removed.

    Parameters
    ----------
    path
        The file.
    shape
        Rows and columns of all pieces together.
    """

    def __init__(self, path: str | os.PathLike[str], shape: tuple[int, int]) -> None:
        super().__init__(path)
        self._shape = shape
        self.ids_path = self.path.with_name(f"{self.path.name.removesuffix('.npy')}.ids.npy")
        self.has_ids = False
        self._rows = 0

    def _begin(self) -> None:
        self._ids = OutputFile(self.ids_path)
        self._head(self._output, "<f4", self._shape)
        self._head(self._ids, "<i8", self._shape[:1])

    def _head(self, output: OutputFile, descr: str, shape: tuple[int, ...]) -> None:
        head = io.BytesIO()
        fields = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(head, fields)
        output.write(head.getbuffer())

    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None:  # noqa: ARG002
        self._output.write(memoryview(values.astype("<f4").tobytes()))
        self._ids.write(memoryview(ids.astype("<i8").tobytes()))
        self._ids.raise_on_error()
        expected = np.arange(self._rows, self._rows + len(ids))
        self.has_ids = self.has_ids or not np.array_equal(ids, expected)
        self._rows += len(ids)

    def _end(self, *, complete: bool) -> None:
        try:
            if complete and self.has_ids:
                self._ids.publish()
            elif complete:
                self.ids_path.unlink(missing_ok=True)
        finally:
            self._ids.abandon()
