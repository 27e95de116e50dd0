"""Write files that appear whole or not at all, and read small files whole.

A process locks its temporary files and folders; those without a lock were left by killed processes.

HDF5 cannot survive a failed write: it keeps the block to try again, and crashes the process when
the file is closed. So HDF5 never sees a failure. It writes through `OutputFile`, which remembers
the first error and drops all later writes; the writer asks for that error after each step. Nor do
signals raise there (`hpcgnn.errors.called_back`).
"""

import contextlib
import csv
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

from hpcgnn.errors import InputError, called_back

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}\.tmp")
_FOLDER = "hpcgnn-scratch-"


def hold(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; return False if another process holds it.

    On parallel file systems without locks this does nothing and returns True.
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
    """Yield a folder in TMPDIR, removed at the end; first remove those that killed processes left.

    Only folders made on this host are swept: locks of other hosts may not be visible here.
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
        # Until it is locked, another process may sweep it as a leftover.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            if hold(descriptor) and folder.exists():
                return folder, descriptor
            os.close(descriptor)


def scratch_folders() -> list[Path]:
    """Return the folders of `scratch_folder` on this host."""
    return sorted(Path(tempfile.gettempdir()).glob(f"{_FOLDER}{platform.node()}-*"))


def temporary_files(folder: Path) -> list[Path]:
    """Return the files of a folder whose names are those of unfinished outputs."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if _TEMPORARY.fullmatch(name)]


def sweep(paths: Iterable[Path]) -> list[Path]:
    """Remove those of `paths` that this user owns and no process has locked; return them."""
    return [leftover for leftover in paths if _remove_abandoned(leftover)]


def _remove_abandoned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Without locks this fails, and the file stays: another process may be writing it.
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
"""Blocks of at least this many zeros become a hole in the file."""

MOST_BYTES = 1 << 30
"""Default limit of `read_whole`, which is for descriptions and lists of nodes, not for data."""


def check_output(path: str | os.PathLike[str], *inputs: Path) -> None:
    """Raise `InputError` if no file can be written at `path`, or it is one of `inputs`.

    Commands call this before hours of work. It leaves no file behind.
    """
    for source in inputs:
        if Path(path).exists() and source.exists() and source.samefile(path):
            raise InputError(f"{path}: is the input itself; choose another output")
    OutputFile(Path(path)).abandon()


def require_file(path: Path, remedy: str = "check the path") -> Path:
    """Return `path` if it is a regular file, else raise `InputError` with the `remedy`."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; {remedy}") from None
    except OSError as error:
        # For example a name that is too long, or a folder without permission to enter.
        raise InputError(f"{path}: {error.strerror}; {remedy}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: is a folder, not a file; {remedy}")
    if not stat.S_ISREG(mode):
        # Reading a pipe waits for its writer, and a device may never end.
        raise InputError(f"{path}: is a pipe or a device, not a file; {remedy}")
    return path


def read_whole(path: Path, remedy: str = "check the path", most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises `InputError` with the `remedy` if it is not a regular file, larger, or unreadable.
    """
    require_file(path, remedy)
    try:
        # Without blocking, in case a pipe has replaced the file since the check.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    if len(content) > most:
        raise InputError(f"{path}: is larger than {most >> 20} MiB; {remedy}")
    return content


def read_csv(path: Path, where: str, remedy: str) -> tuple[list[str], dict[int, list[str]]]:
    """Return the header of a table and its rows by line, without blank lines.

    `where` names the table in messages.

    Raises `InputError` if it cannot be read, or a row has more or fewer fields than the header.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}: {reason}; {remedy}") from None
    header, rows = lines[0][1] if lines else [], dict(lines[1:])
    for line, row in rows.items():
        if len(row) != len(header):
            raise InputError(f"{where}, line {line} has {len(row)} fields, not {len(header)}")
    return header, rows


def write_whole(path: str | os.PathLike[str], content: bytes, *, streams: bool = False) -> None:
    """Write a file that appears whole or not at all; raises `InputError` if it cannot be written.

    With `streams`, `path` may also be a device or a pipe such as /dev/stdout.
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
    """Wait until the entries of a directory are on disk; raises `OSError`."""
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

    Creating it removes what killed writers of the same file have left; it raises `InputError` if
    the directory is not writable. An `OSError` in a write is kept in `error` instead of being
    raised. Zeros written past the end become a hole.
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
            # Follow a link: its target is replaced and the link stays.
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
            # Before Python 3.13 `resolve` raises RuntimeError for a loop of links.
            raise write_fault(path, error) from None

    def _create(self, prefix: str) -> int:
        while True:
            self.temporary = self._target.with_name(f"{prefix}{secrets.token_hex(6)}.tmp")
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self.temporary, flags, 0o666)
            # Until it is locked, another process may sweep it as a leftover.
            if hold(descriptor) and os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    @called_back
    def readable(self) -> bool:
        return True

    @called_back
    def writable(self) -> bool:
        return True

    @called_back
    def seekable(self) -> bool:
        return True

    @called_back
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = 0 if whence == os.SEEK_SET else os.fstat(self._descriptor).st_size
        self._position = base + offset
        return self._position

    @called_back
    def tell(self) -> int:
        return self._position

    @called_back
    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count

    @called_back
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
        # HDF5 fills the chunks of datasets that several processes will write with zeros.
        if len(view) < HOLE_BYTES or self._position < os.fstat(self._descriptor).st_size:
            return False
        return not (any(view[:HOLE_BYTES]) or np.frombuffer(view, np.uint8).any())

    def write_at(self, offset: int, data: "memoryview[int] | bytes") -> None:
        """Write all of `data` from byte `offset` on; keep an error in `error`."""
        view = memoryview(data)
        done = 0
        try:
            while self.error is None and done < len(view):
                done += os.pwrite(self._descriptor, view[done:], offset + done)
        except OSError as error:
            self.error = error

    @called_back
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
        """Wait until everything written is on disk; raises `InputError`."""
        self.raise_on_error()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_fault(self.path, error) from None

    def publish(self) -> None:
        """Sync the file and its directory under the final name; raises `InputError`."""
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
    """A handle for other processes to write to the file `temporary` of another's `OutputFile`."""

    def __init__(self, path: Path, temporary: Path) -> None:
        self.temporary = temporary
        super().__init__(path)

    def _open(self) -> None:
        try:
            # Opened write-only, an NFS client writes the given bytes instead of whole pages.
            self._descriptor = os.open(self.temporary, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(
                f"{self.path}: {platform.node()} cannot open the file that rank 0 created there "
                f"({error.strerror}); choose a directory that all hosts share"
            ) from None

    def publish(self) -> None:
        self.raise_on_error()

    def abandon(self) -> None:
        self.close()


class AtomicWriter(ABC):
    """Write a file at `path`; leaving the `with` block without an error publishes it.

    Until then only a temporary file in the same directory exists, and any error removes it; an
    earlier file at `path` stays as it was. An unwritable directory raises `InputError` at once, and
    a full disk raises it at the failed write.
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
                self._publish()
        except Exception:
            # The failed write itself is a clearer message than the library's exception.
            self._output.raise_on_error()
            raise
        finally:
            self._output.abandon()

    def _open(self) -> OutputFile:
        return OutputFile(self.path)

    def _publish(self) -> None:
        self._output.publish()

    @abstractmethod
    def _begin(self) -> None:
        """Prepare for writing to `_output`."""

    @abstractmethod
    def _end(self, *, complete: bool) -> None:
        """Release all resources; if `complete`, first write what remains."""
