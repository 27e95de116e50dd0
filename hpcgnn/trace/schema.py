"""The names that a trace may contain, and where its files lie."""

import re
from pathlib import Path

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
"""Every span belongs to one of these; a detail may follow after a dot."""

TRAFFIC = frozenset({"exchange", "reduce"})
"""Phases whose spans tell rows and bytes that this rank sends, or hands to a sum over ranks."""

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
