"""Read plain or gzipped text files in large blocks of whole lines, with bounded memory."""

import gzip
import json
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import require_file

BLOCK_BYTES = 4 << 20
MATRIX_MARKET = "%%matrixmarket"
"""First characters of a Matrix Market file, in lower case."""

PARQUET = (".parquet", ".pq")
"""Suffixes of Parquet files."""

LONGEST_LINE_BYTES = 1 << 30
MOST_DESCRIPTION_BYTES = 1 << 20
"""Limit for descriptions of tables: parsers are slow, and parsed values many times larger."""

MOST_GROWTH = 1040
"""Most bytes that one byte compressed by zlib can expand to, rounded up."""

_GZIP = b"\x1f\x8b"
_NO_TEXT = {
    b"\xff\xfe": "is text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "is text in UTF-16; save it as UTF-8",
    b"PAR1": "is a Parquet file; give it the ending .parquet",
    b"BZh91AY&SY": "is packed by bzip2; unpack it, or pack it with gzip",
    b"\xfd7zXZ\x00": "is packed by xz; unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "is packed by Zstandard; unpack it, or pack it with gzip",
    b"PK\x03\x04": "is a zip archive or a workbook; unpack it, or save its sheet as text",
}
"""First bytes of files that are not text although their names suggest it."""

_QUIET_BELOW_BYTES = 8 << 20
"""Smaller files are read too fast for a progress display to be useful."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines, ending in a line feed; `line` is the first's number, 1 at byte `base`."""

    path: Path
    data: bytes
    line: int
    base: int = 0

    @property
    def first_line(self) -> int:
        """The number of the first line in its file; counts the lines before `base` if needed."""
        before = _lines_between(self.path, 0, self.base, BLOCK_BYTES) if self.base else ()
        return self.line + sum(piece.count(b"\n") for piece in before)


Span: TypeAlias = tuple[int, int]
"""The lines that begin at a byte offset from the first number up to the second, exclusive."""


def read_blocks(
    path: Path,
    block_bytes: int = BLOCK_BYTES,
    longest_line: int = LONGEST_LINE_BYTES,
    span: Span | None = None,
) -> Iterator[TextBlock]:
    """Yield the lines of `path` in blocks of about `block_bytes`; every line ends in a line feed.

    `span` selects some lines. Raises `InputError` for a missing, unreadable, truncated or damaged
    file, and for a line of more than `longest_line` bytes.
    """
    pending: list[bytes] = []
    first_line, base = 1, 0
    pieces: Iterator[bytes]
    if span is None or span[0] == 0:
        pieces = read_pieces(path, block_bytes, span)
    else:
        base = _line_after(path, span[0])
        pieces = _lines_between(path, base, span[1], block_bytes)
    for piece in pieces:
        cut = piece.rfind(b"\n") + 1
        if cut == 0:
            pending.append(piece)
            if (length := sum(map(len, pending))) > longest_line:
                raise InputError(
                    f"{path}: line {first_line} does not end within {length >> 20} MiB; "
                    "this is not a text file of the expected format"
                )
            continue
        data = b"".join([*pending, memoryview(piece)[:cut]])
        yield TextBlock(path, data, first_line, base)
        # Many times faster than bytes.count.
        first_line += int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
        pending = [piece[cut:]]
    if last_line := b"".join(pending):
        yield TextBlock(path, last_line + b"\n", first_line, base)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except (EOFError, zlib.error, OSError) as error:
        raise read_error(path, error) from error


def _line_after(path: Path, offset: int) -> int:
    """Return the start of the first line that begins at or after byte `offset` > 0."""
    with _opened(path) as file:
        file.seek(offset - 1)
        while line := file.readline(BLOCK_BYTES):
            if line.endswith(b"\n"):
                break
        return file.tell()


def _lines_between(path: Path, start: int, stop: int, size: int) -> Iterator[bytes]:
    """Yield, `size` bytes at a time, the lines that begin at bytes `start` to `stop` - 1."""
    with _opened(path) as file:
        file.seek(start)
        piece = b"\n"
        while start < stop and (piece := file.read(min(size, stop - start))):
            start += len(piece)
            yield piece
        # Complete the last line, which may end after `stop`.
        while not piece.endswith(b"\n") and (piece := file.readline(size)):
            yield piece


def is_packed(path: Path) -> bool:
    """Tell whether a file is gzipped, so that reading cannot begin inside; raises `InputError`."""
    # The first bytes decide, not the name: .gz files are often unpacked without being renamed.
    with _opened(require_file(path)) as file:
        return file.read(len(_GZIP)) == _GZIP


def read_pieces(path: Path, size: int, span: Span | None = None) -> Generator[bytes, None, None]:
    """Yield the bytes of a text file, or of the lines of a `span` that begins at 0, `size` at once.

    They are unpacked, without a byte order mark. Raises `InputError` for a file that is not text.
    """
    total = require_file(path).stat().st_size
    if span is not None and span[1] < total:
        pieces = _lines_between(path, 0, span[1], size)
    else:
        pieces = _unpacked(path, size, quiet=total < _QUIET_BELOW_BYTES or span is not None)
    if head := next(pieces, b""):
        for mark, reason in _NO_TEXT.items():
            if head.startswith(mark):
                raise InputError(f"{path}: {reason}")
        yield head.removeprefix(b"\xef\xbb\xbf")
    yield from pieces


def _unpacked(path: Path, size: int, *, quiet: bool) -> Iterator[bytes]:
    packed = is_packed(path)
    with _opened(path) as raw:
        progress = Progress(f"reading {path.name}", path.stat().st_size >> 10, "KiB", quiet=quiet)
        stream, shown = gzip.GzipFile(fileobj=raw) if packed else raw, 0
        with progress:
            while piece := stream.read(size):
                yield piece
                kib_read = raw.tell() >> 10
                progress.advance(kib_read - shown)
                shown = kib_read


def read_error(path: Path, error: Exception) -> InputError:
    """Return the `InputError` for a read of `path` that failed with `error`."""
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        reason = error.strerror or str(error)
        return InputError(f"{path}: cannot be read ({reason}); check its permissions and the disk")
    return InputError(
        f"{path}: the compressed file is truncated or damaged ({error}); copy or download it again"
    )


def decoded(texts: Iterable[bytes], where: str) -> list[str]:
    """Decode UTF-8 texts; raises `InputError`."""
    try:
        return [text.decode("utf-8") for text in texts]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} holds text that is not UTF-8 ({error}); save it as UTF-8"
        ) from error


def read_json(path: Path, most: int | None = None) -> Any:
    """Return the content of a JSON file of at most `most` bytes; raises `InputError`."""
    return read_nested(path, json.loads, "JSON text", most)


def read_nested(path: Path, parse: Callable[[str], Any], kind: str, most: int | None = None) -> Any:
    """Parse the text of a file of at most `most` bytes; raises `InputError`, also if too nested.

    `parse` raises `ValueError` for faulty text; messages call the text `kind`.
    """
    require_file(path)
    try:
        if most is not None and path.stat().st_size > most:
            raise InputError(
                f"{path}: is larger than {most >> 10} KiB, more than a description of tables needs"
            )
        return parse(path.read_text(encoding="utf-8-sig"))
    except InputError:
        raise
    except OSError as error:
        raise read_error(path, error) from error
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:
        reason = one_line(error)[:200]
        raise InputError(f"{path}: is not valid {kind} ({reason}); correct it") from error
