"""Checkpoints: safetensors and JSON in a directory that appears whole or not at all.

``checkpoints/seed1-epoch000120/`` holds the weights and the optimiser's state after 120 epochs, the
weights kept so far (``best.safetensors``), what standardised features were scaled by
(``features.safetensors``), and ``state.json`` with everything else and a checksum of each file.
Nothing random needs saving: dropout masks and learning rates are functions of the epoch.
"""

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from hpcgnn.errors import InputError, StorageFormatError

__all__ = [
    "Checkpoint",
    "checkpoint_paths",
    "optimizer_tensors",
    "read_checkpoint",
    "read_state",
    "restore_optimizer",
    "write_checkpoint",
]

FORMAT_VERSION = 1
_NAME = re.compile(r"seed(\d+)-epoch(\d+)")
_STATE = "state.json"
_TENSOR_FILES = tuple(f"{name}.safetensors" for name in ("model", "optimizer", "best", "features"))
_REMEDY = "remove that directory to resume from the checkpoint before it"

Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run needs to go on.

    Parameters
    ----------
    state
        JSON: ``seed``, ``epoch`` (epochs done), and what the loop adds.
    model, optimizer, best, features
        Tensors by name.
    """

    state: dict[str, Any]
    model: Tensors
    optimizer: Tensors
    best: Tensors
    features: Tensors


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `directory` under a temporary name, sync it, rename it.

    Not collective: rank 0 writes, since weights are equal on all ranks.

    Raises
    ------
    InputError
        When it cannot be written; earlier checkpoints stay whole and nothing half-written remains.
    """
    state = checkpoint.state
    target = directory / f"seed{state['seed']}-epoch{state['epoch']:06d}"
    partial = directory / f".{target.name}.partial-{os.getpid()}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        crcs = {}
        tensors = (checkpoint.model, checkpoint.optimizer, checkpoint.best, checkpoint.features)
        for name, values in zip(_TENSOR_FILES, tensors, strict=True):
            # On the CPU, so that any device may go on from it.
            content = save_tensors({key: value.contiguous().cpu() for key, value in values.items()})
            crcs[name] = zlib.crc32(content)
            _write_synced(partial / name, content)
        document = {"format_version": FORMAT_VERSION, **state, "crc32": crcs}
        document["state_crc32"] = _state_crc(document)
        _write_synced(partial / _STATE, json.dumps(document, indent=1).encode())
        _sync_directory(partial)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        _sync_directory(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(partial)
        raise InputError(
            f"checkpoint {target}: {error.strerror}; free space or choose another run.dir, then "
            "start the same command again to resume"
        ) from error
    return target


def checkpoint_paths(directory: Path) -> list[tuple[int, int, Path]]:
    """Return (seed, epoch, path) of every whole checkpoint, by seed and epoch.

    Not collective.
    """
    found = []
    for path in directory.glob("seed*-epoch*") if directory.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and (path / _STATE).is_file():
            found.append((int(match[1]), int(match[2]), path))
    return sorted(found)


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint and compare its checksum.

    Not collective.

    Raises
    ------
    StorageFormatError
        When it is missing or damaged, or of another version.
    """
    with _format_errors(path / _STATE):
        state: dict[str, Any] = json.loads((path / _STATE).read_bytes())
        if state["format_version"] != FORMAT_VERSION:
            raise StorageFormatError(
                f"checkpoint {path} has format version {state['format_version']}, this program "
                f"reads {FORMAT_VERSION}; use the version of hpcgnn that wrote it"
            )
        if state.pop("state_crc32") != _state_crc(state):
            raise ValueError("it does not match its checksum")
    return state


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and compare its checksums.

    Not collective.

    Raises
    ------
    StorageFormatError
        When a file is missing or damaged, or of another version.
    """
    state = read_state(path)
    tensors = []
    for name in _TENSOR_FILES:
        with _format_errors(path / name):
            content = (path / name).read_bytes()
            if zlib.crc32(content) != state["crc32"][name]:
                raise ValueError("it does not match its checksum")
            tensors.append(load_tensors(content))
    return Checkpoint(state, *tensors)


@contextlib.contextmanager
def _format_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except StorageFormatError:
        raise
    except OSError as error:
        raise StorageFormatError(f"checkpoint {file}: {error.strerror}; {_REMEDY}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StorageFormatError(f"checkpoint {file} is damaged ({error}); {_REMEDY}") from error


def _state_crc(document: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Return the optimiser's state as tensors named ``PARAMETER/KEY``.

    Not collective.
    """
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{key}"] = torch.as_tensor(value)
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Put tensors of `optimizer_tensors` back.

    Not collective.
    """
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter, _, key = name.rpartition("/")
        owner = parameters[parameter]
        # torch keeps the number of steps on the CPU, wherever the parameters are.
        optimizer.state[owner][key] = value if key == "step" else value.to(owner.device)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
