"""Open a store's HDF5 file, alone or together with other ranks, verify it, and write it."""

import math
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage.atomic import AtomicWriter
from hpcgnn.storage.checksums import RowsRead, array_crc
from hpcgnn.storage.datasets import (
    Column,
    damaged,
    format_errors,
    read_pieces,
    read_slab,
    slab_pieces,
    text_type,
)
from hpcgnn.storage.format import CHUNK_BYTES
from hpcgnn.storage.members import Members
from hpcgnn.typing import Array, MakeRows

HDF5_VERSION: str = h5py.version.hdf5_version
"""Version of the HDF5 library that h5py is linked with."""

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_REMEDY = "name a store made by hpcgnn convert"

# Older HDF5 (such as a site's parallel build) reads this version, and its metadata have checksums.
LIBRARY_VERSIONS = ("v110", "v110")


class OpenStore(ABC):
    """A store that is open for reading; `fingerprint` identifies its content.

    `scalars` are the attributes that go into the fingerprint.
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self._file = path, file
        with format_errors(path, "/"):
            root = Members(path, file["/"])
        self.scalars = self._describe(root)
        self.fingerprint: str = root.attribute("fingerprint", str)
        self._datasets, self._crcs = root.opened, root.checksums(self.scalars)
        self._seen = {
            name: RowsRead(len(dataset), dataset.dtype.itemsize * math.prod(dataset.shape[1:]))
            for name, dataset in self._datasets.items()
        }

    @classmethod
    def open(cls, path: str | os.PathLike[str], comm: Any | None = None) -> Self:
        """Open a store; with `comm` and a parallel h5py this is collective over `comm`.

        Raises `InputError` if there is no readable file, and `StorageFormatError` if it is not a
        store, is of another version, or damaged.
        """
        path = Path(path)
        file = open_file(path, comm)
        stores: list[Self] = []
        try:
            fault = fault_of(lambda: stores.append(cls(path, file)))
            # Closing a file is collective too, so all ranks must fail together.
            raise_together(fault, comm)
        except BaseException:
            file.close()
            raise
        return stores[0]

    @abstractmethod
    def _describe(self, root: Members) -> Mapping[str, object]:
        """Open and check all datasets without reading rows; return the fingerprint's scalars."""

    def close(self) -> None:
        """Close the file; the store cannot be read any more."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def num_bytes(self) -> int:
        """Bytes of all datasets, which `verify` reads."""
        return sum(int(dataset.nbytes) for dataset in self._datasets.values())

    def described(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Return path, dtype, shape and recorded checksum of each dataset, for the fingerprint."""
        return [
            (name, np.dtype(dataset.dtype).str, dataset.shape, self._crcs[name])
            for name, dataset in self._datasets.items()
        ]

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Read everything and compare it with the checksums; raises `StorageFormatError`.

        `progress` is called with the number of bytes just read, `num_bytes` in total.
        """
        for name, dataset in self._datasets.items():
            crc = 0
            for piece in read_pieces(self.path, dataset):
                crc = array_crc(piece, crc)
                if progress is not None:
                    progress(piece.nbytes)
            if crc != self._crcs[name]:
                raise damaged(self.path, name, "does not match its checksum")

    def rows_read(self) -> tuple[Array, Array]:
        """Return this process's share in the checksum of each dataset, and how many rows it read.

        Both are (datasets,) int64. Combine the shares of several processes by exclusive or and
        their row counts by addition, and pass the results to `check_rows_read`.
        """
        shares = [rows.share() for rows in self._seen.values()]
        totals = np.array(shares, np.int64).reshape(-1, 2)
        return totals[:, 0].copy(), totals[:, 1].copy()

    def check_rows_read(self, crcs: Array, rows: Array) -> None:
        """Compare what all processes have read with the checksums; raises `StorageFormatError`.

        Datasets that no process has read are not compared.
        """
        for (name, dataset), crc, count in zip(
            self._datasets.items(), crcs.tolist(), rows.tolist(), strict=True
        ):
            if count not in (0, len(dataset)):
                raise damaged(self.path, name, f"has {len(dataset)} rows, of which {count} belong")
            if count and crc != self._crcs[name]:
                raise damaged(
                    self.path, name, "does not match its checksum: it was changed in place"
                )

    def read_share(self, number: int, of: int) -> None:
        """Read share `number` of `of` equal shares of every dataset, only to check its bytes."""
        for dataset in self._datasets.values():
            start, stop = (len(dataset) * part // of for part in (number, number + 1))
            for low, high in slab_pieces(dataset, start, stop):
                self._slab(dataset, low, high)

    def _check_whole(self, *names: str) -> None:
        """Verify the checksums of small datasets that every process reads; skip missing ones."""
        for dataset in (self._datasets[name] for name in names if name in self._datasets):
            rows = read_slab(self.path, dataset, 0, len(dataset))
            if array_crc(rows) != self._crcs[dataset.name]:
                raise damaged(self.path, dataset.name, "does not match its checksum")

    def _slab(
        self,
        dataset: h5py.Dataset,
        start: int,
        stop: int,
        dtype: Any = None,
        empty: MakeRows = np.empty,
    ) -> Array:
        """Return rows of a dataset as `read_slab` does, and count them for `rows_read`."""
        return read_slab(self.path, dataset, start, stop, dtype, self._seen[dataset.name], empty)


class HDF5Writer(AtomicWriter):
    """Write an HDF5 file, whole or not at all; subclasses fill `_file`."""

    def _begin(self) -> None:
        self._file = h5py.File(self._output, "w", libver=LIBRARY_VERSIONS)

    def _end(self, *, complete: bool) -> None:
        try:
            if complete:
                self._finish()
        finally:
            self._file.close()

    @abstractmethod
    def _finish(self) -> None:
        """Complete the datasets, and write the attributes."""

    def _column(self, path: str, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()) -> Column:
        return Column(self._file, path, dtype, row_shape)

    def _write_column(self, path: str, rows: Array) -> Column:
        column = Column(self._file, path, rows.dtype, rows.shape[1:])
        column.append(rows)
        column.finish()
        return column

    def _set_attributes(self, holder: h5py.Group, values: Mapping[str, str | int | bool]) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                holder.attrs.create(name, value.encode(), dtype=text_type(value))
            else:
                holder.attrs[name] = (np.bool_ if isinstance(value, bool) else np.int64)(value)


def open_file(path: Path, comm: Any | None, remedy: str = _REMEDY) -> h5py.File:
    """Open `path` for reading, in parallel if `comm` is given and h5py can.

    Each dataset caches one chunk instead of the 8 MiB of HDF5 2, since rows are read in order. With
    a parallel h5py this is collective over `comm`, and the error of one rank is raised on all.

    Raises `InputError` if there is no readable file and `StorageFormatError` if it is not HDF5;
    `remedy` says which file to name.
    """
    raise_together(fault_of(lambda: check_path(path, remedy)), comm)
    with format_errors(path, "file"):
        if is_parallel(comm):
            return h5py.File(path, "r", driver="mpio", comm=comm, rdcc_nbytes=CHUNK_BYTES)
        # A lock protects nothing here (stores are never changed in place), and some parallel file
        # systems refuse it.
        return h5py.File(path, "r", locking=False, rdcc_nbytes=CHUNK_BYTES)


def is_parallel(comm: Any | None) -> bool:
    """Tell whether files are opened collectively."""
    return comm is not None and bool(h5py.get_config().mpi)


def fault_of(action: Callable[[], object]) -> InputError | None:
    """Call `action` and return the `InputError` that it raises."""
    try:
        action()
    except InputError as error:
        return error
    return None


def raise_together(fault: InputError | None, comm: Any | None) -> None:
    """Raise `fault`; where files are opened collectively, raise any rank's fault on every rank."""
    faults = comm.allgather(fault) if comm is not None and is_parallel(comm) else [fault]
    for error in faults:
        if error is not None:
            raise error


def check_path(path: Path, remedy: str = _REMEDY) -> None:
    """Raise `InputError` unless `path` is a readable HDF5 file."""
    try:
        # Checked first: opening a pipe would wait for its other end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: is not a regular file; {remedy}")
        with path.open("rb") as file:
            head = file.read(len(SIGNATURE))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be opened ({reason}); {remedy}") from None
    if head != SIGNATURE:
        raise StorageFormatError(f"{path}: is not an HDF5 file; {remedy}")
