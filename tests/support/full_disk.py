"""A disk that is full for a while, or that fails at the end."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcgnn.storage.atomic import OutputFile, write_fault


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make writes beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def unsynced(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let the disk find only when `path` is to be kept that it has no room for it."""
    sync = OutputFile.sync

    def fail(file: OutputFile) -> None:
        if file.path == path:
            raise write_fault(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        sync(file)

    monkeypatch.setattr(OutputFile, "sync", fail)
