"""Reading a Debian ``Packages`` index: plain, .gz or .xz text of ``Field: value`` stanzas."""

import gzip
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from hpcgnn.errors import InputError

Stanza = dict[str, str]
"""Field name to value, wrapped lines joined; of a Description the first line only."""

# The name ends where an architecture, a version, a list of architectures or a profile begins.
NAME_END = re.compile(r"[\s:(\[<]")
MAGIC_GZIP, MAGIC_XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
OTHER_MAGIC = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


def read_index(path: Path) -> list[Stanza]:
    """Return the stanzas of the index at `path`, whose compression is recognised by its content.

    Raises InputError for a file that cannot be read or is damaged, not UTF-8 or no such index.
    """
    try:
        with _open(path) as file:
            stanzas = list(parse_stanzas(_lines(file, path), path))
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged or cut off ({error}); fetch it again") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be read ({reason}); give a readable file") from error
    if not stanzas:
        raise InputError(f"{path}: no packages in it; give a Debian Packages index")
    return stanzas


def parse_stanzas(lines: Iterable[str], path: Path) -> Iterator[Stanza]:
    """Yield the stanzas of an index's lines; `path` is for messages."""
    stanza: Stanza = {}
    field = ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            if stanza:
                yield _checked(stanza, path, number)
            stanza, field = {}, ""
        elif line[0] in " \t" and field:
            # Of a Description the first line is the synopsis; the others are another text.
            if field != "Description":
                stanza[field] += " " + line.strip()
        else:
            field, colon, value = line.partition(":")
            if not colon or not field or field != field.strip():
                raise InputError(
                    f"{path}: line {number} is not 'Field: value'; give a Debian Packages index"
                )
            stanza[field] = value.strip()
    if stanza:
        yield _checked(stanza, path, number)


def names_in(value: str) -> Iterator[list[str]]:
    """Yield the alternatives ``a | b`` of each relation of a field, without versions."""
    for group in value.split(","):
        names = [NAME_END.split(name.strip(), maxsplit=1)[0] for name in group.split("|")]
        names = [name for name in names if name]
        if names:
            yield names


def _checked(stanza: Stanza, path: Path, number: int) -> Stanza:
    if not stanza.get("Package"):
        raise InputError(f"{path}: the stanza that ends at line {number} has no Package field")
    return stanza


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        start = file.read(6)
    for magic, name in OTHER_MAGIC.items():
        if start.startswith(magic):
            raise InputError(f"{path}: {name} is not read; unpack it first")
    if start.startswith(MAGIC_GZIP):
        return cast("BinaryIO", gzip.open(path, "rb"))
    if start.startswith(MAGIC_XZ):
        return cast("BinaryIO", lzma.open(path, "rb"))
    return path.open("rb")


def _lines(file: BinaryIO, path: Path) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: line {number} is not UTF-8 text; fetch it again") from error
