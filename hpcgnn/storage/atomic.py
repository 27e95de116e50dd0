"""Files that appear whole or not at all, and small ones that are read whole.

Temporary files and folders of killed processes are told from those in use by their locks.

HDF5 cannot survive a failed write: it keeps the block for another try, and crashes the process when
the file is closed. So HDF5 never sees one. It writes through `OutputFile`, which remembers the
first error and drops what follows; the writer asks for that error after each step.
"""

import contextlib
import fcntl
import io
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import numpy as np

from hpcgnn.errors import InputError

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
    folder, descriptor = _held_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _held_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{platform.node()}-"))
        # Before it is held, another process may take it for a leftover.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            if hold(descriptor) and folder.exists():
                return folder, descriptor
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


HOLE_BYTES = 1 << 12
"""Zeros that are worth a hole in a file."""

MOST_BYTES = 1 << 30
"""What `read_whole` reads at most: descriptions and lists of nodes, not data."""


def check_output(path: str | os.PathLike[str], *inputs: Path) -> None:
    """Raise `InputError` unless a file could be written at `path`; leaves nothing behind.

    Commands call this before hours of work. A file of `inputs` is not written over.
    """
    for each in inputs:
        if Path(path).exists() and each.exists() and each.samefile(path):
            raise InputError(f"{path}: is the input itself; choose another output")
    OutputFile(Path(path)).abandon()


