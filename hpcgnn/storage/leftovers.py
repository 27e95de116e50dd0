"""Temporary files and folders of killed processes, told from those in use by their locks."""

import contextlib
import fcntl
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}\.tmp")
_FOLDER = "hpcgnn-scratch-"


def hold(descriptor: int) -> bool:
    """Mark an open file or folder as in use until it is closed; return whether no other uses it.

    Some parallel file systems have no locks: nothing is marked there, and the check is the user's.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder in TMPDIR that is removed at the end; first remove what killed processes left.

    Only folders of this host are swept: elsewhere a lock may not be seen.
    """
    sweep(scratch_folders())
    prefix = f"{_FOLDER}{platform.node()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            hold(descriptor)
            yield Path(name)
        finally:
            os.close(descriptor)


def scratch_folders() -> list[Path]:
    """Return the folders of `scratch_folder` on this host."""
    return sorted(Path(tempfile.gettempdir()).glob(f"{_FOLDER}{platform.node()}-*"))


def temporary_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are named like those of outputs in progress."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if _TEMPORARY.fullmatch(name)]


def sweep(paths: Iterable[Path]) -> list[Path]:
    """Remove those of `paths` that belong to this user and that no process holds; return them."""
    return [leftover for leftover in paths if _remove_abandoned(leftover)]


def _remove_abandoned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Where there are no locks this fails, and the file stays: somebody may be writing it.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return False
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
