"""Opening the file of a store, alone or together with other ranks."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage.datasets import format_errors
from hpcgnn.storage.schema import REMEDY

__all__ = ["fault_of", "open_file", "raise_together"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"


def open_file(path: Path, comm: Any | None) -> h5py.File:
    """Open `path` for reading, in parallel where h5py can and `comm` is given.

    With a parallel h5py this is collective over `comm`, and a rank's error is every rank's. Raises
    `InputError` where there is no readable file and `StorageFormatError` where it is not HDF5.
    """
    raise_together(fault_of(lambda: check_path(path)), comm)
    with format_errors(path, "file"):
        if is_parallel(comm):
            return h5py.File(path, "r", driver="mpio", comm=comm)
        # A lock protects nothing here (stores are never changed in place), and some parallel file
        # systems refuse it.
        return h5py.File(path, "r", locking=False)


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
    for each in faults:
        if each is not None:
            raise each


def check_path(path: Path) -> None:
    """Raise `InputError` unless `path` is a readable HDF5 file."""
    remedy = "name a store made by hpcgnn.convert"
    try:
        # Looked at first: opening a pipe would wait for its other end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: is not a regular file; {remedy}")
        with path.open("rb") as file:
            head = file.read(len(SIGNATURE))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be opened ({reason}); {remedy}") from None
    if head != SIGNATURE:
        raise StorageFormatError(f"{path}: is not an HDF5 file; {remedy}, or {REMEDY}")
