"""Describe the contents of a store, a checkpoint or a run directory.

`inspect_path` returns them as plain data, which ``python -m hpcgnn.inspect`` prints as tables or
JSON. This package does not use MPI and changes nothing.
"""

from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError
from hpcgnn.inspect.runs import STATE_FILE, describe_checkpoint, describe_run
from hpcgnn.inspect.stores import describe_programs, describe_store, exchange_volume
from hpcgnn.storage import is_instance_store

__all__ = ["exchange_volume", "inspect_path"]

RUN_MEMBERS = ("config.toml", "metrics.jsonl", "summary.json", "checkpoints")


def inspect_path(path: Path, *, verify: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Return the contents of `path` as JSON; ``kind`` is store, programs, checkpoint or run.

    `verify` reads and compares everything that has a checksum; `quiet` shows no progress. Raises
    `InputError` for a path that is none of these and `StorageFormatError` for damage.
    """
    if not path.is_dir():
        if is_instance_store(path):
            return describe_programs(path, verify=verify, quiet=quiet)
        return describe_store(path, verify=verify, quiet=quiet)
    if (path / STATE_FILE).exists():
        return describe_checkpoint(path, verify=verify)
    if any((path / name).exists() for name in RUN_MEMBERS):
        return describe_run(path, verify=verify)
    raise InputError(
        f"{path}: is a directory without {STATE_FILE} and without any of "
        f"{', '.join(RUN_MEMBERS)}; name a store, a checkpoint or a run directory"
    )
