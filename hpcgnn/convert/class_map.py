"""GraphSAINT's class_map.json, node by node: for large graphs it is hundreds of megabytes of JSON.

The file is one object whose keys are node ids and whose values are a class number, or a list of 0
and 1, one for each class.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.files import QUIET_BELOW_BYTES, read_error, require_file
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

__all__ = ["read_class_map"]

_PIECE_CHARACTERS = 1 << 20
_ENTRY = re.compile(
    r'\s*"(?P<node>[^"\\]*)"\s*:\s*(?P<value>\[[^\]]*\]|[^\[\],{}]+?)\s*(?P<end>[,}])'
)
_OPENING = re.compile(r"\s*\{")
_LONGEST_ENTRY = 8 * _PIECE_CHARACTERS


def read_class_map(path: Path, num_nodes: int) -> Array:
    """Return int64[n] classes, -1 where the file has none, or uint8[n, classes] of 0 and 1.

    Raises `InputError` that names the faulty entry.
    """
    labels: Array | None = None
    seen = np.zeros(num_nodes, np.bool_)
    for key, text in _entries(path):
        node, value = _parse(path, key, text, num_nodes)
        if labels is None:
            labels = _empty(value, num_nodes)
        if value.shape != labels.shape[1:]:
            raise InputError(
                f"{path}: node {node} has labels of shape {value.shape} where the first has "
                f"{labels.shape[1:]}; give each node a class, or a list of 0 and 1 of one length"
            )
        if seen[node]:
            raise InputError(f"{path}: node {node} occurs twice; remove one entry")
        seen[node], labels[node] = True, value
    if labels is None:
        raise InputError(f"{path}: holds no labels; copy it again")
    if labels.ndim == 2 and not seen.all():
        raise InputError(f"{path}: has no entry for node {np.argmin(seen)}; add one")
    return labels


def _empty(value: Array, num_nodes: int) -> Array:
    if value.ndim:
        return np.zeros((num_nodes, len(value)), np.uint8)
    return np.full(num_nodes, -1, np.int64)


def _parse(path: Path, key: str, text: str, num_nodes: int) -> tuple[int, Array]:
    """Return the node and its class [] or its vector of 0 and 1 [classes]."""
    node = int(key) if key.isdecimal() and len(key) < 20 else -1
    if not 0 <= node < num_nodes:
        raise InputError(
            f"{path}: the key {key[:40]!r} is no node id in 0..{num_nodes - 1}; correct it"
        )
    try:
        value = np.array(json.loads(text))
    except (ValueError, RecursionError):
        value = np.array(None)
    # Some published files have 1.0 for 1.
    fits = value.dtype.kind in "if" and value.ndim <= 1 and value.size > 0
    limit = 2 if value.ndim else 1 << 31
    if not fits or ((value < 0) | (value >= limit) | (value % 1 != 0)).any():
        raise InputError(
            f"{path}: node {node} has the label {text[:40]!r}; "
            "it is a class number, or a list of 0 and 1"
        )
    return node, value


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield keys and values as text; raises `InputError` where the text is not such an object."""
    buffer, opened, closed = "", False, False
    for piece in _pieces(path):
        buffer += piece
        at = 0
        if not opened and (opening := _OPENING.match(buffer)):
            opened, at = True, opening.end()
        while opened and not closed and (entry := _ENTRY.match(buffer, at)):
            yield entry["node"], entry["value"]
            at, closed = entry.end(), entry["end"] == "}"
        buffer = buffer[at:]
        if len(buffer) > _LONGEST_ENTRY:
            break
    if not closed or buffer.strip():
        raise InputError(
            f"{path}: is no object of node ids and labels, or is truncated, at "
            f"{buffer[:30]!r}; copy it again"
        )


def _pieces(path: Path) -> Iterator[str]:
    total = require_file(path).stat().st_size
    quiet = total < QUIET_BELOW_BYTES
    try:
        with (
            path.open(encoding="utf-8") as stream,
            Progress(f"reading {path.name}", total >> 10, "KiB", quiet=quiet) as progress,
        ):
            while piece := stream.read(_PIECE_CHARACTERS):
                yield piece
                progress.advance(len(piece) >> 10)
    except OSError as error:
        raise read_error(path, error) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text ({error}); copy it again") from error
