"""Checkpoints, and the kept model of a finished run, as safetensors and JSON, written atomically.

``checkpoints/seed1-epoch000120/`` holds the weights and the optimiser's state after 120 epochs, the
best weights so far (``best.safetensors``), the scales of standardised features
(``features.safetensors``), and ``state.json`` with everything else and a checksum of each file.
No random state needs saving: dropout masks and learning rates are functions of the epoch.

``model.safetensors`` is the kept model as one file. It holds the weights under the names of
`hpcgnn.nn`, the scales of features under ``features/``, and in its metadata the configuration
(TOML), the state of the checkpoint that it comes from (JSON), and a checksum of it all.
"""

import contextlib
import json
import os
import re
import shutil
import time
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from hpcgnn.config.config import Config, RunConfig
from hpcgnn.config.file import config_from_tables, dump_toml, refuse_code
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.nn import TrainableModule
from hpcgnn.storage import write_whole
from hpcgnn.storage.atomic import sync_directory
from hpcgnn.train.optimizer import Optimizer

FORMAT_VERSION = 1
_NAME = re.compile(r"seed(\d+)-epoch(\d+)")
_STATE = "state.json"
_TENSOR_FILES = tuple(f"{name}.safetensors" for name in ("model", "optimizer", "best", "features"))
_REMEDY = "remove that directory to resume from the checkpoint before it"

Tensors = dict[str, Tensor]

TensorKind = tuple[torch.dtype, tuple[int | None, ...]]
"""A tensor's dtype and shape; None allows any number of rows."""

_FIRST_COST_S = 0.1
"""The expected time of the first checkpoint in seconds."""

_NUMBER = (int, float)
_STATE_TYPES: Mapping[str, tuple[type, ...]] = {
    "seed": (int,),
    "epoch": (int,),
    "kept": (dict,),
    "evaluations_without_gain": (int,),
    "train_loss": _NUMBER,
    "finished_seeds": (list,),
    "graph": (dict,),
}
_KEPT_TYPES = {"epoch": (int, NoneType), "value": (*_NUMBER, NoneType), "metrics": (dict,)}
_RESULT_TYPES = {"seed": (int,), "epochs": (int,), "valid": (*_NUMBER, NoneType)}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors, by name, and the `state` that a run needs to resume.

    The state is JSON: ``seed``, ``epoch`` (epochs done), and what the training loop adds.
    """

    state: dict[str, Any]
    model: Tensors
    optimizer: Tensors
    best: Tensors
    features: Tensors


class CheckpointPace:
    """Decides when a checkpoint is due: every few epochs, or at most a share of the run's time.

    A killed job loses the epochs since the last checkpoint: with a share of 1/50, about fifty times
    the time of a checkpoint.
    """

    def __init__(self, config: RunConfig) -> None:
        self._every, self._share = config.checkpoint_every, config.checkpoint_share
        self._last, self._cost_s = time.perf_counter(), _FIRST_COST_S

    def is_due(self, epoch: int) -> bool:
        """Return whether a checkpoint is due after `epoch` epochs."""
        if self._every > 0:
            return epoch % self._every == 0
        passed_s = time.perf_counter() - self._last
        return self._share > 0 and passed_s * self._share > self._cost_s

    @contextlib.contextmanager
    def saving(self, *, on_disk: bool) -> Iterator[None]:
        """Time the saving of a checkpoint; one not written to disk does not count."""
        began = time.perf_counter()
        yield
        if on_disk:
            self._last = time.perf_counter()
            self._cost_s = self._last - began


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `directory` under a temporary name, sync it, and rename it.

    Not collective: rank 0 writes, since weights are equal on all ranks.

    Raises `InputError` if it cannot be written; earlier checkpoints stay intact and no partial one
    remains.
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
            # Save CPU tensors, so that a run on any device can resume.
            content = save_tensors({key: value.contiguous().cpu() for key, value in values.items()})
            crcs[name] = zlib.crc32(content)
            _write_synced(partial / name, content)
        document = {"format_version": FORMAT_VERSION, **state, "crc32": crcs}
        document["state_crc32"] = _state_crc(document)
        _write_synced(partial / _STATE, json.dumps(document, indent=1).encode())
        sync_directory(partial)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        sync_directory(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(partial)
        raise InputError(
            f"checkpoint {target}: {error.strerror}; free space or choose another run.dir, then "
            "start the same command again to resume"
        ) from error
    return target


def checkpoint_paths(directory: Path) -> list[tuple[int, int, Path]]:
    """Return (seed, epoch, path) of every complete checkpoint, sorted by seed and epoch."""
    paths = []
    for path in directory.glob("seed*-epoch*") if directory.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and (path / _STATE).is_file():
            paths.append((int(match[1]), int(match[2]), path))
    return sorted(paths)


def prune_checkpoints(directory: Path, seed: int, keep: int) -> None:
    """Remove all checkpoints of a seed except its newest `keep`."""
    of_seed = [path for number, _, path in checkpoint_paths(directory) if number == seed]
    for path in of_seed[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint and verify its checksum.

    Raises `StorageFormatError` if it is missing or damaged, or has another version.
    """
    with format_errors(path / _STATE):
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
    """Read a checkpoint and verify its checksums.

    Raises `StorageFormatError` if a file is missing or damaged, or has another version.
    """
    state = read_state(path)
    tensors = []
    for name in _TENSOR_FILES:
        with format_errors(path / name):
            content = (path / name).read_bytes()
            if zlib.crc32(content) != state["crc32"][name]:
                raise ValueError("it does not match its checksum")
            tensors.append(load_tensors(content))
    return Checkpoint(state, *tensors)


