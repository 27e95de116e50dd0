"""Test whether a file system is suitable for stores and run directories."""

import contextlib
import fcntl
import os
import platform
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from hpcgnn.comm import Communicator, bcast
from hpcgnn.spmd import collective

_WRITTEN_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """Properties of a folder; `fault` is the reason why it is not writable, or empty.

    `kind` is the kernel's name of its file system (``lustre``, ``nfs4``), or empty.
    `write_bytes_per_s` is measured with 64 MiB, sync included. `unseen` are hosts that do not see a
    file that another host has written.
    """

    path: Path
    fault: str = ""
    kind: str = ""
    write_bytes_per_s: float = 0.0
    locks: bool = True
    unseen: tuple[str, ...] = ()


@collective
def try_folder(comm: Communicator, path: Path) -> FolderFacts:
    """Write, lock and find a file, and remove it; the result is the same on all ranks."""
    scratch: tempfile.TemporaryDirectory[str] | None = None
    facts = FolderFacts(path=path)
    if comm.rank == 0:
        try:
            scratch = tempfile.TemporaryDirectory(prefix=".hpcgnn-doctor-", dir=path)
            facts = _try_here(path, Path(scratch.name) / "data")
        except OSError as error:
            facts = FolderFacts(path=path, fault=f"{path}: {error.strerror}")
    facts, folder = bcast(comm, (facts, scratch.name if scratch is not None else None))
    sees = folder is None or (Path(folder) / "data").is_file()
    seen = comm.allgather((platform.node(), sees))
    if scratch is not None:
        scratch.cleanup()
    comm.Barrier()
    unseen = tuple(dict.fromkeys(host for host, sees_it in seen if not sees_it))
    return replace(facts, unseen=unseen)


def _try_here(path: Path, file: Path) -> FolderFacts:
    # Random bytes, since some file systems compress.
    content = os.urandom(_WRITTEN_BYTES)
    start = time.perf_counter()
    locks = True
    with file.open("wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            locks = False
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    seconds = time.perf_counter() - start
    return FolderFacts(
        path=path, kind=_kind(path), write_bytes_per_s=_WRITTEN_BYTES / seconds, locks=locks
    )


def _kind(path: Path) -> str:
    """Return the type of the file system that is mounted nearest above a folder."""
    folder, nearest, kind = path.resolve(), Path(), ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            # proc(5): the fifth field is the mount point, spaces in octal; the type follows " - ".
            fields, _, rest = line.partition(" - ")
            point = Path(fields.split(" ")[4].replace(r"\040", " "))
            # A later mount at the same point hides an earlier one.
            if folder.is_relative_to(point) and len(point.parts) >= len(nearest.parts):
                nearest, kind = point, rest.split(" ")[0]
    return kind
