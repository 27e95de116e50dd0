"""What a file system is like for stores and run directories."""

import fcntl
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.comm import Communicator, bcast
from hpcgnn.spmd import collective

_WRITTEN_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """What a folder allows.

    Parameters
    ----------
    fault
        Why nothing can be written there; empty where it can.
    write_bytes_per_s
        Of 64 MiB, until the disk has them.
    unseen
        Hosts that do not see what another has written.
    """

    path: Path
    fault: str = ""
    write_bytes_per_s: float = 0.0
    locks: bool = True
    unseen: tuple[str, ...] = ()


@collective
def try_folder(comm: Communicator, path: Path) -> FolderFacts:
    """Write, lock and find files; leaves none behind. On all ranks alike."""
    made: tempfile.TemporaryDirectory[str] | None = None
    facts = FolderFacts(path=path)
    if comm.rank == 0:
        try:
            made = tempfile.TemporaryDirectory(prefix=".hpcgnn-doctor-", dir=path)
            facts = _try_here(path, Path(made.name) / "data")
        except OSError as error:
            facts = FolderFacts(path=path, fault=f"{path}: {error.strerror}")
    facts, folder = bcast(comm, (facts, made.name if made is not None else None))
    sees = folder is None or (Path(folder) / "data").is_file()
    seen = comm.allgather((platform.node(), sees))
    if made is not None:
        made.cleanup()
    comm.Barrier()
    unseen = tuple(dict.fromkeys(host for host, found in seen if not found))
    return FolderFacts(
        path=path,
        fault=facts.fault,
        write_bytes_per_s=facts.write_bytes_per_s,
        locks=facts.locks,
        unseen=unseen,
    )


def _try_here(path: Path, file: Path) -> FolderFacts:
    # Random bytes: some file systems compress.
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
    return FolderFacts(path=path, write_bytes_per_s=_WRITTEN_BYTES / seconds, locks=locks)
