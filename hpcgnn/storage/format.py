"""Rules shared by the files of all stores: chunk shapes, texts, the fingerprint, error messages."""

import hashlib
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from hpcgnn.errors import InputError
from hpcgnn.typing import Array

CHUNK_BYTES = 1 << 20
"""Bytes of one chunk, the least that is read for a few rows."""

ATTRIBUTE_BYTES = 60_000
"""The longest text attribute: HDF5 keeps longer ones where no checksum covers them."""

_UNSEEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories of control characters, surrogates and line ends."""

_TURNS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Bidirectional classes of characters that change the direction of the text after them."""

REMEDY = "restore the file from a copy or make it again (hpcgnn convert, hpcgnn partition)"


def check_text(what: str, text: str) -> None:
    """Raise `InputError` if `text` is empty or cannot be shown on one line."""
    if not text or any(
        unicodedata.category(letter) in _UNSEEN or unicodedata.bidirectional(letter) in _TURNS
        for letter in text
    ):
        raise InputError(f"{what} {text!r} is empty or has unprintable characters; choose another")


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return a chunk shape: whole rows, about `CHUNK_BYTES`, no larger than the dataset."""
    row_bytes = max(1, math.prod(shape[1:]) * itemsize)
    rows = max(1, min(shape[0], CHUNK_BYTES // row_bytes))
    return (rows, *shape[1:])


def encode_json(what: str, value: Mapping[str, Any]) -> str:
    """Return `value` as JSON text; raises `InputError` if it is too long for an attribute."""
    text = json.dumps(dict(value), sort_keys=True)
    if len(text.encode()) > ATTRIBUTE_BYTES:
        raise InputError(f"{what} takes {len(text)} bytes as JSON; {ATTRIBUTE_BYTES} are allowed")
    return text


def fingerprint(
    scalars: Mapping[str, object], datasets: Iterable[tuple[str, str, Any, int]]
) -> str:
    """Return the hex fingerprint of a store's content.

    `scalars` are the root attributes that give the datasets their meaning; `datasets` are tuples of
    path, dtype text, shape and crc32. The graph's name and provenance are not part of it.
    """
    lines = [f"{key}={value}" for key, value in sorted(scalars.items())]
    for path, dtype, shape, crc in sorted(datasets):
        lines.append(f"{path} {dtype} {tuple(shape)} {crc:08x}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def first_true(mask: Array) -> int | None:
    """Return the position of the first True of a 1-D mask, or None."""
    if not mask.size:
        return None
    position = int(mask.argmax())
    return position if mask[position] else None


def fits(shape: tuple[int | None, ...], actual: tuple[int, ...] | None) -> bool:
    """Tell whether a shape matches a pattern, in which None stands for any length."""
    if actual is None or len(shape) != len(actual):
        return False
    return all(want in (None, have) for want, have in zip(shape, actual, strict=True))
