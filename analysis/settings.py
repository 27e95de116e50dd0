"""The settings of runs, and in which of them runs differ."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError

Settings = dict[str, Any]
"""Values by ``section.key``."""


def read_settings(directory: Path) -> Settings:
    """Return the configuration of a run as it was resolved.

    Raises
    ------
    InputError
        If there is no readable ``config.toml``.
    """
    file = directory / "config.toml"
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file}: {reason}; name directories of runs that have begun") from error
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in table.items()
    }


def differing_keys(runs: Sequence[Settings]) -> list[str]:
    """Return the keys in which runs differ, beside their directories, sorted.

    A key that a run lacks was unknown to the version that wrote it: that is no difference.
    """
    keys = sorted({key for run in runs for key in run} - {"run.dir"})
    return [key for key in keys if len({str(run[key]) for run in runs if key in run}) > 1]
