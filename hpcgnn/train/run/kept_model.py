"""The kept model of an ended run as one file, ``model.safetensors``.

It holds the weights under the names of `hpcgnn.nn`, what features were scaled by under
``features/``, and in its metadata the configuration (TOML), the state of the checkpoint that it
comes from (JSON), and a checksum of it all.
"""

import json
import tomllib
import zlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save as save_tensors

from hpcgnn.config.config import Config
from hpcgnn.config.file import config_from_tables, dump_toml, refuse_code
from hpcgnn.errors import InputError
from hpcgnn.storage import write_whole
from hpcgnn.train.run.checkpoint import (
    Checkpoint,
    Tensors,
    check_state,
    checkpoint_paths,
    format_errors,
    read_checkpoint,
)
from hpcgnn.train.run.directory import RunDirectory

_FEATURES = "features/"
_REMEDY = "use the run directory, or start the finished run again without that file"


def write_kept_model(directory: RunDirectory, config: Config, seed: int) -> None:
    """Write the model that a seed kept to the run directory; rank 0 alone.

    Raises
    ------
    InputError
        When the newest checkpoint of the seed does not read, or the file cannot be written.
    """
    newest = {number: path for number, _, path in checkpoint_paths(directory.checkpoints)}[seed]
    checkpoint = read_checkpoint(newest)
    tensors = dict(checkpoint.best)
    tensors |= {_FEATURES + name: value for name, value in checkpoint.features.items()}
    texts = {
        "config": dump_toml(config),
        "state": json.dumps({**checkpoint.state, "finished_seeds": []}),
    }
    metadata = {"format": "pt", **texts, "crc32": str(_checksum(texts, tensors))}
    write_whole(directory.model, save_tensors(tensors, metadata))


def read_kept_model(path: Path, *, trust_code: bool = False) -> tuple[Config, Checkpoint]:
    """Return the configuration and what there is of the checkpoint: the kept weights only.

    Parameters
    ----------
    trust_code
        Import the user's module that the model is of.

    Raises
    ------
    InputError
        When the file is no such model, damaged, or of a module that is not trusted.
    """
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: give a run directory, or its model.safetensors")
    with format_errors(path, _REMEDY):
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        texts = {name: metadata[name] for name in ("config", "state")}
        if int(metadata["crc32"]) != _checksum(texts, tensors):
            raise ValueError("it does not match its checksum")
        tables = tomllib.loads(texts["config"])
    if not trust_code:
        refuse_code(str(path), tables)
    with format_errors(path, _REMEDY):
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
