"""Read the settings of runs, and compare them."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcgnn.analysis.load import read_checked

Settings = dict[str, Any]
"""Values by ``section.key``."""


def read_settings(directory: Path) -> Settings:
    """Return the resolved configuration of a run.

    Raises `InputError` if there is no readable ``config.toml``.
    """
    remedy = "name directories of runs that have begun"
    tables = read_checked(
        directory / "config.toml", {"*": {}}, remedy, lambda text: tomllib.loads(text.decode())
    )
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in table.items()
    }


def differing_keys(runs: Sequence[Settings]) -> list[str]:
    """Return the sorted keys in which runs differ, except their directories.

    A missing key was unknown to the version that wrote the run, and is not a difference.
    """
    keys = sorted({key for run in runs for key in run} - {"run.dir"})
    return [key for key in keys if len({str(run[key]) for run in runs if key in run}) > 1]