def check_state(path: Path, state: Mapping[str, Any]) -> None:
    """Check that a state has all entries that runs and predictions use, with the right types.

    Raises `StorageFormatError` naming the entry that is missing or has the wrong type.
    """
    with format_errors(path / _STATE):
        _check_entries("", state, _STATE_TYPES)
        if "steps" in state:
            _check_entries("", state, {"steps": (int,)})
        _check_entries("kept.", state["kept"], _KEPT_TYPES)
        _check_entries("graph.", state["graph"], {"fingerprint": (str,)})
        for result in state["finished_seeds"]:
            _check_entries("finished_seeds.", result, _RESULT_TYPES)
        for name, value in state["kept"]["metrics"].items():
            _check_entries("kept.metrics.", {name: value}, {name: _NUMBER})


def _check_entries(
    where: str, values: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]
) -> None:
    if not isinstance(values, dict):
        raise TypeError(f"{where.rstrip('.')} is a {type(values).__name__}, not an object")
    for name, allowed in types.items():
        if name not in values:
            raise ValueError(f"it has no {where}{name}")
        # Compare types exactly: True is an int in Python, but no number in JSON.
        if type(values[name]) not in allowed:
            raise ValueError(f"{where}{name} is a {type(values[name]).__name__}")
        if name in ("seed", "epoch", "epochs", "steps") and (values[name] or 0) < 0:
            raise ValueError(f"{where}{name} is below 0")
        if isinstance(values[name], int) and abs(values[name]) >= 1 << 63:
            raise ValueError(f"{where}{name} does not fit 64 bits")
        if name in ("epoch", "epochs") and (values[name] or 0) >= 1 << 31:
            raise ValueError(f"{where}{name} is 2**31 or more")


def check_model_tensors(checkpoint: Checkpoint, model: TrainableModule) -> None:
    """Check that the current and the best weights fit `model`, with any number of node rows."""
    row_names = model.own_rows()
    expected = {
        name: (value.dtype, (None, *value.shape[1:]) if name in row_names else tuple(value.shape))
        for name, value in model.state_dict().items()
    }
    for file, tensors in (("model", checkpoint.model), ("best", checkpoint.best)):
        check_tensors(checkpoint, file, tensors, expected)


def check_optimizer_tensors(
    checkpoint: Checkpoint, model: TrainableModule, optimizer: Optimizer
) -> None:
    """Check that the optimiser's state is complete for every parameter that has one."""
    row_names, keys = model.own_rows(), optimizer.keys
    started = {name.rpartition("/")[0] for name in checkpoint.optimizer}
    expected: dict[str, TensorKind] = {}
    for name, value in model.named_parameters():
        shape = (None, *value.shape[1:]) if name in row_names else tuple(value.shape)
        for key in keys if name in started else ():
            step = key == "step"
            expected[f"{name}/{key}"] = (torch.float32, ()) if step else (value.dtype, shape)
    check_tensors(checkpoint, "optimizer", checkpoint.optimizer, expected)