def require_file(path: Path, remedy: str = "check the path") -> Path:
    """Return `path` if it is a regular file, else raise `InputError` with the `remedy`."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; {remedy}") from None
    except OSError as error:
        # A name that is too long, a folder that may not be entered.
        raise InputError(f"{path}: {error.strerror}; {remedy}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: is a folder where a file is due; {remedy}")
    if not stat.S_ISREG(mode):
        # A pipe would be waited for, and a device may never end.
        raise InputError(f"{path}: is a pipe or a device where a file is due; {remedy}")
    return path


def read_whole(path: Path, remedy: str = "check the path", most: int = MOST_BYTES) -> bytes:
    """Return what a regular file of at most `most` bytes holds.

    Raises `InputError` with the `remedy` where it is none, is larger, or cannot be read.
    """
    require_file(path, remedy)
    try:
        # Had a pipe taken its place since then, this would not wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    if len(content) > most:
        raise InputError(f"{path}: is larger than {most >> 20} MiB; {remedy}")
    return content


def write_whole(path: str | os.PathLike[str], content: bytes, *, streams: bool = False) -> None:
    """Write a file that appears whole or not at all; raises `InputError` where it cannot be.

    With `streams` devices and pipes, such as /dev/stdout, take the content as it comes.
    """
    path = Path(path)
    try:
        if streams and path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(content)
            return
    except OSError as error:
        raise write_fault(path, error) from None
    file = OutputFile(path)
    try:
        file.write(memoryview(content))
        file.publish()
    finally:
        file.abandon()


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_fault(path: Path, error: Exception) -> InputError:
    """Return the one-line error for a failed write to `path`."""
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(
        f"{path}: cannot be written ({reason}); choose a directory that is writable and has room"
    )


class OutputFile(io.RawIOBase):
    """A random-access file under a temporary name beside `path`, published by `publish()`.

    Creating it removes what killed writers of the same file have left, and raises `InputError` when
    the directory cannot be written to. An `OSError` in a write is kept in `error` instead of being
    raised. Zeros behind the end become a hole.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.error: OSError | None = None
        self._position = 0
        self._open()

    def _open(self) -> None:
        path = self.path
        try:
            # A link is followed, so that the file it names is replaced and the link stays.
            self._target = path.resolve()
            if self._target.is_dir():
                raise InputError(f"{path}: is a directory; name a file")
            if self._target.exists() and not self._target.is_file():
                raise InputError(f"{path}: is a device or a pipe; name a file")
            prefix = f".{self._target.name[:40]}."
            started = temporary_files(self._target.parent)
            sweep(path for path in started if path.name.rpartition(".")[0][:-12] == prefix)
            self._descriptor = self._create(prefix)
        except (OSError, RuntimeError) as error:
            # Before Python 3.13 a loop of links is a RuntimeError.
            raise write_fault(path, error) from None

    def _create(self, prefix: str) -> int:
        while True:
            self.temporary = self._target.with_name(f"{prefix}{secrets.token_hex(6)}.tmp")
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self.temporary, flags, 0o666)
            # Before it is held, another process may take it for a leftover.
            if hold(descriptor) and os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = 0 if whence == os.SEEK_SET else os.fstat(self._descriptor).st_size
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count

    def write(self, data: "memoryview[int]") -> int:  # type: ignore[override]
        view = memoryview(data)
        end = self._position + len(view)
        if self._is_hole(view):
            self.truncate(end)
        else:
            self.write_at(self._position, view)
        self._position = end
        return len(view)

    def _is_hole(self, view: "memoryview[int]") -> bool:
        # HDF5 fills the chunks of a dataset that several processes will write.
        if len(view) < HOLE_BYTES or self._position < os.fstat(self._descriptor).st_size:
            return False
        return not (any(view[:HOLE_BYTES]) or np.frombuffer(view, np.uint8).any())

    def write_at(self, offset: int, data: "memoryview[int] | bytes") -> None:
        """Write all of `data` from byte `offset` on, or remember why it could not be written."""
        view = memoryview(data)
        done = 0
        try:
            while self.error is None and done < len(view):
                done += os.pwrite(self._descriptor, view[done:], offset + done)
        except OSError as error:
            self.error = error

    def truncate(self, size: int | None = None) -> int:
        size = self._position if size is None else size
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            self.error = self.error or error
        return size

    def raise_on_error(self) -> None:
        """Raise `InputError` if a write has failed."""
        if self.error is not None:
            raise write_fault(self.path, self.error) from None

    def sync(self) -> None:
        """Wait until what was written is on disk; raises `InputError`."""
        self.raise_on_error()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_fault(self.path, error) from None

    def publish(self) -> None:
        """Give the file its final name, on disk as well as in memory; raises `InputError`."""
        self.sync()
        try:
            self.temporary.replace(self._target)
            sync_directory(self._target.parent)
        except OSError as error:
            raise write_fault(self.path, error) from None

    def abandon(self) -> None:
        """Close, and remove the temporary file unless it was published."""
        self.temporary.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class OutputPart(OutputFile):
    """Another process's way into the file that the `OutputFile` of `path` has at `temporary`."""

    def __init__(self, path: Path, temporary: Path) -> None:
        self.temporary = temporary
        super().__init__(path)

    def _open(self) -> None:
        try:
            # Not for reading: an NFS client then writes the bytes it is given, not whole pages.
            self._descriptor = os.open(self.temporary, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(
                f"{self.path}: {platform.node()} cannot open the file that rank 0 has begun there "
                f"({error.strerror}); choose a directory that all hosts share"
            ) from None

    def publish(self) -> None:
        self.raise_on_error()

    def abandon(self) -> None:
        self.close()


class AtomicWriter(ABC):
    """Write a file at `path`; leaving the `with` block without an error publishes it.

    Until then only a temporary file in the same directory exists, which any error removes; an
    earlier file at `path` stays whole. A directory that cannot be written to raises `InputError` at
    once, and so does a disk that fills up.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __enter__(self) -> Self:
        self._output = self._open()
        try:
            self._begin()
        except BaseException:
            self._output.abandon()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._end(complete=kind is None)
            if kind is None:
                self._output.publish()
        except Exception:
            # What a library makes of a failed write is less clear than its cause.
            self._output.raise_on_error()
            raise
        finally:
            self._output.abandon()

    def _open(self) -> OutputFile:
        return OutputFile(self.path)

    @abstractmethod
    def _begin(self) -> None:
        """Prepare for writing to `_output`."""

    @abstractmethod
    def _end(self, *, complete: bool) -> None:
        """Let go of everything; when `complete`, write what comes last before."""
