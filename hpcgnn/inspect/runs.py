"""Describe a run directory or a checkpoint, in whatever state a stopped run left it."""

import json
import math
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage import read_whole, require_file

STATE_FILE = "state.json"
READ_BYTES = 1 << 24

_REMEDY = "restore it from a copy or run the training again"


def describe_run(path: Path, *, verify: bool) -> dict[str, Any]:
    """Return configuration, summary, last epoch and members; None for files not yet written."""
    names = sorted(file.parent.name for file in path.glob(f"checkpoints/*/{STATE_FILE}"))
    if verify:
        for name in names:
            describe_checkpoint(path / "checkpoints" / name, verify=True)
    lines = read_document(path / "metrics.jsonl", read_lines)
    return {
        "kind": "run",
        "path": str(path),
        "verified": verify,
        "config": read_document(path / "config.toml", tomllib.loads),
        "summary": read_document(path / "summary.json", json.loads),
        "epochs": None if lines is None else len(lines),
        "last_epoch": lines[-1] if lines else None,
        "checkpoints": names,
        "traces": len(list(path.glob("trace/rank*.jsonl"))),
        "predictions": (path / "predictions.h5").is_file(),
    }


def ranks_of_last_start(path: Path) -> int:
    """Return the number of ranks of the last start of a run; 1 if it is not recorded."""
    match read_document(path / "sessions.json", json.loads):
        case [*_, {"ranks": int(ranks)}]:
            return ranks
    return 1


def describe_checkpoint(path: Path, *, verify: bool) -> dict[str, Any]:
    """Return the state and the tensors of a checkpoint; `verify` compares its checksums."""
    state = read_document(path / STATE_FILE, json.loads)
    if not isinstance(state, dict):
        raise damaged(path / STATE_FILE, "is not a JSON object")
    if verify:
        verify_files(path, state.get("crc32"))
    files = sorted(path.glob("*.safetensors"))
    return {
        "kind": "checkpoint",
        "path": str(path),
        "verified": verify,
        "state": state,
        "files": [describe_tensors(file) for file in files],
    }


def verify_files(path: Path, checksums: Any) -> None:
    """Raise `StorageFormatError` unless every file named in `checksums` has that crc32."""
    if not isinstance(checksums, dict):
        raise damaged(path / STATE_FILE, "has no checksums")
    for name, expected in checksums.items():
        crc, file = 0, path / name
        # The state may be forged, so read only files of the checkpoint itself.
        if file.parent != path or file.suffix != ".safetensors" or file.is_symlink():
            fault = f"names {name!r}, which is not a file of a checkpoint"
            raise damaged(path / STATE_FILE, fault)
        try:
            with require_file(file, _REMEDY).open("rb") as stream:
                while piece := stream.read(READ_BYTES):
                    crc = zlib.crc32(piece, crc)
        except InputError as error:
            raise StorageFormatError(str(error)) from None
        except OSError as error:
            raise damaged(file, f"cannot be read ({error.strerror})") from None
        if crc != expected:
            raise damaged(file, "does not match its checksum")


def describe_tensors(path: Path) -> dict[str, Any]:
    """Return names, shapes and types of the tensors in a safetensors file, from its header."""
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            tensors = [
                {"name": name, "shape": table.get_shape(), "dtype": table.get_dtype()}
                for name, table in slices.items()
            ]
    except (OSError, SafetensorError) as error:
        raise damaged(path, f"cannot be read ({error})") from None
    return {
        "name": path.name,
        "bytes": path.stat().st_size,
        "numbers": sum(math.prod(tensor["shape"]) for tensor in tensors),
        "tensors": tensors,
    }


def read_document(path: Path, parse: Callable[[str], Any]) -> Any:
    """Return the parsed text of a file, None if it does not exist; raises for damage."""
    if not path.exists():
        return None
    try:
        return parse(read_whole(path, _REMEDY).decode())
    except InputError as error:
        raise StorageFormatError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"cannot be read ({error})") from None


def read_lines(text: str) -> list[Any]:
    """Return the JSON values of complete lines; a stopped run may have cut the last one short."""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def damaged(path: Path, fault: str) -> StorageFormatError:
    """Return the one-line error for a file of a run."""
    return StorageFormatError(f"{path}: {fault}; {_REMEDY}")