def check_tensors(
    checkpoint: Checkpoint, file: str, tensors: Tensors, expected: Mapping[str, TensorKind]
) -> None:
    """Check that the tensors of a file have the expected names, dtypes and shapes.

    Raises `StorageFormatError` naming the tensor that is missing, unexpected, or has the wrong
    dtype or shape.
    """
    state = checkpoint.state
    faults = [f"has no {name}" for name in expected if name not in tensors]
    faults += [f"has {name}, which the model lacks" for name in tensors if name not in expected]
    for name, value in tensors.items():
        dtype, shape = expected.get(name, (value.dtype, tuple(value.shape)))
        fits = len(shape) == value.ndim and all(
            wanted in (None, size) for wanted, size in zip(shape, value.shape, strict=False)
        )
        if value.dtype != dtype or not fits:
            faults.append(
                f"{name} is {value.dtype} {tuple(value.shape)}, not {dtype} "
                f"{str(shape).replace('None', 'any')}"
            )
    if faults:
        raise StorageFormatError(
            f"checkpoint seed{state['seed']}-epoch{state['epoch']:06d}: {file}.safetensors "
            f"{faults[0]}: it is from another model or version; {_REMEDY}"
        )


@contextlib.contextmanager
def format_errors(file: Path, remedy: str = _REMEDY) -> Iterator[None]:
    """Turn errors from a missing or damaged file of a run into one naming it and the remedy."""
    try:
        yield
    except StorageFormatError:
        raise
    except OSError as error:
        raise StorageFormatError(f"checkpoint {file}: {error.strerror}; {remedy}") from error
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise StorageFormatError(f"checkpoint {file} is damaged ({error}); {remedy}") from error


def _state_crc(document: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """Return the optimiser's state as tensors named ``PARAMETER/KEY``."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{key}"] = torch.as_tensor(value)
    return tensors


def restore_optimizer(model: nn.Module, optimizer: Optimizer, tensors: Tensors) -> None:
    """Restore the optimiser's state from the result of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter, _, key = name.rpartition("/")
        owner = parameters[parameter]
        optimizer.state.setdefault(owner, {})[key] = value.to(owner.device)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


_FEATURES = "features/"
_KEPT_REMEDY = "use the run directory, or start the finished run again without that file"


def write_kept_model(path: Path, checkpoints: Path, config: Config, seed: int) -> None:
    """Write the kept model of a seed from the newest of its `checkpoints`; on rank 0 only.

    Raises `InputError` if that checkpoint is missing or cannot be read, or the file cannot be
    written.
    """
    newest = {number: path for number, _, path in checkpoint_paths(checkpoints)}
    if seed not in newest:
        raise InputError(
            f"{checkpoints} has no checkpoint of seed {seed}, the best by validation; put it back, "
            "or start over with run.resume=never"
        )
    checkpoint = read_checkpoint(newest[seed])
    tensors = dict(checkpoint.best)
    tensors |= {_FEATURES + name: value for name, value in checkpoint.features.items()}
    texts = {
        "config": dump_toml(config),
        "state": json.dumps({**checkpoint.state, "finished_seeds": []}),
    }
    metadata = {"format": "pt", **texts, "crc32": str(_checksum(texts, tensors))}
    write_whole(path, save_tensors(tensors, metadata))


def read_kept_model(path: Path, *, trust_code: bool = False) -> tuple[Config, Checkpoint]:
    """Return the configuration, and a checkpoint that has only the kept weights.

    Raises `InputError` if the file is no kept model, is damaged, or uses a module of a user that is
    not trusted.
    """
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: give a run directory, or its model.safetensors")
    with format_errors(path, _KEPT_REMEDY):
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        texts = {name: metadata[name] for name in ("config", "state")}
        if int(metadata["crc32"]) != _checksum(texts, tensors):
            raise ValueError("it does not match its checksum")
        tables = tomllib.loads(texts["config"])
    if not trust_code:
        refuse_code(str(path), tables)
    with format_errors(path, _KEPT_REMEDY):
        config = config_from_tables(tables)
        state = json.loads(texts["state"])
    check_state(path, state)
    features = {
        name.removeprefix(_FEATURES): value
        for name, value in tensors.items()
        if name.startswith(_FEATURES)
    }
    best = {name: value for name, value in tensors.items() if not name.startswith(_FEATURES)}
    return config, Checkpoint(state, best, {}, best, features)


def _checksum(texts: dict[str, str], tensors: Tensors) -> int:
    crc = zlib.crc32(json.dumps(texts, sort_keys=True).encode())
    for name in sorted(tensors):
        crc = zlib.crc32(name.encode(), crc)
        crc = zlib.crc32(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
