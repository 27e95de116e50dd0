"""Access attributes, groups and datasets of an untrusted HDF5 file, each checked when opened."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import StorageFormatError
from hpcgnn.storage.datasets import damaged, format_errors
from hpcgnn.storage.format import fingerprint, fits

KINDS: dict[type, tuple[type, ...]] = {int: (int, np.integer), bool: (bool, np.bool_), str: (str,)}


@dataclass(frozen=True)
class Members:
    """The members of a group of the file at `path`; all faults are `StorageFormatError`.

    `opened` are the datasets opened so far, in all groups, by absolute name.
    """

    path: Path
    group: h5py.Group
    opened: dict[str, h5py.Dataset] = field(default_factory=dict)

    def item(self, name: str) -> str:
        """Return the absolute name of a member."""
        return f"{self.group.name.rstrip('/')}/{name}"

    def attribute(self, name: str, kind: type) -> Any:
        """Return an attribute of the group; see `attribute`."""
        return attribute(self.path, self.group, name, kind)

    def json(self, name: str) -> dict[str, Any]:
        """Return an attribute whose text is a JSON object."""
        text, item = self.attribute(name, str), f"{self.group.name}: attribute {name}"
        with format_errors(self.path, item):
            value = json.loads(text)
        if not isinstance(value, dict):
            raise damaged(self.path, item, "is not a JSON object")
        return value

    def format(self) -> str | None:
        """Return the attribute that names the kind of store, None if it is missing."""
        with format_errors(self.path, "/: attribute format"):
            is_store = "format" in self.group.attrs
        return str(self.attribute("format", str)) if is_store else None

    def version(self, kind: str, versions: Sequence[int], fault: str, content: str) -> int:
        """Return the version of a store; raises with `fault` if the file is not of this `kind`."""
        if self.format() != kind:
            raise StorageFormatError(f"{self.path}: {fault}")
        version: int = self.attribute("format_version", int)
        if version not in versions:
            raise StorageFormatError(
                f"{self.path}: format_version is {version} and this hpcgnn reads "
                f"{', '.join(map(str, versions))}; convert the {content} again with this version"
            )
        return version

    def find(self, name: str) -> Any | None:
        """Return a member, or None; soft and external links are refused."""
        item = self.item(name)
        with format_errors(self.path, item):
            links, key = self.group.id.links, name.encode()
            if not links.exists(key):
                return None
            if links.get_info(key).type != h5py.h5l.TYPE_HARD:
                raise damaged(
                    self.path, item, "is a link to elsewhere, which a store must not have"
                )
            return self.group[name]

    def below(self, name: str) -> "Members | None":
        """Return the members of a group, or None if nothing has that name."""
        item = self.find(name)
        if item is None:
            return None
        if not isinstance(item, h5py.Group):
            raise damaged(self.path, self.item(name), "is not a group")
        return Members(self.path, item, self.opened)

    def required_below(self, name: str) -> "Members":
        """Return the members of a group that must exist."""
        group = self.below(name)
        if group is None:
            raise damaged(self.path, self.item(name), "is missing")
        return group

    def dataset(
        self, name: str, dtypes: tuple[np.dtype[Any], ...], shape: tuple[int | None, ...]
    ) -> h5py.Dataset | None:
        """Return a dataset, or None if nothing has that name; None in `shape` is any length.

        Empty `dtypes` mean fixed-length text.
        """
        dataset = self.find(name)
        if dataset is None:
            return None
        path, item = self.path, self.item(name)
        if not isinstance(dataset, h5py.Dataset):
            raise damaged(path, item, "is not a dataset")
        with format_errors(path, item):
            if not is_plain(dataset):
                raise damaged(path, item, "is not stored in plain chunks with checksums")
            if not is_stored(dataset):
                raise damaged(path, item, f"declares {dataset.nbytes} bytes, and holds fewer")
            if dataset.dtype not in dtypes if dtypes else dataset.dtype.kind != "S":
                expected = " or ".join(str(dtype) for dtype in dtypes) or "fixed-length text"
                raise damaged(path, item, f"has type {dataset.dtype}, not {expected}")
            if not fits(shape, dataset.shape):
                expected = " x ".join("any" if want is None else str(want) for want in shape)
                raise damaged(path, item, f"has shape {dataset.shape}, not {expected}")
        self.opened[dataset.name] = dataset
        return dataset

    def required(
        self, name: str, dtypes: tuple[np.dtype[Any], ...], shape: tuple[int | None, ...]
    ) -> h5py.Dataset:
        """Return a dataset that must exist."""
        dataset = self.dataset(name, dtypes, shape)
        if dataset is None:
            raise damaged(self.path, self.item(name), "is missing")
        return dataset

    def checksums(self, scalars: Mapping[str, object]) -> dict[str, int]:
        """Return the recorded crc32 of each of `opened`, after checking the fingerprint."""
        crcs, described = {}, []
        for dataset in self.opened.values():
            crcs[dataset.name] = attribute(self.path, dataset, "crc32", int)
            described.append(
                (dataset.name, np.dtype(dataset.dtype).str, dataset.shape, crcs[dataset.name])
            )
        if fingerprint(scalars, described) != self.attribute("fingerprint", str):
            item = "/: attribute fingerprint"
            raise damaged(self.path, item, "does not belong to this file's datasets")
        return crcs


def attribute(path: Path, holder: h5py.Group | h5py.Dataset, name: str, kind: type) -> Any:
    """Return an attribute as `kind` (int, bool or str), or raise `StorageFormatError`."""
    item = f"{holder.name}: attribute {name}"
    with format_errors(path, item):
        attributes = holder.attrs
        if name not in attributes:
            raise damaged(path, item, "is missing")
        value = attributes[name]
        if isinstance(value, bytes):
            value = value.decode()
    if not isinstance(value, KINDS[kind]):
        raise damaged(path, item, f"is a {type(value).__name__}, not a {kind.__name__}")
    return kind(value)


def is_stored(dataset: h5py.Dataset) -> bool:
    """Tell whether all chunks were written: HDF5 reads missing ones as an arbitrary fill value."""
    return bool(dataset.id.get_storage_size() >= dataset.nbytes)


def is_plain(dataset: h5py.Dataset) -> bool:
    """Tell whether the data are in this file, in chunks with fletcher32 and no other filter.

    Virtual datasets and external storage read other files; other filters could load a plugin.
    """
    properties = dataset.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CHUNKED or properties.get_nfilters() != 1:
        return False
    code, *_ = properties.get_filter(0)
    return bool(code == h5py.h5z.FILTER_FLETCHER32)
