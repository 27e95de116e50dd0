"""The span names a trace may contain, and its file of JSON lines, written once per flush."""

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError

SCHEMA_VERSION = 1

PHASES = frozenset(
    {
        "read",
        "plan",
        "exchange",
        "interior",
        "boundary",
        "dense",
        "reduce",
        "optimiser",
        "checkpoint",
        "wait",
        "evaluate",
    }
)
"""A span's name is one of these, or one of these with a detail after a dot."""

TRAFFIC = frozenset({"exchange", "reduce"})
"""Phases whose spans count rows and bytes that this rank sends or adds to a sum over ranks."""

WAIT_FOR_SAMPLES = "wait.input"
"""The span in which a step waits for its sample."""

RESERVED_KEYS = frozenset(
    {
        "schema",
        "t_ns",
        "dur_ns",
        "self_ns",
        "device_ns",
        "device_self_ns",
        "seed",
        "epoch",
        "step",
        "name",
        "rows",
        "bytes",
    }
)
"""Keys of a span record that an attribute must not overwrite."""

_DETAIL = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def phase_of(name: str) -> str:
    """Return the phase of a span name, the part before the first dot."""
    return name.partition(".")[0]


def check_name(name: str) -> None:
    """Raise `ValueError` unless `name` is ``phase`` or ``phase.detail`` with a known phase."""
    phase, dot, detail = name.partition(".")
    if phase not in PHASES:
        raise ValueError(f"span {name!r}: unknown phase {phase!r}; use one of {sorted(PHASES)}")
    if dot and not _DETAIL.fullmatch(detail):
        raise ValueError(
            f"span {name!r}: a detail consists of letters, digits, '_', '-' and single dots"
        )


def trace_file(run_directory: str | Path, rank: int) -> Path:
    """Return the trace file of `rank` in a run directory, ``trace/rank00007.jsonl``."""
    return Path(run_directory) / "trace" / f"rank{rank:05d}.jsonl"


class TraceSink:
    """One rank's JSONL file; missing directories above it are created.

    The file is unbuffered: `write` hands its lines to the operating system, so a killed process
    loses at most the line it was writing. `append` continues the file of an earlier run instead of
    replacing it. Raises `InputError` if the file cannot be opened or written.
    """

    def __init__(self, path: str | Path, *, append: bool) -> None:
        self._path = Path(path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Never follow a link: others who can write to the folder could redirect the trace.
            descriptor = os.open(
                self._path,
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else os.O_TRUNC),
                0o666,
            )
            self._file = os.fdopen(descriptor, "a+b" if append else "wb", buffering=0)
        except OSError as error:
            raise self._failure(error) from error
        if append:
            self._finish_torn_line()

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append `records`, one line each; after a failure the file is closed."""
        lines = [_ENCODER.encode(record) for record in records]
        if lines:
            self._write_all(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file.close()

    def _finish_torn_line(self) -> None:
        # A killed run may have left half a line; the new header must start on its own line.
        size = self._file.seek(0, 2)
        if size:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._write_all(b"\n")

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                # A raw write may accept only a part, for instance when the disk fills up.
                view = view[self._file.write(view) :]
        except OSError as error:
            self._file.close()
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> InputError:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror or error
        return InputError(
            f"cannot write the trace {self._path}: {reason}; "
            "free space there, choose a writable run directory, or turn the trace off"
        )


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays into values for JSON, without importing NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a trace cannot hold {value!r}")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
