"""Read text files in large blocks of whole lines, gzipped or not, with bounded memory."""

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
from hpcgnn.errors import InputError
from hpcgnn.storage import require_file

BLOCK_BYTES = 4 << 20
MATRIX_MARKET = "%%matrixmarket"
"""How a file of that format begins, in small letters."""

PARQUET = (".parquet", ".pq")
"""The endings of files of that format."""

LONGEST_LINE_BYTES = 1 << 30
MOST_DESCRIPTION_BYTES = 1 << 20
"""Of a description of tables: their parsers are slow, and their values many times larger."""

MOST_GROWTH = 1040
"""Bytes that one byte packed by zlib can stand for at most, rounded up."""

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
"""How files begin that are taken for text by their names."""

_QUIET_BELOW_BYTES = 8 << 20
"""Files smaller than this are read before a progress display could be read."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of a file: `data` ends with a line feed, `line` counts from 1 at byte `base`."""

    path: Path
    data: bytes
    line: int
    base: int = 0

    @property
    def first_line(self) -> int:
        """The number of the first line in its file, before which lines may have to be counted."""
        before = _lines_between(self.path, 0, self.base, BLOCK_BYTES) if self.base else ()
        return self.line + sum(piece.count(b"\n") for piece in before)


Span: TypeAlias = tuple[int, int]
"""The lines that begin at the bytes from the first to before the second."""


def read_blocks(
    path: Path,
    block_bytes: int = BLOCK_BYTES,
    longest_line: int = LONGEST_LINE_BYTES,
    span: Span | None = None,
) -> Iterator[TextBlock]:
    """Yield the lines of `path` in blocks of about `block_bytes`; the last line gets its line feed.

    `span` chooses some lines. Raises `InputError` for a missing, unreadable, truncated or damaged
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
                    f"{path}: no line ends in the {length >> 20} MiB from line {first_line} on; "
                    "this is not a text file of the expected format"
                )
            continue
        data = b"".join([*pending, memoryview(piece)[:cut]])
        yield TextBlock(path, data, first_line, base)
        # Many times faster than to count in bytes.
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
    """Return where the first line begins that does not begin before byte `offset` > 0."""
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
        # The last line ends where it ends.
        while not piece.endswith(b"\n") and (piece := file.readline(size)):
            yield piece


def is_packed(path: Path) -> bool:
    """Tell whether a file is gzipped, and so has no lines to begin at; raises `InputError`."""
    # The first bytes decide, not the name: .gz files are often unpacked without being renamed.
    with _opened(require_file(path)) as file:
        return file.read(len(_GZIP)) == _GZIP


def read_pieces(path: Path, size: int, span: Span | None = None) -> Generator[bytes, None, None]:
    """Yield the bytes of a text, or of the lines of a `span` from 0 on, `size` at a time.

    They are unpacked and without a byte order mark; `InputError` for what is no text.
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
    """Return the `InputError` for a read of `path` that ended in `error`."""
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        reason = error.strerror or str(error)
        return InputError(f"{path}: cannot be read ({reason}); check its permissions and the disk")
    return InputError(
        f"{path}: the compressed file is truncated or damaged ({error}); copy or download it again"
    )


def decoded(texts: Iterable[bytes], where: str) -> list[str]:
    """Return texts that are UTF-8; raises `InputError`."""
    try:
        return [text.decode("utf-8") for text in texts]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} holds text that is not UTF-8 ({error}); encode it anew"
        ) from error


def read_json(path: Path, most: int | None = None) -> Any:
    """Return what a JSON file, of `most` bytes, holds; raises `InputError`."""
    return read_nested(path, json.loads, "JSON text", most)


def read_nested(path: Path, parse: Callable[[str], Any], what: str, most: int | None = None) -> Any:
    """Return what `parse` makes of the text of a file, which may be nested; raises `InputError`.

    `parse` raises `ValueError` for a fault of the text; `most` are the bytes that it may have.
    """
    require_file(path)
    try:
        if most is not None and path.stat().st_size > most:
            raise InputError(
                f"{path}: is larger than {most >> 10} KiB, more than a description of tables needs"
            )
        return parse(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except OSError as error:
        raise read_error(path, error) from error
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: is no whole {what} ({reason}); correct it") from error
