"""Stores to read, and functions that damage them."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcgnn.storage import (
    GraphArrays,
    GraphStore,
    store_from_arrays,
)
from hpcgnn.storage import format as store_format
from hpcgnn.storage.datasets import array_crc
from hpcgnn.storage.graph import schema


@pytest.fixture
def plain_store(tmp_path: Path) -> Path:
    """An untyped graph of 5 nodes, the last of them isolated, with all node data."""
    path = tmp_path / "plain.h5"
    store_from_arrays(
        path,
        GraphArrays(
            name="plain",
            num_nodes=5,
            edges={"": ([0, 1, 2, 3], [1, 2, 0, 2], [0.5, 1.0, 2.0, 4.0])},
            features=np.arange(15, dtype=np.float32).reshape(5, 3),
            labels=[0, 2, -1, 1, 0],
            split=[1, 2, 3, 1, 0],
            class_names=("red", "green", "blue"),
        ),
    )
    return path


@pytest.fixture
def typed_store(tmp_path: Path) -> Path:
    """A typed graph of 4 nodes whose relations are not in alphabetical order."""
    path = tmp_path / "typed.h5"
    edges = {"writes": ([0, 1], [2, 3]), "cites": ([3], [2]), "empty": ([], [])}
    store_from_arrays(path, GraphArrays(name="typed", num_nodes=4, edges=edges))
    return path


def attribute_text(field: h5py.Dataset, key: str) -> str:
    value = field.attrs.get(key, "")
    return value.decode() if isinstance(value, bytes) else str(value)


def sign(file: h5py.File) -> None:
    """Give every dataset its checksum and the file its fingerprint, as a careful forger would."""
    described = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "iufS":
            crc = array_crc(item[...])
            item.attrs["crc32"] = np.uint32(crc)
            described.append((f"/{name}", item.dtype.str, item.shape, crc))

    file.visititems(visit)
    scalars: dict[str, object] = {key: int(file.attrs[key]) for key in schema.FINGERPRINT_SCALARS}
    if "box" in file.get(schema.POSITIONS, file).attrs:
        scalars["box"] = json.dumps(file[schema.POSITIONS].attrs["box"].tolist())
    if schema.TIMES in file:
        scalars["times unit"] = attribute_text(file[schema.TIMES], "unit")
        for name, field in file.get(schema.FIELD_VALUES, {}).items():
            texts = {key: attribute_text(field, key) for key in ("unit", "components")}
            scalars[f"field {schema.name_of(name)}"] = json.dumps(texts)
    file.attrs["fingerprint"] = store_format.fingerprint(scalars, described)


@pytest.fixture
def forge() -> Callable[..., None]:
    """Return `forge(path, change)`: modify an open file by `change(file)`, and sign it."""

    def change_and_sign(path: Path, change: Callable[[h5py.File], None]) -> None:
        with h5py.File(path, "r+", libver=("v110", "v110")) as file:
            change(file)
            sign(file)

    return change_and_sign


@pytest.fixture
def read_all() -> Callable[[Path], None]:
    """Return a function that opens a store and reads every row of it."""

    def read(path: Path) -> None:
        with GraphStore.open(path) as store:
            store.read_nodes(0, store.num_nodes)
            for relation in store.relations:
                store.read_adjacency(0, store.num_nodes, relation)

    return read


@pytest.fixture
def lose_rights(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Return a function that removes all access to `tmp_path` until the end."""
    mode, user = tmp_path.stat().st_mode, os.geteuid()

    def lose() -> None:
        tmp_path.chmod(0)
        if user == 0:
            # File modes do not stop root.
            os.seteuid(65534)

    yield lose
    os.seteuid(user)
    tmp_path.chmod(mode)
