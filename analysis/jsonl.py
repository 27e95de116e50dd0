"""Read files with one JSON object a line, whose writers may have been killed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcgnn.analysis.forms import LARGEST
from hpcgnn.errors import InputError
from hpcgnn.storage import require_file

Json = dict[str, Any]


def json_lines(path: Path, starts_anew: Callable[[Json], bool]) -> Iterator[tuple[str, Json]]:
    """Yield ``(file:line, object)``; a torn line may occur only before a restart or at the end.

    `starts_anew` tells whether an object is the first one of a resumed run.
    """
    torn = ""
    try:
        with require_file(path, "restore it or remove it").open("rb") as file:
            for number, line in enumerate(file, start=1):
                record = _object(line)
                where = f"{path}:{number}"
                if torn and not (record is not None and starts_anew(record)):
                    raise InputError(f"{torn}: is not a JSON object; restore the file")
                if record is None:
                    torn = where
                else:
                    torn = ""
                    yield where, record
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _object(line: bytes) -> Json | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def integer(record: Json, key: str, where: str) -> int:
    """Return the integer `key` of a record, or raise an `InputError` that names it."""
    value = record.get(key)
    if type(value) is not int or not -LARGEST <= value < LARGEST:
        raise InputError(f"{where}: field {key!r} is not a 64-bit integer; restore the file")
    return value
